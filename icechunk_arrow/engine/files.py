"""Whole files as values: what stands between formats and storage.

Owns which bytes of a file are fetched, and the cache; decides nothing about their meaning.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.columns import offsets_and_data, one_array, to_numpy, validity
from icechunk_arrow.errors import CorruptFileError, ObjectNotFoundError, SnapshotNotFoundError
from icechunk_arrow.formats import attributes, envelope, manifest, structure, transaction
from icechunk_arrow.formats.layout import FileKind, key_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from icechunk_arrow.core.log import TransactionLog
    from icechunk_arrow.core.snapshot import AttributesRef, Snapshot, SnapshotFacts
    from icechunk_arrow.engine.cache import ByteCache
    from icechunk_arrow.formats.envelope import Sealed
    from icechunk_arrow.storage.port import Storage

__all__ = ["Files", "ManifestFile", "Rows"]

TAIL_BYTES = 1 << 16
"""What is fetched of a file's end at first: all of a small file, the footer of a large one."""


class ManifestFile:
    """A manifest whose footer is read; ``data`` is the whole file where it came along."""

    def __init__(self, sealed: Sealed, data: bytes | None) -> None:
        self.sealed = sealed
        self.data = data
        rows = [sealed.metadata.row_group(i).num_rows for i in range(sealed.row_group_count)]
        self.group_starts: list[int] = [0, *np.cumsum(rows).tolist()]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return 2000 * self.sealed.row_group_count + len(self.data or b"") + 2000

    def group_of(self, row: int) -> int:
        """Row group in which a row stands."""
        if not 0 <= row < self.group_starts[-1]:
            raise self.wrong(f"it has {self.group_starts[-1]} rows, and no row {row}")
        return bisect_right(self.group_starts, row) - 1

    def wrong(self, fact: str) -> CorruptFileError:
        """Say that this is not what a structure file promised."""
        return _wrong(self.sealed.key, fact)

    def coord_range(self, group: int) -> tuple[bytes, bytes] | None:
        """Least and greatest coordinate of a row group, of whatever arrays it holds."""
        column = self.sealed.metadata.row_group(group).column(2)
        found = column.statistics if column.is_stats_set else None
        if found is None or not found.has_min_max:
            return None
        return found.min, found.max


class Rows:
    """One row group, decoded: searched by coordinate, read row by row."""

    def __init__(self, table: pa.Table, key: str) -> None:
        self.key = key
        self.table = table
        self._ids = to_numpy(table["array_id"])
        self._offsets, data = offsets_and_data(one_array(table["coord"]))
        self._coords = data.data
        self._inline = table["inline_data"].null_count < table.num_rows
        self._lengths = to_numpy(table["length"])
        self._starts = to_numpy(table["offset"])
        self._inline_data = one_array(table["inline_data"])
        self._file_codes, self._file_names = _coded(one_array(table["chunk_file"]))
        self._optional = [
            name
            for name in ("etag", "last_modified", "crc32c")
            if name in table.column_names and table[name].null_count < table.num_rows
        ]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return int(self.table.nbytes) + 1000

    def coord_at(self, row: int) -> bytes:
        """Encoded coordinate of a row."""
        return bytes(self._coords[self._offsets[row] : self._offsets[row + 1]])

    def find(self, coord: bytes, start: int, stop: int) -> int | None:
        """Find the row of a coordinate among sorted rows of one array."""
        low, high = start, stop
        while low < high:
            middle = (low + high) >> 1
            if self.coord_at(middle) < coord:
                low = middle + 1
            else:
                high = middle
        return low if low < stop and self.coord_at(low) == coord else None

    def check_owner(self, array_id: int, start: int, stop: int) -> None:
        """Check that rows are an array's, as its snapshot says."""
        if (self._ids[start:stop] != array_id).any():
            raise _wrong(self.key, f"it has no rows of array {array_id} where its snapshot says so")

    def ref_at(self, row: int, array_id: int) -> ChunkRef:
        """Read the reference of a row, which must be the array's."""
        if self._ids.item(row) != array_id:
            raise _wrong(
                self.key, f"it has no chunk of array {array_id} where its snapshot says so"
            )
        length = self._lengths.item(row)
        if self._inline:
            inline = self._inline_data[row].as_py()
            if inline is not None:
                if len(inline) != length:
                    raise _wrong(self.key, f"a chunk of {length} bytes has {len(inline)} there")
                return ChunkRef(inline=inline, length=length)
        extra: dict[str, Any] = {}
        for name in self._optional:
            column = one_array(self.table[name])
            if name == "last_modified":
                valid = validity(column)[row]
                extra[name] = int(to_numpy(column)[row]) if valid else None
            else:
                extra[name] = column[row].as_py()
        return ChunkRef(
            file=self._file_names[self._file_codes.item(row)],
            offset=self._starts.item(row),
            length=length,
            **extra,
        )


