"""What every Parquet file of ours carries around its rows: identification, digest, checks.

Specification: schemas/README.md#envelope

A file is ordinary Parquet. In the footer's key-value metadata stand the 27 identification bytes and the same
facts as text. Just before the footer, where other readers see a gap, stands the seal: where each row group
ends and its CRC-32C, the file's own id, and a SHA-256 over all of this and the footer. So a reader with
this module checks every byte that it uses before a Parquet reader sees it.

Owns the seal and the identification; knows nothing of rows.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from functools import cache
from operator import ge
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats.bounded_parquet import (
    FilePart,
    UnsoundParquetError,
    check_decoding,
    check_footer,
    read_bounded,
)
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES, Budget
from icechunk_arrow.formats.column_guard import ColumnGuard
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

__all__ = [
    "FEW_ROWS",
    "IMPLEMENTATION",
    "SPEC_VERSION",
    "KeptColumn",
    "Sealed",
    "check_pages",
    "header_metadata",
    "keep_column",
    "open_seal",
    "open_whole",
    "read_row_groups",
    "read_rows",
    "read_whole",
    "seal_needs",
    "write",
]

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
IMPLEMENTATION = "ica-0.1.0"
SPEC_VERSION = 1
_KINDS = {
    FileKind.STRUCTURE: (1, "snapshot"),
    FileKind.MANIFEST: (2, "manifest"),
    FileKind.ATTRIBUTES: (3, "attributes"),
    FileKind.TRANSACTION: (4, "transaction-log"),
    FileKind.CENSUS: (5, "census"),
}
_ZSTD = 1
_HEADER_BYTES = 27
_HEADER = "icechunk.header"

_PARQUET_MAGIC = b"PAR1"
_SEAL_MAGIC = b"ICASEAL\x01"
_ENTRY = np.dtype([("end", "<u8"), ("crc32c", "<u4")])
_PACKED_ENTRY = struct.Struct("<QI")
_TRAILER = struct.Struct("<8s20sII32s")
"""Magic, file id, number of row groups, length of the footer, SHA-256."""
_FOOTER_END = 8
_MAX_FOOTER_BYTES = 1 << 30
_MAX_COLUMNS = 1000
FEW_ROWS = 256
"""Up to so many rows dictionaries cost more than they save: of a structure file of two nodes a third of
the time to write it and 900 bytes. The same goes for statistics of a single row group."""
_FEW_BYTES = 1536
"""Columns of up to so many bytes in memory, compression makes next to no smaller, at 10 microseconds each."""
_SCHEMA = "ARROW:schema"


def _header(kind: FileKind) -> bytes:
    number, _ = _KINDS[kind]
    writer = IMPLEMENTATION.encode().ljust(12)
    return MAGIC + writer + bytes([SPEC_VERSION, number, _ZSTD])


def header_metadata(kind: FileKind) -> dict[str, str]:
    """State the identification in words, all ASCII: for footers and for object metadata."""
    return {
        "icechunk.magic": MAGIC.hex(),
        "icechunk.implementation": IMPLEMENTATION,
        "icechunk.spec-version": str(SPEC_VERSION),
        "icechunk.file-type": _KINDS[kind][1],
        "icechunk.compression": "zstd",
    }


def write(
    table: pa.Table,
    *,
    kind: FileKind,
    identifier: str,
    facts: Mapping[str, str],
    boundaries: Sequence[int],
    settings: Mapping[str, Any],
) -> bytes:
    """Encode rows as a sealed Parquet file; ``boundaries`` are the row numbers at which groups end.

    The Arrow schema is stored only where ``settings`` say so: it is half of a small file.
    """
    chosen = {"compression": "zstd", "compression_level": 3, **settings}
    texts = {_HEADER: _header(kind).decode(), **header_metadata(kind), **facts}
    if chosen.pop("store_schema", False):
        texts[_SCHEMA] = _stored_schema(table.schema)
    if table.num_rows <= FEW_ROWS:
        large = _large_columns(table)
        chosen |= {
            "use_dictionary": False,
            "compression": dict.fromkeys(large, "zstd") or "none",
            "compression_level": dict.fromkeys(large, 3) or None,
        }
        if len(boundaries) <= 1:
            chosen |= {"write_statistics": False, "write_page_index": False}
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(
        sink,
        table.schema,
        version="2.6",
        store_schema=False,
        write_page_checksum=True,
        use_compliant_nested_type=False,  # list items are named "item", as documented
        **chosen,
    )
    ends: list[int] = []
    start = 0
    for stop in boundaries:
        writer.write_table(table.slice(start, stop - start), row_group_size=max(stop - start, 1))
        ends.append(sink.tell())
        start = stop
    assert start == table.num_rows
    writer.add_key_value_metadata(texts)
    writer.close()
    return _seal(memoryview(sink.getvalue()), identifier, ends)


def _large_columns(table: pa.Table) -> list[str]:
    """Paths of the leaves of columns that are worth compressing in a small file."""
    return [
        path
        for field, column in zip(table.schema, table.columns, strict=True)
        if column.nbytes > _FEW_BYTES
        for path in _leaves(field)
    ]


@cache
def _leaves(field: pa.Field) -> tuple[str, ...]:
    """Paths of a column's leaves, as Parquet names them."""
    inner: list[pa.Field] = []
    if pa.types.is_struct(field.type):
        inner = [field.type.field(i) for i in range(field.type.num_fields)]
    elif pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type):
        inner = [field.type.value_field.with_name("list.item")]
    paths = [f"{field.name}.{path}" for each in inner for path in _leaves(each)]
    return tuple(paths) or (field.name,)


