"""Whether what came of a damaged file is right.

An answer must be the one from before, or an error of ours that names the file. Another one is legitimate only where
the file now legitimately says so. Who decides that is the second reader, which was made from schemas/README.md
alone and shares no code with this package: it must take the repository too, and find exactly the same.

What the second reader does not show is compared with what it does: arrays of Zarr, tables and views follow from
documents, chunks and facts, and a commit changes what it was told to change and nothing else.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzzing.looks import LACKS, LOOKS, NEW_BYTES, NEW_GROUP, Answer, look, views_of
from tests.fuzzing.naming import named_rightly
from tests.fuzzing.samples import Sample, sample
from tests.fuzzing.second import Said, read_by_the_second
from tests.fuzzing.shortcuts import Shortcuts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["FAILED", "LEGITIMATE", "OUTCOMES", "REFUSED", "SAME", "Verdict", "judge"]

OUTCOMES = ("same", "refused", "legitimate", "engine", "failed")
SAME, REFUSED, LEGITIMATE, ENGINE, FAILED = OUTCOMES


@dataclass(frozen=True)
class Verdict:
    """What came of a case, and of which look."""

    outcome: str
    told: str = ""


@cache
def expected(name: str, kind: str) -> dict[str, Answer]:
    """What is seen of a sound sample."""
    found = _look_all(sample(name), kind, {})
    for way, answer in found.items():
        wrong = answer.crash or answer.refusal
        assert not wrong, f"{way} of the sound {name}: {wrong}"
    return found


def _look_all(of: Sample, kind: str, changes: Mapping[str, bytes | None]) -> dict[str, Answer]:
    of.lay_out(dict(changes))
    with shortcuts_of(of.name).taken(views_of(kind)):
        return {way: look(way, of.url, kind) for way in LOOKS}


@cache
def shortcuts_of(name: str) -> Shortcuts:
    """Give the shortcuts for a sample: they hold what its sound files say."""
    return Shortcuts(sample(name).objects.values())


_STATISTICS = {"statistics", "footer", "members"}
"""What may alter statistics of a manifest. No rule is about them, and every reader of Parquet believes them
(*Reading*, step 5): a look-up may then miss a chunk that is listed, and DuckDB give nulls where they count nothing
else."""
_OF_PARQUET = {"footer", "members", "pages", "page headers", "compression", "counts"}
"""Damage to what Parquet itself keeps, of which no rule says how much of it a reader has to bear: it may refuse
what another reader makes sense of, and so may DuckDB."""
_OF_BIGINT = (
    "out of range for the destination type INT64",
    "not in range: 0 to 9223372036854775807",
)
"""Tables tell numbers as BIGINT, and one from 2 to the 63rd on is refused there."""
_OF_OTHERS = ("makes no array", "NotAuthorizedError", "no generation comes after")
"""What a document has to be is Zarr's to say, and the second reader looks at few of its rules; nor does it read a
virtual chunk, whose location may be none (R98). Who only reads needs no number for a next one."""


def judge(
    name: str, kind: str, changes: Mapping[str, bytes | None], ways: Collection[str] = ()
) -> Verdict:
    """Look at a sample in which files are others, altered in some ways, and judge every answer."""
    believed = kind == "manifest" and not _STATISTICS.isdisjoint(ways)
    borne = not _OF_PARQUET.isdisjoint(ways)
    before = expected(name, kind)
    after = _look_all(sample(name), kind, changes)
    for way, answer in after.items():
        if answer.crash is not None:
            if LACKS in answer.crash and believed:
                return Verdict(LEGITIMATE, f"statistics are believed: {answer.crash}")
            return Verdict(FAILED, f"{way}: {answer.crash}")
    if kind == "config":
        return _judge_config(before, after)
    others = [way for way in after if not _same(after[way], before[way])]
    refused = [way for way in others if after[way].refusal]
    engine = [way for way in others if after[way].engine]
    others = [way for way in others if way not in {*refused, *engine}]
    said = read_by_the_second(name, changes)
    if refused:
        refusals = {way: str(after[way].refusal) for way in refused}
        wrong = _wrongly_refused(name, refusals, changes, may=borne or _is_doubted(said))
        if wrong:
            return Verdict(FAILED, wrong)
    if engine and not (borne or believed or _is_doubted(said)):
        text = str(after[engine[0]].engine)
        if not any(each in text for each in _OF_BIGINT):
            return Verdict(FAILED, f"DuckDB alone does not take it: {text}")
    if others == ["duckdb"] and believed:
        return Verdict(LEGITIMATE, "DuckDB believes statistics")
    if others:
        wrong = _illegitimate(kind, others, before, after, changes, said)
        if wrong:
            return Verdict(FAILED, wrong)
    if refused:
        return Verdict(REFUSED, f"{refused[0]}: {after[refused[0]].refusal}")
    if engine:
        return Verdict(ENGINE, str(after[engine[0]].engine))
    if others:
        return Verdict(LEGITIMATE, ", ".join(others))
    if said.refusal:
        return Verdict(FAILED, f"nobody sees it, and the second reader refuses it: {said.refusal}")
    return Verdict(SAME)


_PASSED_ON = re.compile(r"s/[0-9A-HJKMNP-TV-Z]{20}\.parquet")
"""A commit leaves nodes that it does not touch as they stand, unread: so the new structure file too says what
cannot be read, or names an attributes file that cannot, and is named as the old one was."""


def _is_doubted(said: Said) -> bool:
    """Whether a file may be refused."""
    return bool(said.refusal or said.doubts)


def _same(one: Answer, other: Answer) -> bool:
    return one.refusal is one.engine is None and one.value == other.value


def _wrongly_refused(
    name: str,
    refusals: Mapping[str, str],
    changes: Mapping[str, bytes | None],
    *,
    may: bool,
) -> str:
    """Say why errors are wrong: the file is sound, or they name none that has to do with it."""
    for way, text in refusals.items():
        if not (may or any(each in text for each in (*_OF_BIGINT, *_OF_OTHERS))):
            return f"{way} refuses what the second reader takes: {text}"
        if way == "commit" and _PASSED_ON.sub("", text) == _PASSED_ON.sub(
            "", refusals.get("read", "")
        ):
            continue
        if "NotAuthorizedError" not in text and not named_rightly(name, text, changes):
            return f"{way} names no file that has to do with {', '.join(changes)}: {text}"
    return ""


def _judge_config(before: Mapping[str, Answer], after: Mapping[str, Answer]) -> Verdict:
    """No reader needs the file (R49); other settings are shown as such, and decide how a commit stores bytes."""
    others, refusals = [], []
    for way, answer in after.items():
        if answer.crash is not None:
            return Verdict(FAILED, f"{way}: {answer.crash}")
        if way in {"read", "zarr"}:
            if answer != before[way]:
                return Verdict(
                    FAILED, f"{way} needs the configuration: {answer.refusal or answer.value}"[:300]
                )
        elif answer.refusal is not None:
            refusals.append(f"{way}: {answer.refusal}")
        elif way == "commit":
            wrong = _wrong_commit(after["read"].value, answer.value, kinds=False)
            if wrong:
                return Verdict(FAILED, f"commit: {wrong}")
        elif answer != before[way]:
            others.append(way)
    if refusals:
        return Verdict(REFUSED, refusals[0])
    return Verdict(LEGITIMATE, ", ".join(others)) if others else Verdict(SAME)


def _shows_what_stands_there(
    kind: str,
    others: list[str],
    after: Mapping[str, Answer],
    said: Said,
    changes: Mapping[str, bytes | None],
) -> bool:
    """Whether tables and views alone are others, and may be: they show rows as they stand in a sealed file.

    An engine takes what it is given for rows (*Reading*), so views of chunks have the rows of a manifest whose rows
    are others, also where these break a rule: but these and no others. What the text of attributes is (R17, R32)
    shows where a document is put together, and is shown as it stands by tables of nodes. Where a structure file
    does not go with another file, that shows to who reads both: not in tables of its rows, and not where a chunk
    is looked for that it has, now, in no manifest.
    """
    if kind == "manifest":
        return others == ["duckdb"] and all(
            _are_rows_of(key, data, after["duckdb"].value["chunks"])
            for key, data in changes.items()
        )
    if kind == "structure" and not said.refusal.startswith(tuple(changes)):
        return after["read"].refusal is not None
    texts = ("is no JSON", "attributes are no object")
    return "zarr" not in others and any(each in said.refusal for each in texts)


def _are_rows_of(key: str, data: bytes | None, shown: list[str]) -> bool:
    """Whether what a view shows of a manifest stands there."""
    try:
        rows = pq.read_table(
            pa.BufferReader(data), columns=["coord", "length", "offset"]
        ).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return False
    there = {(row["coord"], row["length"], row["offset"]) for row in rows}
    found = [row for row in map(ast.literal_eval, shown) if row["manifest"] == key[2:-8]]
    return all((row["coord"], row["length"], row["offset"]) in there for row in found)


def _illegitimate(
    kind: str,
    others: list[str],
    before: Mapping[str, Answer],
    after: Mapping[str, Answer],
    changes: Mapping[str, bytes | None],
    said: Said,
) -> str:
    """Say why other answers are wrong; nothing where they are legitimate."""
    read = after["read"]
    if {*others} <= {"zarr", "tables", "duckdb"} and _shows_what_stands_there(
        kind, others, after, said, changes
    ):
        return ""
    if said.refusal:
        return f"{', '.join(others)} gave another answer, and the second reader refuses it: {said.refusal}"
    if read.refusal is None and read.value != said.value:
        return f"read: {_difference(read.value, said.value)} (this package, then the second reader)"
    if read.refusal is not None:
        return ""
    for way in others:
        if way == "commit":
            wrong = _wrong_commit(read.value, after["commit"].value)
            if wrong:
                return f"commit: {wrong}"
        elif way in {"tables", "duckdb"} and _as_told(after[way].value, changes) == _as_told(
            before[way].value, changes
        ):
            continue
        elif way != "read" and json.dumps(read.value) == json.dumps(before["read"].value):
            return f"{way}: {_difference(after[way].value, before[way].value)} (now, then before)"
    return ""


def _as_told(tables: Any, changes: Mapping[str, bytes | None]) -> str:
    """Leave out of tables what files may say as they like: sizes and flags, and plain facts of what is patched."""
    patched = {number for data in changes.values() for number in _patched(data)}
    nodes = [
        each
        for each in tables.get("nodes", ())
        if not any(f"'node_id': {number}," in str(each) for number in patched)
    ]
    return re.sub(r"'(\w+_bytes|dense|has_\w+|wide)': \w+", "", repr({**tables, "nodes": nodes}))


def _patched(data: bytes | None) -> Collection[str]:
    """The arrays of whose documents a structure file's columns tell the nearest plain facts alone."""
    try:
        texts = pq.read_metadata(pa.BufferReader(data)).metadata
        return set(json.loads(texts[b"icechunk.extensions"]))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return set()


