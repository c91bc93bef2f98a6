"""Coordinates as schemas/README.md describes them, decoded without any package."""

from __future__ import annotations

__all__ = ["indexes"]


def indexes(coord: bytes) -> list[int]:
    """Decode a coordinate: integers of RFC 9000, section 16, one after the other."""
    found, place = [], 0
    while place < len(coord):
        size = 1 << (coord[place] >> 6)
        value = int.from_bytes(coord[place : place + size], "big")
        found.append(value & ((1 << (8 * size - 2)) - 1))
        place += size
    return found