@cache
def _stored_schema(schema: pa.Schema) -> str:
    """Say what Parquet writers of Arrow store of a schema."""
    return base64.b64encode(schema.serialize()).decode()


def _seal(parquet: memoryview, identifier: str, ends: list[int]) -> bytes:
    footer_length = int.from_bytes(parquet[-8:-4], "little")
    at = len(parquet) - _FOOTER_END - footer_length
    entries = bytearray()
    start = len(_PARQUET_MAGIC)
    for end in ends:
        entries += _PACKED_ENTRY.pack(end, crc32c(parquet[start:end]))
        start = end
    fixed = (_SEAL_MAGIC, identifier.encode("ascii"), len(ends), footer_length)
    digest = hashlib.sha256()
    for part in (entries, _TRAILER.pack(*fixed, b"")[:-32], parquet[at:]):
        digest.update(part)
    trailer = _TRAILER.pack(*fixed, digest.digest())
    return b"".join([parquet[:at], entries, trailer, parquet[at:]])


class Sealed(Struct, frozen=True, kw_only=True):
    """The end of a file, checked: what it is, and where its row groups stand."""

    key: str
    metadata: pq.FileMetaData
    facts: dict[str, str]
    row_group_ends: npt.NDArray[np.uint64]
    row_group_crcs: npt.NDArray[np.uint32]
    size_bytes: int
    limit_bytes: int
    columns: tuple[str, ...]
    """The column of each leaf."""
    guard: ColumnGuard

    @property
    def row_group_count(self) -> int:
        """How many row groups the file has."""
        return len(self.row_group_ends)

    def byte_range(self, first: int, last: int) -> tuple[int, int]:
        """Where row groups ``first`` to ``last`` (inclusive) stand: start and stop."""
        start = int(self.row_group_ends[first - 1]) if first else len(_PARQUET_MAGIC)
        stop = int(self.row_group_ends[last])
        self.budget.check(stop - start)
        return start, stop

    def column(self, group: int, leaf: int) -> pq.ColumnChunkMetaData:
        """Say what the footer does of a column chunk."""
        self.check_columns([group])
        return self.metadata.row_group(group).column(leaf)

    def check_columns(self, groups: Sequence[int]) -> None:
        """Look at columns of row groups, before pyarrow is asked for one."""
        try:
            for group in groups:
                self.guard.check(group)
        except UnsoundParquetError as error:
            raise _damaged(self.key, str(error)) from error

    @property
    def budget(self) -> Budget:
        """What decoding may take."""
        return Budget(self.key, self.limit_bytes)

    def fact(self, name: str) -> str:
        """One entry of the footer's key-value metadata."""
        if name not in self.facts:
            raise CorruptFileError(
                f"{self.key} is damaged: its footer has no {name!r}", key=self.key
            )
        return self.facts[name]


