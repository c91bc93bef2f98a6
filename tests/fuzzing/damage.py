"""From a seed and a number to one damaged file: which sample, which file, which mutations.

Owns the drawing, and damage to small files of JSON and YAML. Each mutation draws from a generator of its own, so
that any of several can be left out and the others stay what they were.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from icechunk_arrow.core.checksums import crc32c
from tests.fuzzing import finished, trees
from tests.fuzzing.samples import KINDS, keys_of_kind, padded, sample, samples_of
from tests.fuzzing.sheets import Sheet
from tests.fuzzing.trees import Members, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Case", "mutations_of"]

_PARQUET = {"manifest", "structure", "attributes", "log", "ledger log"}
_WEIGHTS = {"value": 5, "json": 4, "type": 3, "members": 3, "footer": 2, "null": 2}
_KIND_WEIGHTS = {"manifest": 5, "structure": 6, "log": 3, "state": 2, "branch": 2}
_TRIES = 40


@dataclass(frozen=True)
class Case:
    """One damaged file."""

    sample: str
    kind: str
    key: str
    steps: tuple[tuple[str, str], ...]
    """Mutations, and the seed of each."""

    @classmethod
    def drawn(cls, seed: int, number: int, kind: str | None = None, again: int = 0) -> Case:
        """Draw the case of a number; ``again`` where those before had nothing to alter."""
        draw = Random(f"{seed} {number} {again}" if again else f"{seed} {number}")
        kinds = [each for each in KINDS for _ in range(_KIND_WEIGHTS.get(each, 1))]
        kind = kind or draw.choice(kinds)
        name = draw.choice(samples_of(kind))
        key = draw.choice(keys_of_kind(name, kind))
        known = [each for each in mutations_of(kind) for _ in range(_WEIGHTS.get(each, 1))]
        ways = [draw.choice(known) for _ in range(draw.choice([1, 1, 1, 2]))]
        steps = tuple((way, f"{seed} {number} {place}") for place, way in enumerate(ways))
        return cls(name, kind, key, steps)

    def as_line(self) -> str:
        """Write it down, for the corpus: a file by its place among its kind, as ids may be others one day."""
        place = keys_of_kind(self.sample, self.kind).index(self.key)
        return json.dumps([self.sample, self.kind, place, self.steps])

    @classmethod
    def of_line(cls, line: str) -> Case:
        """Read what was written down."""
        name, kind, place, steps = json.loads(line)
        keys = keys_of_kind(name, kind)
        return cls(name, kind, keys[place % len(keys)], tuple((way, seed) for way, seed in steps))

    def parts(self) -> list[Case]:
        """Give the cases of each mutation alone."""
        return [replace(self, steps=(step,)) for step in self.steps] if len(self.steps) > 1 else []

    def damage(self) -> tuple[bytes, str]:
        """Make the damaged file; tell what was done.

        Raises
        ------
        UnfitError
            Nothing of the kind can be done to this file.
        """
        objects = sample(self.sample).objects
        names = _names(self.sample)
        if self.kind in _PARQUET:
            return self._of_sheet(objects[self.key], names)
        return self._of_text(objects[self.key], names)

    def _of_sheet(self, data: bytes, names: tuple[str, ...]) -> tuple[bytes, str]:
        def attempt(number: int) -> tuple[bytes, str]:
            sheet = Sheet.of(data, self.key[2:-8], names)
            told = [
                finished.MUTATIONS[way](sheet, Random(f"{seed} {number}"))
                for way, seed in self.steps
            ]
            made = sheet.write()
            if self.kind == "manifest" and made[:4] == b"PAR1":
                made = _as_long(made, data)
            return made, "; ".join(told)

        return _first_fit(attempt)

    def _of_text(self, data: bytes, names: tuple[str, ...]) -> tuple[bytes, str]:
        def attempt(number: int) -> tuple[bytes, str]:
            tree = trees.parse(data)
            told, after = [], []
            for way, seed in self.steps:
                draw = Random(f"{seed} {number}")
                if way in trees.MUTATIONS:
                    told.append(trees.MUTATIONS[way](tree, draw, names))
                else:
                    after.append((way, draw))
            made = trees.dump(tree).encode("utf-8", "surrogatepass")
            if self.kind == "state" and isinstance(tree, Members):
                made = _summed(made)
            for _, draw in after:
                made, what = _change_form(made, draw, yaml=self.kind == "config")
                told.append(what)
            return made, "; ".join(told)

        return _first_fit(attempt)


def _as_long(made: bytes, data: bytes) -> bytes:
    """Give a manifest the size that its snapshots record, where its seal is one that can be found."""
    try:
        return padded(made, len(data))
    except (struct.error, IndexError):
        return made


def mutations_of(kind: str) -> tuple[str, ...]:
    """What can be done to a kind of file."""
    if kind not in _PARQUET:
        return (*trees.MUTATIONS, "form")
    nothing = {"manifest": {"json"}}.get(kind, {"statistics"})
    return tuple(name for name in finished.MUTATIONS if name not in nothing)


def _first_fit(attempt: Callable[[int], tuple[bytes, str]]) -> tuple[bytes, str]:
    for number in range(_TRIES):
        try:
            return attempt(number)
        except UnfitError:
            continue
    raise UnfitError


def _names(name: str) -> tuple[str, ...]:
    """Names that stand in a repository: what a value may be exchanged for."""
    found: list[str] = []
    for key in sample(name).objects:
        last = key.rpartition("/")[2]
        found += [last, last.partition(".")[0]] if key[1] == "/" else [key]
    return tuple(found)


def _summed(data: bytes) -> bytes:
    """Make the checksum of a state file right, where it has one at its end."""
    head, mark, tail = data.rpartition(b'"crc32c": "')
    if not mark or len(tail) != len(b'00000000"}'):
        return data
    blank = head + mark + b'00000000"}'
    return head + mark + f"{crc32c(blank):08x}".encode() + b'"}'


_FORMS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("a byte order mark", lambda data: b"\xef\xbb\xbf" + data),
    ("UTF-16", lambda data: data.decode(errors="replace").encode("utf-16")),
    ("white space", lambda data: b"\r\n\t " + data + b"\n\n"),
    ("something behind it", lambda data: data + b"x"),
    ("another behind it", lambda data: data + data),
    ("a NUL behind it", lambda data: data + b"\0"),
    ("half of it", lambda data: data[: len(data) // 2]),
    ("nothing", lambda _: b""),
    ("bytes that are no text", lambda data: data.replace(b'"', b'"\xff', 1)),
    ("70 KiB more", lambda data: data + b" " * 70_000),
    ("300 KiB more", lambda data: data + b" " * 300_000),
    ("a list around it", lambda data: b"[" + data + b"]"),
    ("null", lambda _: b"null"),
    ("a number", lambda _: b"17"),
    ("no spaces", lambda data: data.replace(b": ", b":")),
    ("a comment", lambda data: data + b"// x"),
)
_YAML: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("an anchor", lambda data: b"a: &x 1\nb: *x\n" + data[:0]),
    ("a tag", lambda _: b"checksum-chunks: !!python/object/apply:os.system [ls]\n"),
    ("a second document", lambda data: data + b"\n---\na: 1\n"),
    ("a merge key", lambda _: b"<<: {checksum-chunks: false}\n"),
    ("a key twice", lambda _: b"checksum-chunks: true\nchecksum-chunks: false\n"),
    ("words of YAML 1.1", lambda _: b"checksum-chunks: yes\n"),
    ("a tab", lambda _: b"chunk-manifests:\n\tsets: []\n"),
    ("depth", lambda _: b"[" * 5000 + b"]" * 5000),
    ("a block", lambda _: b"checksum-chunks: |\n  true\n"),
    ("a directive", lambda data: b"%YAML 1.1\n---\n" + data),
    ("plain lines", lambda _: b"checksum-chunks: true\ninline-chunk-threshold-bytes: 9\n"),
)


def _change_form(data: bytes, draw: Random, *, yaml: bool) -> tuple[bytes, str]:
    told, alter = draw.choice([*_FORMS, *(_YAML if yaml else ())])
    return alter(data), f"as a file it has {told}"
