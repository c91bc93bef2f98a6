"""Reading settings from plain values, as YAML and JSON give them: errors that name the key and stay short.

Knows no setting. What is read may come from somebody else: nothing of it is written out at length.
"""

from __future__ import annotations

import difflib
import reprlib
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_number", "closest", "entries", "known_members", "short_key", "shown"]

_LONGEST_KEY = 100
_LARGEST_NUMBER = 2**63 - 1
_MOST_ENTRIES = 1000
_short_repr = reprlib.Repr()
_short_repr.maxlevel = 2
shown = _short_repr.repr
"""Write a value for a message, in a few words however large it is."""


def short_key(key: Any) -> str:
    """Write a key for a message."""
    return key[:_LONGEST_KEY] if isinstance(key, str) else shown(key)


def closest(name: Any, known: Iterable[str]) -> str:
    """Say which of the known names was meant, or which there are."""
    names = list(known)
    near = difflib.get_close_matches(short_key(name), names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"


def known_members(
    found: Any, known: Iterable[str], where: str, ignored: list[str] | None = None
) -> Mapping[str, Any]:
    """Check that this is a mapping with known keys only; ``where`` is empty for the whole.

    With ``ignored`` unknown keys are left out, and named there.

    Raises
    ------
    InvalidInputError
        It is no mapping, or has a key that is not known; the message names it.
    """
    if not isinstance(found, dict):
        raise InvalidInputError(
            f"{where or 'the configuration'} must be a mapping, not {shown(found)}"
        )
    names = list(known)
    unknown = [key for key in found if key not in names]
    for key in unknown:
        place = f"{where}.{short_key(key)}" if where else short_key(key)
        if ignored is None:
            raise InvalidInputError(f"unknown configuration key {place!r}; {closest(key, names)}")
        ignored.append(place)
    return {key: found[key] for key in found if key in names} if unknown else found


def entries(found: Any, where: str) -> tuple[Any, ...]:
    """Check that this is a list, and of a length that is meant for people.

    Raises
    ------
    InvalidInputError
        It is something else; the message names the key.
    """
    if not isinstance(found, list | tuple):
        raise InvalidInputError(f"{where} must be a list, not {shown(found)}")
    if len(found) > _MOST_ENTRIES:
        raise InvalidInputError(
            f"{where} has {len(found)} entries, and at most {_MOST_ENTRIES} are taken; join some of them"
        )
    return tuple(found)


def check_number(value: Any, least: int, where: str) -> None:
    """Check a whole number from ``least``.

    Raises
    ------
    InvalidInputError
        It is something else; the message names the key.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= _LARGEST_NUMBER:
        raise InvalidInputError(
            f"{where} must be a whole number from {least} to {_LARGEST_NUMBER}, not {shown(value)}"
        )
