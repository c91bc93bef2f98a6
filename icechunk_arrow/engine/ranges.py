"""Which byte ranges of one file are fetched with one request: a pure decision.

Measured by what a request costs where requests are slow: an object store answers after some 25 ms, and then
sends 50 to 100 MB a second on one connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_GAP_BYTES", "MAX_JOINED_BYTES", "Group", "plan_ranges"]

MAX_GAP_BYTES = 256 << 10
"""Bytes that nobody asked for, between two that somebody did: they take a fifth of a request's wait."""
MAX_JOINED_BYTES = 4 << 20
"""Beyond this the bytes take longer than the wait, and two connections bring them sooner than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One range to fetch, and the numbers of the requests that lie in it."""

    start: int
    length: int
    members: tuple[int, ...]


def plan_ranges(
    requests: Sequence[tuple[int, int]],
    *,
    max_gap_bytes: int = MAX_GAP_BYTES,
    max_size_bytes: int = MAX_JOINED_BYTES,
) -> list[Group]:
    """Join ranges of one file, each given as start and length, where little lies between them.

    A range that is larger than a joined one may be stays by itself.
    """
    groups: list[Group] = []
    members: list[int] = []
    start = stop = 0
    for number in sorted(range(len(requests)), key=requests.__getitem__):
        first, length = requests[number]
        last = max(stop, first + length)
        if members and (first - stop > max_gap_bytes or last - start > max_size_bytes):
            groups.append(Group(start=start, length=stop - start, members=tuple(members)))
            members = []
        if not members:
            start, last = first, first + length
        members.append(number)
        stop = last
    if members:
        groups.append(Group(start=start, length=stop - start, members=tuple(members)))
    return groups
