"""Where things are said: messages and progress on standard error; and how a text steers no terminal.

What comes from a repository may hold anything; it is made visible here, so that it never steers a terminal.
Into files and pipes data goes as it is.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["harmless", "harmless_json", "say", "working"]

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


def say(message: str) -> None:
    """Write a message to standard error."""
    sys.stderr.write(harmless(message, lines=True) + "\n")
    sys.stderr.flush()


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something is being done; what is given says how far it is."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console  # noqa: PLC0415  (a pipe does not wait for it)
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(Text(harmless(what))) as status:
        yield lambda how_far: status.update(Text(harmless(f"{what}: {how_far}")))


def _nothing(_: Any) -> None:
    return None