def _coded(column: pa.Array) -> tuple[npt.NDArray[Any], list[str | None]]:
    """Give a column of few different texts as codes and texts; a null has the last code."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    names = column.dictionary.to_pylist()
    codes = to_numpy(column.indices)
    return np.where(validity(column.indices), codes, len(names)), [*names, None]


class Files:
    """Typed reads of a repository's files, through a cache."""

    def __init__(self, storage: Storage, cache: ByteCache) -> None:
        self.storage = storage
        self.cache = cache

    def read_snapshot(self, identifier: str) -> Snapshot:
        """Read a whole structure file."""

        def load() -> tuple[Snapshot, int]:
            data = self._whole_by_tail(FileKind.STRUCTURE, identifier)
            return structure.decode(data, identifier), 3 * len(data) + 2000

        snapshot: Snapshot = self.cache.get(("s", identifier), load)
        return snapshot

    def hold_snapshot(self, snapshot: Snapshot, size_bytes: int) -> None:
        """Keep a snapshot that was just written, in a file of this size, for whoever reads it next."""
        self.cache.get(("s", snapshot.id), lambda: (snapshot, 3 * size_bytes + 2000))

    def read_facts(self, identifier: str) -> SnapshotFacts:
        """Read a snapshot's facts, from the end of its structure file."""

        def load() -> tuple[SnapshotFacts, int]:
            sealed, _ = self._open(FileKind.STRUCTURE, identifier)
            return structure.decode_facts(sealed), 6000

        held: Snapshot | None = self.cache.find(("s", identifier))
        if held is not None:
            return held.facts
        facts: SnapshotFacts = self.cache.get(("f", identifier), load)
        return facts

    def read_log(self, identifier: str) -> TransactionLog:
        """Read what the commit of a snapshot did."""

        def load() -> tuple[TransactionLog, int]:
            data = self._whole_by_tail(FileKind.TRANSACTION, identifier)
            return transaction.decode(data, identifier), 20 * len(data)

        log: TransactionLog = self.cache.get(("t", identifier), load)
        return log

    def read_attributes(self, reference: AttributesRef, node_id: int) -> bytes:
        """Read one node's attributes."""

        def load() -> tuple[pa.Table, int]:
            data = self._whole_by_tail(FileKind.ATTRIBUTES, reference.identifier)
            return attributes.decode(data, reference.identifier), 4 * len(data)

        table = self.cache.get(("a", reference.identifier), load)
        return attributes.row_of(table, reference.row, node_id, reference.identifier)

    def read_manifest(self, identifier: str) -> pa.Table:
        """Read all rows of a manifest, past the cache."""
        key = key_of(FileKind.MANIFEST, identifier)
        try:
            data = self.storage.get(key)
        except ObjectNotFoundError as error:
            raise _missing(key, FileKind.MANIFEST, identifier) from error
        return manifest.decode(data, identifier)

    def open_manifest(self, identifier: str) -> ManifestFile:
        """Read a manifest's footer."""

        def load() -> tuple[ManifestFile, int]:
            opened = ManifestFile(*self._open(FileKind.MANIFEST, identifier))
            return opened, opened.size_bytes

        opened: ManifestFile = self.cache.get(("i", identifier), load)
        return opened

    def read_rows(self, identifier: str, group: int) -> Rows:
        """Read one row group of a manifest."""

        def load() -> tuple[Rows, int]:
            opened = self.open_manifest(identifier)
            start, stop = opened.sealed.byte_range(group, group)
            if opened.data is not None:
                data = opened.data[start:stop]
            else:
                data = self.storage.get_range(opened.sealed.key, start, stop - start)
            rows = Rows(manifest.decode_rows(opened.sealed, [group], data), opened.sealed.key)
            return rows, rows.size_bytes

        rows: Rows = self.cache.get(("g", identifier, group), load)
        return rows

    def _tail(self, kind: FileKind, identifier: str, length: int) -> tuple[bytes, int]:
        key = key_of(kind, identifier)
        try:
            return self.storage.get_tail(key, length)
        except ObjectNotFoundError as error:
            raise _missing(key, kind, identifier) from error

    def _open(self, kind: FileKind, identifier: str) -> tuple[Sealed, bytes | None]:
        """Check a file's end; give all its bytes too, where they came along."""
        tail, size_bytes = self._tail(kind, identifier, TAIL_BYTES)
        needs = envelope.seal_needs(tail, size_bytes, key_of(kind, identifier))
        if needs > len(tail):
            tail, size_bytes = self._tail(kind, identifier, needs)
            needs = envelope.seal_needs(tail, size_bytes, key_of(kind, identifier))
            if needs > len(tail):
                tail, size_bytes = self._tail(kind, identifier, needs)
        sealed = envelope.open_seal(tail, size_bytes, kind, identifier)
        return sealed, tail if len(tail) == size_bytes else None

    def _whole_by_tail(self, kind: FileKind, identifier: str) -> bytes:
        """Fetch a whole file, with one request where it is small."""
        tail, size_bytes = self._tail(kind, identifier, TAIL_BYTES)
        if len(tail) == size_bytes:
            return tail
        key = key_of(kind, identifier)
        return self.storage.get_range(key, 0, size_bytes - len(tail)) + tail


def _wrong(key: str, fact: str) -> CorruptFileError:
    return CorruptFileError(
        f"{key} does not go with the snapshot that refers to it: {fact}. Restore the files from a copy, "
        f"or open an earlier snapshot.",
        key=key,
    )


def _missing(key: str, kind: FileKind, identifier: str) -> Exception:
    if kind is FileKind.STRUCTURE:
        return SnapshotNotFoundError(
            f"there is no snapshot {identifier}: {key} does not exist. It may have been expired, or "
            f"belong to another repository.",
            snapshot=identifier,
        )
    return CorruptFileError(
        f"the {kind.label} {key} is missing, although a snapshot refers to it. Restore it from a copy, "
        f"or open an earlier snapshot.",
        key=key,
    )
