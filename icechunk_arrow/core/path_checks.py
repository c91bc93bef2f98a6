"""Checks of all paths of a structure file at once: a hundred thousand take a few milliseconds.

The rules for one path are those of ``keys``; here stands what makes them quick for many that are sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import lt
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.core.columns import offsets_and_data
from icechunk_arrow.core.keys import LONGEST_PATH_BYTES, METADATA_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["fault_of_paths"]

_SLASH = ord("/")
_NO_NAMES = ("", ".", "..", METADATA_NAME)


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
