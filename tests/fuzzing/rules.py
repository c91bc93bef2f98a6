"""Rules of the specification that a reader must check, and where each is broken in a way that this package refuses.

Owns which rules these are, by the words of schemas/README.md; and which one a damage breaks, where that is certain.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from icechunk_arrow import IcechunkArrowError, Repository
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.kit.workshop import array_document
from tests.conformance.kit.writing import FOLDER
from tests.fuzzing.looks import LOOKS, look
from tests.fuzzing.samples import sample
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow import Session
    from tests.fuzzing.damage import Case

__all__ = [
    "ELSEWHERE",
    "REQUIRED",
    "refused_at_hand",
    "refused_of_the_kit",
    "rule_of",
    "said_to_readers",
]

_CASES = sorted(path.parent.name for path in FOLDER.glob("refused/*/error.json"))
_SPECIFICATION = Path(__file__).parents[2] / "schemas" / "README.md"
_TO_READERS = re.compile(
    r"[Rr]eaders?\b[^.;]*\b(MUST|checks|refuses|compares)|MUST be refused|MUST make it refuse"
    r"|\b(is|are|else is|or a file is) \**(damage|damaged|refused|unsupported)\b"
)
ELSEWHERE = {
    "R1": "who makes a repository refuses, not who reads one",
    "R13": "readers take both forms: the cases `wide` and all others",
    "R49": "no reader needs the configuration: `judging._judge_config` sees to that in each file of kind `config`",
    "R73": "who brings batches refuses",
    "R77": "what another repository's writer left is passed over: the case `foreign`",
    "R92": "of servers: `tests/storage/test_answers.py`",
}
"""Rules with such words that no altered file breaks for a reader."""


def said_to_readers() -> set[str]:
    """Find rules that say that a reader checks or refuses something, and those of the table *Who checks what*."""
    text = _SPECIFICATION.read_text()
    parts = re.split(r"\n- \*\*(R\d+)\*\* ", text)
    found = set()
    for rule, behind in zip(parts[1::2], parts[2::2], strict=True):
        words = " ".join(re.split(r"\n\n|\n#", behind)[0].split())
        if _TO_READERS.search(words):
            found.add(rule)
    table = text.partition("### Who checks what")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[2] and re.match(r"R\d", cells[1]):
            found |= {*re.findall(r"R\d+", cells[1])}
    return found


def refused_of_the_kit() -> dict[str, list[str]]:
    """By rule, the cases of the kit that are refused with an error that names a file it may name."""
    found: dict[str, list[str]] = {}
    for name in _CASES:
        of = sample(f"refused/{name}")
        error = json.loads((FOLDER / "refused" / name / "error.json").read_text())
        keys = [error["key"], *error["also"]]
        stems = [key.rpartition("/")[2].partition(".")[0] for key in keys if key[1] == "/"]
        found.setdefault(error["rule"], [])
        of.lay_out()
        for way in LOOKS:
            answer = look(way, of.url, "structure")
            if answer.refusal and any(each in answer.refusal for each in [*keys, *stems]):
                found[error["rule"]].append(name)
                break
    return found


def _begun(name: str) -> tuple[MemoryStorage, Session]:
    place = MemoryStorage(f"fuzzing-{name}")
    place.delete([info.key for info in place.list()])
    return place, Repository.create(place.url, storage_settings=UNSYNCED).writable_session("main")


def _long_entry() -> None:
    """R66: an entry has at most 64 KiB."""
    of = sample("plain")
    key = of.keys["branch"][-1]
    of.lay_out({key: of.objects[key] + b" " * (1 << 16)})
    look_up = Repository.open(of.url, storage_settings=UNSYNCED).lookup_branch
    look_up(key.split("/")[1].partition(".")[2])


def _sums_of_blocks() -> None:
    """R84: whoever reads a part goes by sums, which are compared first."""
    place, session = _begun("sums")
    session.set_document("/a", array_document([1 << 21], [1 << 21]))
    session.write_chunk("/a", (0,), bytes(range(256)) * (1 << 13))
    session.commit("one")
    (key,) = (info.key for info in place.list("c/"))
    data = bytearray(place.get(key))
    data[1 << 21] ^= 1
    place.put(key, bytes(data))
    again = Repository.open(place.url).readonly_session("main")
    ref = again.find_chunk(again.get_array("/a"), (0,))
    assert ref is not None
    again.read_chunk(ref, 10, 20)


def _location() -> None:
    """R98: a location that leads out is not read, whatever is allowed."""
    place, session = _begun("location")
    session.set_document("/a", array_document([1], [1]))
    session.set_chunk_ref("/a", (0,), ChunkRef(file="file:///allowed/x", offset=0, length=1))
    session.commit("one")
    again = Repository.open(place.url, authorize_virtual_chunk_access={"file:///allowed": None})
    reader = again.readonly_session("main")
    ref = reader.find_chunk(reader.get_array("/a"), (0,))
    assert isinstance(ref, ChunkRef)
    reader.read_chunk(ref._replace(file="file:///allowed/../x"), 0, 1)


_AT_HAND: dict[str, Callable[[], None]] = {
    "R66": _long_entry,
    "R84": _sums_of_blocks,
    "R98": _location,
}
"""Rules that the kit has not: they are about reading a part or a foreign file, or about size."""


def refused_at_hand() -> dict[str, str]:
    """By rule, the error that came of breaking it; nothing where none did."""
    found = {}
    for rule, break_it in _AT_HAND.items():
        try:
            break_it()
            found[rule] = ""
        except IcechunkArrowError as error:
            found[rule] = f"{type(error).__name__}: {error}"
    return found


REQUIRED = sorted(
    {name.partition("-")[0] for name in _CASES} | _AT_HAND.keys(), key=lambda rule: int(rule[1:])
)
"""Rules that a reader must check."""


_RULES = {
    ("manifest", "rows' order"): "R24",
    ("manifest", "doubled row"): "R24",
    ("structure", "rows' order"): "R14",
    ("structure", "doubled row"): "R14",
    ("log", "rows' order"): "R34",
    ("log", "doubled row"): "R34",
    ("ledger log", "missing row"): "R80",
    ("attributes", "missing row"): "R32",
}
_TOLD = (
    (r"(id|type|path|array_id|coord|length|operation|effect|attributes) of row \d+ is null", "R11"),
    (r"(inline_data|chunk_file|offset) of row \d+ is null", "R25"),
    (r"icechunk\.snapshot, doubled: \S*/[a-z_]+ comes twice", "R66"),
    (r"snapshot of row 0, doubled: \S*/[a-z_]+ comes twice", "R66"),
    (r"a page unpacks to", "R66"),
)
"""What was done, and the rule that it breaks in any kind of file of Parquet."""
_TOLD_OF_ENTRIES = (
    (r"/\w+ comes twice", "R42"),
    (r" has a member 'new' more", "R42"),
    (r" has a member '(deleted|catalog)' more", "R101"),
    (r"/(write_id|key) is left out", "R101"),
)
_ENTRIES = {"branch", "tag", "ledger"}
_OF_LOGS = {"coord", "length", "type", "path"}


def rule_of(case: Case, done: str) -> str | None:
    """Name the rule that a case breaks if it is refused; None where that depends on what was drawn."""
    if len(case.steps) > 1:
        return None
    way = case.steps[0][0]
    if way in {"missing column", "type", "column's name"} and case.kind not in _ENTRIES | {
        "state",
        "config",
    }:
        return "R11"
    if way == "seal":
        return "R9"
    if (case.kind, way) in _RULES:
        return _RULES[case.kind, way]
    if case.kind == "state":
        return "R47" if re.search(r"/[a-z][\w.-]* comes twice", done) else None
    told = (
        _TOLD_OF_ENTRIES
        if case.kind in _ENTRIES
        else ()
        if case.kind in {"hint", "config"}
        else _TOLD
    )
    for pattern, rule in told:
        match = re.match(pattern, done)
        if match is not None:
            of_log = case.kind in {"log", "ledger log"} and way == "null" and match[1] in _OF_LOGS
            return "R34" if of_log else rule
    return None