def _damaged(key: str, fact: str) -> CorruptFileError:
    return CorruptFileError(
        f"{key} is damaged: {fact}. Restore the file from a copy, or open an earlier snapshot.",
        key=key,
    )


def seal_needs(tail: bytes, size_bytes: int, key: str) -> int:
    """How many bytes of the file's end :func:`open_seal` wants, given a first look at some of them."""
    if size_bytes < _FOOTER_END + _TRAILER.size + len(_PARQUET_MAGIC) or len(tail) < _FOOTER_END:
        raise _damaged(key, f"it has only {size_bytes} bytes")
    if tail[-4:] != _PARQUET_MAGIC:
        raise _damaged(key, "it does not end like a Parquet file; it may be cut")
    footer_length = int.from_bytes(tail[-8:-4], "little")
    sealed = _FOOTER_END + footer_length + _TRAILER.size
    if sealed + len(_PARQUET_MAGIC) > size_bytes or footer_length > _MAX_FOOTER_BYTES:
        raise _damaged(key, f"its footer would be {footer_length} bytes long")
    if len(tail) < sealed:
        return sealed
    count = _TRAILER.unpack_from(tail, len(tail) - sealed)[2]
    needs: int = sealed + count * _ENTRY.itemsize
    if needs + len(_PARQUET_MAGIC) > size_bytes:
        raise _damaged(key, "the block before its footer is not one of ours")
    return needs


def open_seal(
    tail: bytes,
    size_bytes: int,
    kind: FileKind,
    identifier: str,
    limit_bytes: int = DECODE_LIMIT_BYTES,
) -> Sealed:
    """Check the end of a file and read its footer; ``tail`` is at least what :func:`seal_needs` says."""
    return _open(tail, size_bytes, kind, identifier, limit_bytes)[0]


def _open(
    tail: bytes, size_bytes: int, kind: FileKind, identifier: str, limit_bytes: int
) -> tuple[Sealed, pq.ParquetFile]:
    """Open a file by its end, with a reader that can read the rows too if that is all of the file."""
    key = key_of(kind, identifier)
    needs = seal_needs(tail, size_bytes, key)
    assert len(tail) >= needs
    footer_length = int.from_bytes(tail[-8:-4], "little")
    footer = tail[len(tail) - _FOOTER_END - footer_length :]
    trailer_at = len(tail) - _FOOTER_END - footer_length - _TRAILER.size
    magic, name, count, length, digest = _TRAILER.unpack_from(tail, trailer_at)
    entries = tail[len(tail) - needs : trailer_at]
    if magic != _SEAL_MAGIC:
        raise _damaged(key, "the seal before its footer is missing or altered")
    hashed = hashlib.sha256(entries)
    hashed.update(tail[trailer_at : trailer_at + _TRAILER.size - len(digest)])
    hashed.update(footer)
    if hashed.digest() != digest or length != footer_length:
        raise _damaged(key, "its footer does not match its digest")
    check_footer(memoryview(footer)[:-_FOOTER_END], Budget(key, limit_bytes))
    at_hand = tail if len(tail) == size_bytes else _PARQUET_MAGIC + footer
    try:
        parquet = _reader(pa.BufferReader(at_hand))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(key, f"its footer is none: {error}") from error
    metadata = parquet.metadata
    if metadata.num_columns > _MAX_COLUMNS:
        raise _damaged(key, f"it would have {metadata.num_columns} columns")
    facts = {
        k.decode(errors="replace"): v.decode(errors="replace")
        for k, v in (metadata.metadata or {}).items()
    }
    _check_header(facts, kind, key)
    if name != identifier.encode("ascii"):
        raise _damaged(key, f"it is the file {name.decode('ascii', 'replace')}, under a wrong name")
    if metadata.num_row_groups != count:
        raise _damaged(key, f"its seal counts {count} row groups, its footer another number")
    guard = ColumnGuard(footer, metadata)
    try:
        columns = guard.names
    except UnsoundParquetError as error:
        raise _damaged(key, str(error)) from error
    table = np.frombuffer(entries, _ENTRY)
    ends = [len(_PARQUET_MAGIC), *table["end"].tolist()]
    if any(map(ge, ends, ends[1:])) or ends[-1] > size_bytes - needs:
        raise _damaged(key, "its row groups do not stand one after the other")
    sealed = Sealed(
        key=key,
        metadata=metadata,
        facts=facts,
        row_group_ends=table["end"],
        row_group_crcs=table["crc32c"],
        size_bytes=size_bytes,
        limit_bytes=limit_bytes,
        columns=columns,
        guard=guard,
    )
    return sealed, parquet


