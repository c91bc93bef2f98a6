"""Paths of nodes, many at once: the rules that they keep, and the patterns that they match.

The rules for one path are those of ``keys``; here stands what makes them quick for many that are sorted: a hundred
thousand take a few milliseconds.

A pattern is a regular expression from a repository's configuration, so perhaps from a writer that wishes harm: the
backtracking engine of the standard library would let ten characters stop the process. Arrow brings RE2, which
takes time linear in the path, whatever the expression.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from operator import lt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_values, offsets_and_data, to_numpy
from icechunk_arrow.core.keys import LONGEST_PATH_BYTES, METADATA_NAME
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.settings import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


__all__ = ["LONGEST_PATTERN", "PathPattern", "fault_of_paths", "may_match"]

_SLASH = ord("/")
_NO_NAMES = ("", ".", "..", METADATA_NAME)
LONGEST_PATTERN = 1000
_LONGEST_TOGETHER = 1 << 16
_ENDINGS = re.compile(r"(\.\*)?([\w/ -]*)(?:\(([\w/ |-]*)\))?")


def fault_of_paths(
    column: pa.Array, paths: Sequence[str], is_array: npt.NDArray[np.bool_]
) -> str | None:
    """Say what is wrong with paths, which are given as a column and as texts; None where nothing is."""
    if not all(map(lt, paths, paths[1:])):
        return "its paths are not in order, or one comes twice"
    begin = 1 if paths and paths[0] == "/" else 0
    offsets, data = offsets_and_data(column)
    starts, stops = offsets[begin:-1].astype(np.int64), offsets[begin + 1 :].astype(np.int64)
    if not len(starts):
        return None
    sizes = stops - starts
    if sizes.min() < 1 or (data[starts] != _SLASH).any():
        return "a path does not begin with '/'"
    if sizes.max() > LONGEST_PATH_BYTES:
        return f"a path has more than {LONGEST_PATH_BYTES} bytes"
    text = np.append(data[starts[0] : stops[-1]], np.uint8(_SLASH))  # so each name ends at a slash
    begins = np.flatnonzero(text[:-1] == _SLASH) + 1
    initials = text[begins]
    for name in _NO_NAMES:
        part = name.encode() + b"/"
        if _follows(text, begins[initials == part[0]], part):
            return f"a path has the name {name!r}"
    if (text == 0).any():
        return "a path contains the character NUL"
    below = _node_below_array(data, starts, sizes, paths[begin:], is_array[begin:])
    if below is None and begin and is_array[0]:
        below = paths[1]
    return None if below is None else f"the node {below[:200]!r} stands below an array"


def _follows(text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], part: bytes) -> bool:
    """Whether a part stands at one of some places."""
    for step, byte in enumerate(part):
        places = places[places + step < len(text)]
        places = places[text[places + step] == byte]
        if not len(places):
            return False
    return True


def _node_below_array(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    paths: Sequence[str],
    is_array: npt.NDArray[np.bool_],
) -> str | None:
    """Find a node below an array.

    Between a path and the first one below it stand, in the order of bytes, only paths that begin with it and go on
    with a character before the slash. So the next row tells whether it is worth looking.
    """
    longer = is_array[:-1] & (sizes[1:] > sizes[:-1])
    rows = np.flatnonzero(longer)
    rows = rows[data[starts[rows + 1] + sizes[rows]] <= _SLASH]
    for row in rows.tolist():
        beginning = paths[row] + "/"
        at = bisect_left(paths, beginning, row + 1)
        if at < len(paths) and paths[at].startswith(beginning):
            return paths[at]
    return None


@dataclass(frozen=True, slots=True)
class PathPattern:
    """An expression in RE2's syntax that matches whole paths, such as ``/weather/.*``.

    The usual ``.*/(latitude|longitude)`` and plain paths need no engine: importing Arrow's takes longer than
    opening a repository.

    Raises
    ------
    InvalidInputError
        The text is no such expression, or too long.
    """

    text: str
    _endings: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    _anywhere: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not 0 < len(self.text) <= LONGEST_PATTERN:
            raise InvalidInputError(
                f"must be a regular expression of 1 to {LONGEST_PATTERN} characters, not {shown(self.text)}"
            )
        plain = _ENDINGS.fullmatch(self.text)
        endings = None
        if plain is not None:
            choices = [""] if plain[3] is None else plain[3].split("|")
            endings = tuple(plain[2] + choice for choice in choices)
        object.__setattr__(self, "_endings", endings)
        object.__setattr__(self, "_anywhere", plain is not None and plain[1] is not None)
        if endings is None:
            try:
                _search([""], self.text)  # alone first: ")|(" is none, and would be one in brackets
                self.matches_all([""])
            except (pa.ArrowInvalid, UnicodeEncodeError) as error:
                raise InvalidInputError(
                    f"is not a regular expression in RE2's syntax: {shown(self.text)}: {str(error)[:200]}"
                ) from error

    def matches(self, path: str) -> bool:
        """Whether the whole of a path matches."""
        return self.matches_all([path])[0]

    def matches_all(self, paths: Sequence[str]) -> list[bool]:
        """For each path, whether the whole of it matches."""
        endings = self._endings
        if endings is None:
            return _search(paths, rf"\A(?:{self.text})\z")
        if self._anywhere:  # a dot is no line feed, and no ending has one
            return [path.endswith(endings) and "\n" not in path for path in paths]
        return [path in endings for path in paths]


def may_match(patterns: Sequence[PathPattern | None], paths: pa.Array) -> npt.NDArray[np.bool_]:
    """For each path, whether any of some expressions matches the whole of it; in doubt, it may.

    All are one expression to the engine, which goes over a path once however many they are.
    """
    texts = "|".join(f"(?:{pattern.text})" for pattern in patterns if pattern is not None)
    if len(texts) > _LONGEST_TOGETHER:
        return np.ones(len(paths), np.bool_)
    try:
        return to_numpy(pc.match_substring_regex(paths, pattern=rf"\A(?:{texts})\z"))
    except pa.ArrowInvalid:  # too large together
        return np.ones(len(paths), np.bool_)


def _search(paths: Sequence[str], pattern: str) -> list[bool]:
    column = from_values(list(paths), pa.string())
    matches: list[bool] = pc.match_substring_regex(column, pattern=pattern).to_pylist()
    return matches
