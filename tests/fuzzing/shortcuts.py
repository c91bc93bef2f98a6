"""What looks may do without, since it cannot see a damaged file: half of their time.

Decoders are pure: the bytes of a sound file, which stand beside the damaged one in every repository, give the same
value each time, so it is made once. And of the views and macros that DuckDB is told, those that nobody asks for,
and none of those needs, are text that no file is read for.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from icechunk_arrow.duckdb import attaching
from icechunk_arrow.formats import attributes, envelope, ledger, manifest, structure, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["Shortcuts"]

_DECODERS = (
    *((each, "decode") for each in (attributes, ledger, manifest, structure, transaction)),
    (transaction, "read_rows"),
    (envelope, "open_seal"),
)
_MADE = re.compile(r'CREATE OR REPLACE (?:VIEW|MACRO|TABLE) "memory"\."r"\."(\w+)"')


class Shortcuts:
    """Values of sound files, by their bytes."""

    def __init__(self, sound: Collection[bytes]) -> None:
        self._sound = frozenset(sound)
        self._made: dict[Any, Any] = {}

    @contextmanager
    def taken(self, views: Collection[str]) -> Iterator[None]:
        """Take them, while nobody asks for other views."""

        def asked_for(*given: Any, **more: Any) -> Iterator[str]:
            all_of_them = ";\n".join(statements(*given, **more)).split(";\n")
            return iter(_needed(all_of_them, views))

        statements = vars(attaching)["schema_statements"]
        with ExitStack() as stack:
            for module, name in _DECODERS:
                stack.enter_context(patch.object(module, name, self._once(getattr(module, name))))
            stack.enter_context(patch.object(attaching, "schema_statements", asked_for))
            yield

    def _once(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def decoded(data: bytes, *given: Any, **more: Any) -> Any:
            if data not in self._sound:
                return decode(data, *given, **more)
            place = (decode, data, given, *more.items())
            if place not in self._made:
                self._made[place] = decode(data, *given, **more)
            return self._made[place]

        return decoded


def _needed(statements: list[str], views: Collection[str]) -> list[str]:
    """Leave out what makes neither a view that is asked for nor anything that such a view needs."""
    found, text = [], ""
    for statement in reversed(statements):
        made = _MADE.match(statement)
        if made is None or made[1] in views or f'"r"."{made[1]}"' in text:
            found.append(statement)
            text += statement
    return found[::-1]
