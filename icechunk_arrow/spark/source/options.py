"""Options of ``format("icechunk")``: texts, and what they mean.

Owns how lists, times and storage options are written as texts, and that an unknown option is refused.
Names arrive in lower case, which is how all of ours are written.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PINNED", "STORAGE_PREFIX", "Options"]

STORAGE_PREFIX = "storage."
PINNED = "icechunk.pinned"
"""Where a loaded frame keeps the snapshot that it began with; no caller sets it."""
_FLAGS = {"true": True, "false": False}
_NOT_JSON = object()


class Options:
    """The options of one read or write; each is taken once, and what is left over is wrong."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = {str(name).lower(): value for name, value in options.items()}
        self.pinned = self._left.pop(PINNED, None)
        self._known: list[str] = []
        if "paths" in self._left:
            raise InvalidInputError(
                "load takes the URL of one repository, not a list; read them one by one, and unite the frames"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> str | None:
        """Give an option's text, or None."""
        self._known.append(name)
        return self._left.pop(name, None)

    def need(self, name: str, what: str) -> str:
        """Give an option that must be there; ``what`` says what it is."""
        value = self.take(name)
        if value is None:
            raise InvalidInputError(f"there is no option {name!r}: give {what}", option=name)
        return value

    def take_one_of(self, name: str, words: Iterable[str], default: str) -> str:
        """Give an option that is one of some words."""
        value, known = self.take(name), list(words)
        if value is None:
            return default
        if value.lower() not in known:
            raise _wrong(name, value, f"one of {', '.join(known)}")
        return value.lower()

    def take_flag(self, name: str, *, default: bool = False) -> bool:
        """Give an option that is true or false."""
        return self.take_one_of(name, _FLAGS, str(default).lower()) == "true"

    def take_number(self, name: str, default: int | None = None) -> int | None:
        """Give an option that is a whole number from 1."""
        value = self.take(name)
        if value is None:
            return default
        if not (value.strip().isascii() and value.strip().isdigit() and int(value)):
            raise _wrong(name, value, "a whole number from 1")
        return int(value)

    def take_time(self, name: str) -> datetime | None:
        """Give an option that is a time with its zone."""
        value = self.take(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise _wrong(name, value, "a time with its zone, such as 2024-01-31T12:00:00Z")
        return moment

    def take_list(self, name: str) -> list[str] | None:
        """Give an option that is several texts: with commas between them, or as a JSON list."""
        value = self.take(name)
        if value is None:
            return None
        parsed = _from_json(value) if value.lstrip().startswith("[") else None
        if not isinstance(parsed, list):
            return [each.strip() for each in value.split(",")]
        if not all(isinstance(each, str) for each in parsed):
            raise _wrong(name, value, "texts with commas between them, or a JSON list of texts")
        return list(parsed)

    def take_object(self, name: str) -> dict[str, Any] | None:
        """Give an option that is a JSON object."""
        value = self.take(name)
        if value is None:
            return None
        parsed = _from_json(value)
        if not isinstance(parsed, dict):
            raise _wrong(name, value, "a JSON object")
        return parsed

    def storage_options(self) -> dict[str, Any] | None:
        """Give what the options that begin with ``storage.`` say, or None."""
        names = [name for name in self._left if name.startswith(STORAGE_PREFIX)]
        self._known.append(f"{STORAGE_PREFIX}…")
        taken = {
            name.removeprefix(STORAGE_PREFIX): _storage_value(self._left.pop(name))
            for name in names
        }
        return taken or None

    def allowed(self) -> Any:
        """Give the URL prefixes from which virtual chunks may be read, as ``Repository.open`` takes them."""
        name = "authorize_virtual_chunk_access"
        value = self.take(name)
        if value is None:
            return None
        parsed = _from_json(value) if value.lstrip()[:1] in {"[", "{"} else [value]
        if not isinstance(parsed, list | dict):
            raise _wrong(name, value, "a URL prefix, or several as a JSON list or object")
        return parsed

    def refuse_rest(self, use: str) -> None:
        """Refuse what has not been taken; ``use`` says what for."""
        if self._left:
            known = sorted(dict.fromkeys(self._known))
            raise InvalidInputError(
                f"unknown options for {use}: {', '.join(map(repr, sorted(self._left)))}; there are "
                f"{', '.join(known)}",
                options=tuple(sorted(self._left)),
            )


def _wrong(name: str, value: str, allowed: str) -> InvalidInputError:
    return InvalidInputError(f"the option {name!r} is {value!r}; it takes {allowed}", option=name)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOT_JSON


def _storage_value(text: str) -> Any:
    """Read a value: JSON if it is an object, list, true, false or null; else, a number too, the text."""
    parsed = _from_json(text)
    return parsed if isinstance(parsed, dict | list | bool) or parsed is None else text
