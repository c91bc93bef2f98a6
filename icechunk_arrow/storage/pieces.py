"""Data on its way out: one buffer or several that are written one after the other.

Owns how they are joined, measured and named by their content; knows no place.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_arrow.storage.port import Token, Writable

__all__ = ["content_token", "joined", "views"]


def views(data: Writable | Sequence[Writable]) -> list[memoryview]:
    """Take the data as flat buffers, none empty, without copying what lies flat already."""
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    flat = []
    for piece in pieces:
        view = memoryview(piece)
        if not view.nbytes:
            continue
        flat.append(view.cast("B") if view.c_contiguous else memoryview(view.tobytes()))
    return flat


def joined(data: Writable | Sequence[Writable]) -> bytes:
    """Join the data; bytes come back as they are."""
    if isinstance(data, bytes):
        return data
    return b"".join(views(data))


def content_token(data: bytes) -> Token:
    """Make the token of a content, for places that have none of their own."""
    return hashlib.sha256(data).hexdigest()
