"""Which files an error about a damaged one may name: it, or one that it can disagree with.

Files disagree where one names the other, or both are of one snapshot: then a reader cannot tell which of the two is
right, and names either.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzzing.samples import sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["named_rightly"]

_FIRST = "refs/branch.main/ZZZZZZZZ.json"
"""It says whose repository it is, so every file can disagree with it (R77)."""
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{19}[0G]")


def named_rightly(name: str, text: str, changes: Mapping[str, bytes | None]) -> bool:
    """Whether an error about a sample with altered files names one of them, or one that goes with it."""
    named = {*_ID.findall(text)}
    for key, data in changes.items():
        if key in text or key == _FIRST:
            return True
        near = {*_words(key, sample(name).objects[key]), *_words(key, data or b"")}
        near |= {each for each, words in _graph(name).items() if near & {_own(key)} & words}
        near |= {_own(other) for other, words in _graph(name).items() if _own(key) in words}
        if near & named or any(each in text for each in near if "/" in each):
            return True
    return False


def _own(key: str) -> str:
    """What a file is named by: its id; a small one by its key."""
    return key[2:].partition(".")[0] if key[1] == "/" else key


@cache
def _graph(name: str) -> dict[str, frozenset[str]]:
    """By key, what the sound files of a sample name."""
    return {key: frozenset(_words(key, data)) for key, data in sample(name).objects.items()}


def _words(key: str, data: bytes) -> Iterator[str]:
    """All ids that stand in a file, and its own name."""
    yield _own(key)
    yield from (each.decode() for each in re.findall(_ID.pattern.encode(), data))
    if data[-4:] == b"PAR1":
        try:
            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        except (pa.ArrowException, OSError, ValueError, KeyError):
            return
        yield from _ID.findall(repr(rows))
