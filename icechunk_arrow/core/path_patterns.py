"""Regular expressions on the paths of nodes, in time linear in the path, whatever the expression.

An expression comes from a repository's configuration, so perhaps from somebody who wishes harm: the backtracking
engine of the standard library would let ten characters stop the process. Arrow brings RE2, which never does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_values, to_numpy
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.settings import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["LONGEST_PATTERN", "PathPattern", "may_match"]

LONGEST_PATTERN = 1000
_LONGEST_TOGETHER = 1 << 16
_ENDINGS = re.compile(r"(\.\*)?([\w/ -]*)(?:\(([\w/ |-]*)\))?")


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
    found: list[bool] = pc.match_substring_regex(column, pattern=pattern).to_pylist()
    return found