def _reader(source: pa.BufferReader, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False, **options)


def _check_header(facts: dict[str, str], kind: FileKind, key: str) -> None:
    header = facts.get(_HEADER, "").encode()
    if len(header) != _HEADER_BYTES or not header.startswith(MAGIC):
        raise _damaged(key, "its footer carries no identification")
    version, number = header[24], header[25]
    if version == 0 or version > SPEC_VERSION:
        raise UnsupportedFormatError(
            f"{key} was written in version {version} of the format by "
            f"{header[12:24].decode().strip()!r}; this is {IMPLEMENTATION!r}, which reads up to "
            f"version {SPEC_VERSION}. Install a newer icechunk-arrow.",
            key=key,
        )
    if number != _KINDS[kind][0]:
        label = dict(_KINDS.values()).get(number, f"type {number}")
        raise CorruptFileError(f"{key} is a {label} file where a {kind.label} belongs", key=key)


def _in_place(sealed: Sealed, data: bytes | memoryview, start: int) -> pa.BufferReader:
    """Let bytes be read at the positions that they have in their file.

    What lies before them is memory that no reader touches, and that takes no room; a Python object with ``seek``
    and ``read`` would be asked twice for every column.
    """
    try:
        whole = np.zeros(start + len(data), np.uint8)
    except MemoryError:  # of a file that is larger than any memory
        sealed.budget.refuse(start + len(data))
    whole[start:] = np.frombuffer(data, np.uint8)
    return pa.BufferReader(pa.py_buffer(whole))


def read_row_groups(
    sealed: Sealed,
    groups: Sequence[int],
    data: bytes | memoryview,
    *,
    columns: Sequence[str] | None = None,
    dictionaries: Iterable[str] = (),
) -> pa.Table:
    """Decode neighbouring row groups from their bytes, checked first."""
    start, stop = sealed.byte_range(groups[0], groups[-1])
    view = memoryview(data)
    if len(view) != stop - start:
        raise _damaged(sealed.key, f"it ends within row group {groups[-1]}")
    _check_bytes(sealed, groups, view, start)
    coded = [name for name in dictionaries if _can_stay_coded(sealed, groups, name)]
    parquet = _reader(
        _in_place(sealed, view, start), metadata=sealed.metadata, read_dictionary=coded
    )
    return _decoded(sealed, groups, parquet, (view, start), columns, coded)


def check_pages(sealed: Sealed, group: int, data: memoryview) -> None:
    """Look at a row group that an engine decodes, whose bytes were checked: what its pages say of themselves."""
    start, _ = sealed.byte_range(group, group)
    sealed.check_columns([group])
    try:
        check_decoding(sealed.metadata, group, FilePart(data, start), sealed.columns, sealed.budget)
    except UnsoundParquetError as error:
        raise _damaged(sealed.key, str(error)) from error


class KeptColumn(Struct, frozen=True, kw_only=True):
    """One column of a row group, not decoded yet: its own bytes and nothing else of the file's."""

    sealed: Sealed
    group: int
    name: str
    start: int
    data: bytes

    def decode(self) -> pa.Table:
        """Decode the column."""
        sealed, source = self.sealed, (memoryview(self.data), self.start)
        parquet = _reader(_in_place(sealed, *source), metadata=sealed.metadata)
        return _decoded(sealed, [self.group], parquet, source, [self.name])


