"""Thrift's compact protocol as a tree: footers and page headers, of which single members are altered.

Owns reading, writing and altering; knows nothing of what members mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.fuzzing.trees import UnfitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = [
    "BINARY",
    "I64",
    "INTERESTING",
    "LIST",
    "NUMBERS",
    "STRUCT",
    "Items",
    "Member",
    "alter",
    "parse",
    "varint",
    "write",
]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (I16, I32, I64)


@dataclass
class Member:
    """A member of a structure; a structure is a list of them."""

    number: int
    kind: int
    value: Any


@dataclass
class Items:
    """A list."""

    kind: int
    values: list[Any]


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def number(self) -> int:
        zigzag = self.varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind: int) -> Any:
        if kind in {TRUE, FALSE}:
            return kind == TRUE
        if kind in NUMBERS:
            return self.number()
        if kind in {BYTE, DOUBLE, BINARY}:
            return self.take({BYTE: 1, DOUBLE: 8}.get(kind) or self.varint())
        if kind == STRUCT:
            return self.struct()
        assert kind == LIST, f"no footer has a value of kind {kind}"
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        return Items(head & 15, [self.value(head & 15) for _ in range(count)])

    def struct(self) -> list[Member]:
        members: list[Member] = []
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.number()
            members.append(Member(number, head & 15, self.value(head & 15)))
        return members


def parse(data: bytes, at: int = 0) -> tuple[list[Member], int]:
    """Read a structure; tell where it ends."""
    reader = _Reader(data, at)
    return reader.struct(), reader.at


def varint(number: int) -> bytes:
    """Write a number without a sign."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _signed(number: int) -> bytes:
    return varint((number << 1 ^ number >> 63) & ((1 << 64) - 1))


def write(members: list[Member]) -> bytes:
    """Write a structure."""
    out, last = bytearray(), 0
    for each in members:
        kind = each.kind
        if kind in {TRUE, FALSE}:
            kind = TRUE if each.value else FALSE
        step = each.number - last
        out += bytes([16 * step + kind]) if 0 < step < 16 else bytes([kind]) + _signed(each.number)
        out += b"" if kind in {TRUE, FALSE} else _value(kind, each.value)
        last = each.number
    return bytes(out) + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind in {TRUE, FALSE}:
        return b"\1" if value else b"\2"
    if kind in NUMBERS:
        return _signed(value)
    if kind == BINARY:
        return varint(len(value)) + bytes(value)
    if kind in {BYTE, DOUBLE}:
        return bytes(value)
    if kind == STRUCT:
        return write(value)
    count = len(value.values)
    head = bytes([16 * min(count, 15) + value.kind]) + (varint(count) if count > 14 else b"")
    return head + b"".join(_value(value.kind, each) for each in value.values)


INTERESTING: tuple[int, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    15,
    127,
    128,
    1 << 16,
    1 << 20,
    (1 << 24) + 1,
    (1 << 31) - 1,
)
INTERESTING = (*INTERESTING, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, -(1 << 63), 10**9)
_SIZES = [Member(1, I64, 7), Member(2, LIST, Items(I64, [1, 1])), Member(3, LIST, Items(I64, [3]))]
_EXTRAS = (
    Member(16, STRUCT, _SIZES),
    Member(16, STRUCT, []),
    Member(17, STRUCT, []),
    Member(8, STRUCT, [Member(2, STRUCT, [Member(1, LIST, Items(BINARY, [b"id"]))])]),
    Member(8, STRUCT, [Member(1, STRUCT, [])]),
    Member(9, BINARY, b"secret"),
    Member(14, I64, 4),
    Member(1, BINARY, b"/etc/passwd"),
)


def _nodes(members: list[Member], path: str = "") -> Iterator[tuple[str, list[Member]]]:
    """All structures, at any depth."""
    yield path, members
    for each in members:
        if each.kind == STRUCT:
            yield from _nodes(each.value, f"{path}/{each.number}")
        elif each.kind == LIST and each.value.kind == STRUCT:
            for place, inner in enumerate(each.value.values):
                yield from _nodes(inner, f"{path}/{each.number}.{place}")


def alter(tree: list[Member], draw: Random, *, without: tuple[str, ...] = ()) -> str:
    """Alter one member somewhere, but below some paths."""
    nodes = [
        (path, members)
        for path, members in _nodes(tree)
        if members and not path.startswith(without or "x")
    ]
    path, members = draw.choice(nodes)
    place = draw.randrange(len(members))
    each = members[place]
    told = f"{path}/{each.number}"
    way = draw.choice(["value"] * 6 + ["missing", "doubled", "number", "kind", "added"])
    if way == "value":
        each.value = _other(each, draw)
        return f"{told} is {each.value!r:.60}"
    if way == "missing":
        del members[place]
        return f"{told} is left out"
    if way == "doubled":
        members.insert(draw.randrange(len(members) + 1), Member(each.number, each.kind, each.value))
        return f"{told} comes twice"
    if way == "number":
        number = draw.choice([each.number + 1, each.number - 1, draw.randrange(1, 20), 16])
        each.number = number
        return f"{told} is member {number}"
    if way == "kind" and each.kind == LIST:
        each.value.kind = draw.choice([I32, I64, BINARY, STRUCT, BYTE])
        if not _can_be_written(each):
            raise UnfitError
        return f"{told} is a list of kind {each.value.kind}"
    extra = draw.choice(_EXTRAS)
    members.append(extra)
    members.sort(key=lambda member: member.number)
    return f"{path} has a member {extra.number} more: {extra.value!r:.60}"


def _can_be_written(member: Member) -> bool:
    try:
        _value(member.kind, member.value)
    except (TypeError, AttributeError, ValueError):
        return False
    return True


def _other(member: Member, draw: Random) -> Any:
    """Give another value of a kind."""
    old = member.value
    if member.kind in {TRUE, FALSE}:
        return not old
    if member.kind in NUMBERS:
        return draw.choice([*INTERESTING, old + 1, old - 1, 2 * old, old + 1, old - 1])
    if member.kind == BINARY:
        cut = draw.randrange(len(old) + 1)
        return draw.choice([b"", old[:cut], old + b"\0", b"\xff" + old[1:], b"x" * 200])
    if member.kind == LIST and old.values:
        values = list(old.values)
        at = draw.randrange(len(values))
        draw.choice([lambda: values.pop(at), lambda: values.insert(at, values[at]), values.clear])()
        return Items(old.kind, values)
    raise UnfitError