def _wrong_commit(read: Mapping[str, Any], made: Mapping[str, Any], *, kinds: bool = True) -> str:
    """Say what a commit did beside what it was told to do."""
    tip = read["branches"]["main"]["snapshot"]
    if tip not in read["snapshots"]:
        return ""
    wanted = json.loads(json.dumps(read["snapshots"][tip]["nodes"]))
    found = json.loads(json.dumps(made["nodes"]))
    if found.pop(NEW_GROUP, None) is None and "chunks" not in wanted.get("/", {}):
        return f"there is no {NEW_GROUP}"
    wanted.pop(NEW_GROUP, None)
    if made["where"] is not None:
        path, coord = made["where"]
        chunks = {tuple(each["index"]): each for each in wanted[path]["chunks"]}
        chunks[tuple(coord)] = {
            "index": list(coord),
            "kind": "inline",
            "length": len(NEW_BYTES),
            "bytes": NEW_BYTES.hex(),
        }
        wanted[path]["chunks"] = [chunks[index] for index in sorted(chunks)]
    if not kinds:
        for nodes in (found, wanted):
            for node in nodes.values():
                node["chunks"] = [(c["index"], c.get("bytes")) for c in node.get("chunks", ())]
    return "" if found == wanted else _difference(found, wanted)


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """Say where two values differ first."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted({*found, *wanted}, key=str):
            if name not in found or name not in wanted:
                return f"{path}/{name} is only {'there' if name in found else 'missing'}"
            if found[name] != wanted[name]:
                return _difference(found[name], wanted[name], f"{path}/{name}")
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}/{place}")
    return f"{path} is {found!r:.200}, not {wanted!r:.200}"