def keep_column(sealed: Sealed, group: int, data: bytes | memoryview, name: str) -> KeptColumn:
    """Put off decoding a column of a row group whose bytes :func:`read_row_groups` has checked."""
    first, last = sealed.byte_range(group, group)
    column = sealed.column(group, sealed.columns.index(name))
    start = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset)
    stop = start + column.total_compressed_size
    if not first <= start <= stop <= last:
        raise _damaged(sealed.key, f"column {name!r} does not stand within row group {group}")
    part = bytes(memoryview(data)[start - first : stop - first])
    return KeptColumn(sealed=sealed, group=group, name=name, start=start, data=part)


def _check_bytes(sealed: Sealed, groups: Sequence[int], view: memoryview, start: int) -> None:
    """Check row groups' bytes, which begin at ``start`` of the file."""
    for group in groups:
        first, last = sealed.byte_range(group, group)
        if crc32c(view[first - start : last - start]) != int(sealed.row_group_crcs[group]):
            raise _damaged(
                sealed.key, f"the bytes of row group {group} do not match their checksum"
            )


def _decoded(
    sealed: Sealed,
    groups: Sequence[int],
    parquet: pq.ParquetFile,
    source: tuple[memoryview, int],
    columns: Sequence[str] | None = None,
    coded: Sequence[str] = (),
) -> pa.Table:
    """Decode columns of row groups; ``source`` are their bytes, and where in the file these begin."""
    sealed.check_columns(groups)
    try:
        table = read_bounded(
            parquet,
            groups,
            FilePart(*source),
            leaves=sealed.columns,
            columns=columns,
            coded=coded,
            budget=sealed.budget,
        )
        table.validate(full=True)  # pyarrow takes any bytes for text
    except UnsoundParquetError as error:
        raise _damaged(sealed.key, str(error)) from error
    except (pa.ArrowException, OSError) as error:
        raise _damaged(sealed.key, f"its rows cannot be read: {error}") from error
    return table


def _can_stay_coded(sealed: Sealed, groups: Sequence[int], name: str) -> bool:
    """Whether pyarrow can read a column as a dictionary: not from delta encoded strings."""
    names = sealed.columns
    return name in names and not any(
        "DELTA_BYTE_ARRAY" in sealed.column(group, names.index(name)).encodings for group in groups
    )


def open_whole(
    data: bytes, kind: FileKind, identifier: str, limit_bytes: int = DECODE_LIMIT_BYTES
) -> Sealed:
    """Check the end of a file of which all bytes are at hand."""
    return _open_whole(data, kind, identifier, limit_bytes)[0]


def _open_whole(
    data: bytes, kind: FileKind, identifier: str, limit_bytes: int
) -> tuple[Sealed, pq.ParquetFile]:
    sealed, parquet = _open(data, len(data), kind, identifier, limit_bytes)
    if data[:4] != _PARQUET_MAGIC:
        raise _damaged(sealed.key, "it does not begin like a Parquet file")
    return sealed, parquet


def read_rows(
    sealed: Sealed,
    data: bytes,
    *,
    columns: Sequence[str] | None = None,
    dictionaries: Iterable[str] = (),
) -> pa.Table:
    """Check and decode all row groups of a file that :func:`open_whole` opened."""
    groups = range(sealed.row_group_count)
    if not groups:
        return empty_table(sealed.metadata.schema.to_arrow_schema())
    start, stop = sealed.byte_range(groups[0], groups[-1])
    view = memoryview(data)[start:stop]
    return read_row_groups(sealed, groups, view, columns=columns, dictionaries=dictionaries)


def read_whole(
    data: bytes,
    kind: FileKind,
    identifier: str,
    limit_bytes: int = DECODE_LIMIT_BYTES,
    *,
    columns: Sequence[str] | None = None,
) -> tuple[Sealed, pa.Table]:
    """Check and decode a file of which all bytes are at hand; of ``columns``, others are not decoded."""
    sealed, parquet = _open_whole(data, kind, identifier, limit_bytes)
    groups = range(sealed.row_group_count)
    view = memoryview(data)
    _check_bytes(sealed, groups, view, 0)
    return sealed, _decoded(sealed, groups, parquet, (view, 0), columns)
