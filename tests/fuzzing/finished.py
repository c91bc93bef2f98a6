"""Damage to a finished Parquet file, before its seal is made right again: footer, pages and their headers, seal.

Owns what a page is: where it stands, and what in a footer goes by its length.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import google_crc32c

from tests.fuzzing import sheets, thrift
from tests.fuzzing.trees import UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.kit.workshop import Seal
    from tests.fuzzing.sheets import Sheet

__all__ = ["MUTATIONS"]


def change_footer(sheet: Sheet, draw: Random) -> str:
    """Alter some bytes of the footer."""
    where, bit, count = draw.random(), draw.randrange(8), draw.choice([1, 1, 1, 2])
    in_front = draw.random() < 0.9

    def alter(seal: Seal) -> Seal:
        footer = bytearray(seal.footer)
        texts = re.search(rb"icechunk\.", seal.footer)
        stop = texts.start() if texts and in_front else len(footer)
        for n in range(count):
            footer[min(int(where * stop) + n, len(footer) - 1)] ^= 1 << bit
        return replace(seal, footer=bytes(footer))

    sheet.after.append(alter)
    return f"bit {bit} of {count} bytes of the footer at {where:.4f} is another"


def change_pages(sheet: Sheet, draw: Random) -> str:
    """Alter some bytes of the rows, and sum them again."""
    where, bit = draw.random(), draw.randrange(8)

    def alter(seal: Seal) -> Seal:
        stop = seal.entries[-1][0] if seal.entries else 4
        body = bytearray(seal.body)
        if stop > 4:
            body[4 + int(where * (stop - 4))] ^= 1 << bit
        starts = [4, *(end for end, _ in seal.entries)]
        entries = [
            (end, google_crc32c.value(bytes(body[start:end])))
            for start, (end, _) in zip(starts, seal.entries, strict=False)
        ]
        return replace(seal, body=bytes(body), entries=entries)

    if draw.random() < 0.7:
        sheet.settings["write_page_checksum"] = False
    sheet.after.append(alter)
    return f"bit {bit} of the rows at {where:.4f} is another"


def change_numbers(sheet: Sheet, draw: Random) -> str:
    """Let the footer say other counts, lengths and places of its rows and values."""
    seed = draw.random()

    def alter(seal: Seal) -> Seal:
        own = Random(seed)
        tree, _ = thrift.parse(seal.footer)
        numbers = [tree[2], *(each for each in _numbers_in(tree) if each.number not in {1, 4})]
        chosen = own.choice(numbers)
        near = [chosen.value + 1, max(chosen.value - 1, 0), 2 * chosen.value]
        chosen.value = own.choice([*thrift.INTERESTING, *near])
        return replace(seal, footer=thrift.write(tree))

    sheet.after.append(alter)
    return f"a number in the footer is another ({seed!r})"


def _numbers_in(tree: list[thrift.Member]) -> list[thrift.Member]:
    """Give the members of row groups and of what they say of columns that are numbers."""
    found = []
    for group in _member(tree, 4).values:
        columns = [_member(chunk, 3) for chunk in _member(group, 1).values]
        found += [
            each for part in (group, *columns) for each in part if each.kind in thrift.NUMBERS
        ]
    return found


def lie_in_statistics(sheet: Sheet, draw: Random) -> str:
    """Let the footer say another least or greatest value of a column by which chunks are looked up."""
    seed = draw.random()

    def alter(seal: Seal) -> Seal:
        own = Random(seed)
        tree, _ = thrift.parse(seal.footer)
        known = [
            each
            for group in _member(tree, 4).values
            for chunk in _member(group, 1).values
            for member in _member(chunk, 3)
            if member.number == 12
            and _member(_member(chunk, 3), 3).values[0] in {b"coord", b"array_id"}
            for each in member.value
            if each.kind == thrift.BINARY and each.value
        ]
        if not known:
            raise UnfitError
        chosen = own.choice(known)
        value = bytearray(chosen.value)
        value[own.randrange(len(value))] ^= 1 << own.randrange(8)
        chosen.value = bytes(value)
        return replace(seal, footer=thrift.write(tree))

    if not any(each.name == "coord" for each in sheet.fields):
        raise UnfitError
    sheet.after.append(alter)
    return f"a statistic is another ({seed!r})"


def change_seal(sheet: Sheet, draw: Random) -> str:
    """Let the seal say something else, and make its digest right."""
    way = draw.choice(["name", "count", "entries", "end", "length", "magic"])
    other = draw.choice([name for name in sheet.names if len(name) == 20] or ["0" * 20])

    def alter(seal: Seal) -> Seal:
        entries = seal.entries
        if way == "name":
            return replace(seal, name=other.encode())
        if way == "count":
            return replace(seal, count=len(entries) + 1)
        if way == "entries":
            return replace(seal, entries=entries[:-1])
        if way == "end" and entries:
            return replace(seal, entries=[*entries[:-1], (entries[-1][0] + 1, entries[-1][1])])
        if way == "length":
            return replace(seal, footer_length=len(seal.footer) + 1)
        return replace(seal, magic=b"ICASEAL\x02")

    sheet.after.append(alter)
    return f"the seal has another {way}"


def change_members(sheet: Sheet, draw: Random) -> str:
    """Alter a member of the footer, whatever it means."""
    seed = draw.random()

    def alter(seal: Seal) -> Seal:
        tree, _ = thrift.parse(seal.footer)
        thrift.alter(tree, Random(seed), without=("/5",))
        return replace(seal, footer=thrift.write(tree))

    sheet.after.append(alter)
    return f"a member of the footer is another ({seed!r})"


class _Page:
    """A page that a column begins with, or its dictionary."""

    def __init__(self, seal: Seal, draw: Random) -> None:
        self.seal = seal
        self.footer, _ = thrift.parse(seal.footer)
        groups = _member(self.footer, 4).values
        if not groups:
            raise UnfitError
        columns = _member(draw.choice(groups), 1).values
        column = _member(draw.choice(columns), 3)
        places = [each.value for each in column if each.number in {9, 11}]
        self.at = draw.choice(places)
        self.header, self.stop = thrift.parse(seal.body, self.at)
        self.packed_bytes: int = _member(self.header, 3)

    def put(self, payload: bytes | None = None) -> Seal:
        """Put the page back, with other bytes perhaps; what goes by its length follows."""
        seal, at = self.seal, self.at
        end = self.stop + self.packed_bytes
        new = thrift.write(self.header) + (
            seal.body[self.stop : end] if payload is None else payload
        )
        body = seal.body[:at] + new + seal.body[end:]
        grown = len(new) - (end - at)
        for group in _member(self.footer, 4).values:
            for chunk in _member(group, 1).values:
                column = _member(chunk, 3)
                begin = min(each.value for each in column if each.number in {9, 11})
                size = next(each for each in column if each.number == 7)
                if begin <= at < begin + size.value:
                    size.value += grown
                _move([each for each in chunk if each.number in {4, 6}], at, grown)
                _move([each for each in column if each.number in {9, 11}], at, grown)
        entries, start = [], 4
        for old, _ in seal.entries:
            stop = old + grown if old > at else old
            entries.append((stop, google_crc32c.value(body[start:stop])))
            start = stop
        return replace(seal, body=body, entries=entries, footer=thrift.write(self.footer))


def _member(members: list[thrift.Member], number: int) -> Any:
    return next(each.value for each in members if each.number == number)


def _move(places: list[thrift.Member], at: int, by: int) -> None:
    for each in places:
        each.value += by if each.value > at else 0


def change_page_header(sheet: Sheet, draw: Random) -> str:
    """Alter a member of the header of a page: sizes, counts, encodings, kinds."""
    seed = draw.random()

    def alter(seal: Seal) -> Seal:
        own = Random(seed)
        page = _Page(seal, own)
        thrift.alter(page.header, own)
        return page.put()

    sheet.after.append(alter)
    return f"a member of a page header is another ({seed!r})"


_RUN_BYTES = 1 << 17


def unpacks_to(size: int) -> bytes:
    """Make a frame of Zstandard that unpacks to so many zeros: a run of each 128 KiB takes four bytes."""
    frame = bytearray(b"\x28\xb5\x2f\xfd\xa0") + size.to_bytes(
        4, "little"
    )  # in one segment, its size in 4 bytes
    for start in range(0, size, _RUN_BYTES):
        part = min(size - start, _RUN_BYTES)
        frame += (int(start + part == size) | 2 | part << 3).to_bytes(3, "little") + b"\0"
    return bytes(frame)


def pack_much(sheet: Sheet, draw: Random) -> str:
    """Let a page unpack to megabytes or gigabytes; its header may say so, and count that many values."""
    seed = draw.random()
    size = draw.choice([1 << 16, 1 << 22, 1 << 27, 1 << 29, 1 << 31])
    says_so, counts = draw.random() < 0.7, draw.random() < 0.3

    def alter(seal: Seal) -> Seal:
        page = _Page(seal, Random(seed))
        payload = unpacks_to(size)
        for each in page.header:
            if each.number == 2 and says_so:
                each.value = min(size, (1 << 31) - 1)
            elif each.number == 3:
                each.value = len(payload)
            elif each.number in {5, 7, 8} and counts:
                each.value[0].value = size // 4
        page.header = [
            each for each in page.header if each.number != 4
        ]  # a checksum of what was there
        return page.put(payload)

    sheet.settings["compression"] = "zstd"
    sheet.after.append(alter)
    return f"a page unpacks to {size} bytes ({seed!r}, {says_so}, {counts})"


MUTATIONS: dict[str, Callable[[Sheet, Random], str]] = {
    **sheets.MUTATIONS,
    "footer": change_footer,
    "members": change_members,
    "pages": change_pages,
    "page headers": change_page_header,
    "compression": pack_much,
    "counts": change_numbers,
    "statistics": lie_in_statistics,
    "seal": change_seal,
}
"""What is done to a file, by the kind of damage; each says what it did."""
