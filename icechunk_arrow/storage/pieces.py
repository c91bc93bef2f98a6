"""Data on its way out: one buffer or several that are written one after the other.

Owns how they are joined, measured and named by their content; knows no place.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icechunk_arrow.storage.port import Token, Writable

__all__ = ["Flat", "content_token", "flat_pieces", "joined"]

Flat = bytes | memoryview
"""Bytes that lie one after the other; their ``len`` is how many they are."""


def flat_pieces(data: Writable | Iterable[Writable]) -> Iterator[Flat]:
    """Take the data as flat buffers, none empty, without copying what lies flat already.

    Each is asked for when it is wanted: some are only made then.
    """
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    # a file may be put together of very many small ones, which are bytes
    flat = (piece if isinstance(piece, bytes) else _flat(piece) for piece in pieces)
    return (piece for piece in flat if piece)


def _flat(piece: Writable) -> Flat:
    view = memoryview(piece)
    return view.cast("B") if view.nbytes and view.c_contiguous else view.tobytes()


def joined(data: Writable | Iterable[Writable]) -> bytes:
    """Join the data; bytes come back as they are."""
    if isinstance(data, bytes):
        return data
    return b"".join(flat_pieces(data))


def content_token(data: bytes) -> Token:
    """Make the token of a content, for places that have none of their own."""
    return hashlib.sha256(data).hexdigest()
