"""Where things are said: data on standard output, messages and progress on standard error.

What comes from a repository may hold anything; it is made visible here, so that it never steers a terminal.
Into files and pipes data goes as it is.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["console_on", "harmless", "harmless_json", "say", "working"]

_WIDE = 1_000_000
_STEERING = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, those that turn the direction of writing, and halves of pairs."""


def harmless(text: str, *, lines: bool = False) -> str:
    """Write control characters as their numbers; with ``lines``, ends of lines stay."""

    def visible(found: re.Match[str]) -> str:
        if lines and found[0] == "\n":
            return found[0]
        return found[0].encode("unicode_escape").decode()

    return _STEERING.sub(visible, text)


def harmless_json(text: str) -> str:
    """Write control characters of a JSON document as JSON does; it says the same, and ends of lines stay."""
    return _STEERING.sub(
        lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text
    )


def console_on(file: IO[str]) -> Console:
    """Make a console; what is no terminal gets lines that are never broken, and no colour."""
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, width=_WIDE, color_system=None, force_terminal=False, highlight=False)


def say(message: str) -> None:
    """Write a message to standard error."""
    console_on(sys.stderr).print(Text(harmless(message, lines=True)), soft_wrap=True)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something is being done; what is given says how far it is."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    with Console(stderr=True).status(Text(harmless(what))) as status:
        yield lambda how_far: status.update(Text(harmless(f"{what}: {how_far}")))


def _nothing(_: Any) -> None:
    return None
