"""One manifest as look-ups use it: its footer, and its row groups decoded as far as they are needed.

Owns what is kept of them in memory, in which form, and how large that is; fetches nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from operator import lt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import point_at
from icechunk_arrow.core.chunks import CHUNK_SCHEMA, ChunkRef, is_virtual
from icechunk_arrow.core.columns import offsets_and_data, one_array, to_numpy, validity
from icechunk_arrow.core.ids import is_id
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import manifest

if TYPE_CHECKING:
    from icechunk_arrow.core.boxes import Box
    from icechunk_arrow.core.inventory import InventoryEntry
    from icechunk_arrow.formats.envelope import Sealed

__all__ = ["ManifestFile", "RowGroup", "rows_not_of", "wrong_file"]

_COORD = CHUNK_SCHEMA.get_field_index("coord")
_OPTIONAL = CHUNK_SCHEMA.names[CHUNK_SCHEMA.get_field_index("length") + 1 :]
_FEW_NAMES = 1000
"""Up to so many names of files are kept as Python texts, which are read faster and take more room."""


class ManifestFile:
    """A manifest whose footer is read; ``tail`` are the bytes of its last row groups, if they came along."""

    def __init__(self, sealed: Sealed, tail: bytes) -> None:
        self.sealed = sealed
        manifest.check_form(sealed)
        self._coord_leaf = sealed.columns.index("coord")
        rows = [sealed.metadata.row_group(i).num_rows for i in range(sealed.row_group_count)]
        self.group_starts: list[int] = [0, *accumulate(rows)]
        self._ranges: dict[int, tuple[bytes, bytes] | None] = {}
        self._set_tail(tail)

    def _set_tail(self, tail: bytes) -> None:
        """Keep whole row groups only, and not the footer, which is parsed."""
        tail_start = self.sealed.size_bytes - len(tail)
        ends = self.sealed.row_group_ends
        first = int(np.searchsorted(ends, tail_start)) + 1 if tail_start else 0
        self._tail_start = self._tail_stop = self.sealed.size_bytes
        if first < len(ends):
            self._tail_start, self._tail_stop = self.sealed.byte_range(first, len(ends) - 1)
        self._tail = tail[self._tail_start - tail_start : self._tail_stop - tail_start]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory; measured, since Arrow does not tell what a footer takes."""
        footer = self.sealed.guard.size_bytes
        return 5_500 * self.sealed.row_group_count + footer + len(self._tail) + 8_000

    def find_bytes(self, start: int, stop: int) -> memoryview | None:
        """Bytes of row groups, if they came along with the footer."""
        if start < self._tail_start or stop > self._tail_stop:
            return None
        return memoryview(self._tail)[start - self._tail_start : stop - self._tail_start]

    def group_of(self, row: int) -> int:
        """Row group in which a row stands."""
        if not 0 <= row < self.group_starts[-1]:
            raise self.wrong(f"it has {self.group_starts[-1]} rows, and no row {row}")
        return bisect_right(self.group_starts, row) - 1

    def wrong(self, fact: str) -> CorruptFileError:
        """Say that this is not what a structure file promised."""
        return wrong_file(self.sealed.key, fact)

    def coord_range(self, group: int) -> tuple[bytes, bytes] | None:
        """Least and greatest coordinate of a row group, of whatever arrays it holds."""
        try:
            return self._ranges[group]
        except KeyError:
            column = self.sealed.column(group, self._coord_leaf)
            statistics = column.statistics if column.is_stats_set else None
            known = (
                None
                if statistics is None or not statistics.has_min_max
                else (statistics.min, statistics.max)
            )
            self._ranges[group] = known
            return known


class RowGroup:
    """One row group: searched by coordinate, read row by row.

    Every lookup of a chunk ends here, so the columns are kept as what Python reads single values from fastest.
    Coordinates are decoded when they are asked for: where a row's number is arithmetic, they are not.
    """

    def __init__(self, opened: ManifestFile, group: int, data: bytes) -> None:
        table, self._kept_coords = manifest.decode_values(opened.sealed, group, data)
        self.key = opened.sealed.key
        self._start = opened.group_starts[group]
        self._coord_range = opened.coord_range(group)
        self._runs: dict[tuple[int, Box], bool] = {}
        self._sound: set[int] = set()
        """Arrays whose coordinates were all looked at."""
        ids = to_numpy(table["array_id"])
        self._ids = ids.data
        self._id_range = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
        inline = one_array(table["inline_data"])
        self._inline = inline if inline.null_count < len(inline) else None
        if self._inline is None:  # offsets of nothing
            table = table.drop_columns(["inline_data"])
        self._values = table
        self._lengths = to_numpy(table["length"]).data
        self._starts = to_numpy(table["offset"]).data
        self._files = one_array(table["chunk_file"])
        self._codes: memoryview | None = None
        self._names: list[str] | None = None
        if pa.types.is_dictionary(self._files.type):
            self._codes = to_numpy(self._files.indices).data
            self._files = self._files.dictionary
            if len(self._files) <= _FEW_NAMES:
                self._names = self._files.to_pylist()
        optional = {
            name: one_array(table[name])
            for name in _OPTIONAL
            if name in table.column_names and table[name].null_count < table.num_rows
        }
        self._crcs: memoryview | None = None
        if "crc32c" in optional and (validity(optional["crc32c"]) | validity(inline)).all():
            self._crcs = to_numpy(optional.pop("crc32c")).data
        self._optional = list(optional.items())

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        names = 0 if self._names is None else self._files.nbytes + 60 * len(self._names)
        each = 16 if self._coord_range is None else len(self._coord_range[1])
        places = len(self._kept_coords.data) + len(self) * (each + 4)  # as if they were decoded
        return int(self._values.nbytes) + places + names + 8_000

    def __len__(self) -> int:
        count: int = self._values.num_rows
        return count

    @lazy
    def _coords(self) -> pa.Array:
        return manifest.decode_coords(self._kept_coords)

    @lazy
    def _places(self) -> tuple[memoryview, memoryview]:
        offsets, data = offsets_and_data(self._coords)
        return offsets.data, data.data

    @property
    def table(self) -> pa.Table:
        """The rows, as manifests are decoded; without ``inline_data`` where no chunk is inline."""
        return self._values.add_column(_COORD, CHUNK_SCHEMA.field(_COORD), self._coords)

    def coord_at(self, row: int) -> bytes:
        """Encoded coordinate of a row."""
        offsets, data = self._places
        return bytes(data[offsets[row] : offsets[row + 1]])

    def is_part_of(self, entry: InventoryEntry) -> bool:
        """Whether these rows are a run of a dense entry's, to judge by the first and the last of them."""
        key = entry.row, entry.extent
        known = self._runs.get(key)
        if known is None:
            known = self._runs[key] = self._begins_and_ends_in(entry)
        return known

    def _begins_and_ends_in(self, entry: InventoryEntry) -> bool:
        first = self._start - entry.row
        last = first + len(self) - 1
        if first < 0 or last >= entry.row_count:
            return False
        ends = point_at(entry.extent, first), point_at(entry.extent, last)
        return tuple(map(coords.encode_one, ends)) == self._coord_range

    def find(self, coord: bytes, start: int, stop: int) -> int | None:
        """Find the row of a coordinate among sorted rows of one array."""
        offsets, data = self._places
        low, high = start, stop
        while low < high:
            middle = (low + high) >> 1
            if bytes(data[offsets[middle] : offsets[middle + 1]]) < coord:
                low = middle + 1
            else:
                high = middle
        return low if low < stop and self.coord_at(low) == coord else None

    def wrong(self, fact: str) -> CorruptFileError:
        """Say that this is not what a structure file promised."""
        return wrong_file(self.key, fact)

    def check_owner(self, array_id: int, start: int, stop: int) -> None:
        """Check that rows are an array's, as its snapshot says."""
        if self._id_range == (array_id, array_id):
            return
        if (np.frombuffer(self._ids, np.uint32)[start:stop] != array_id).any():
            raise self.wrong(rows_not_of(array_id))

    def check_absence(self, array_id: int, rank: int, start: int, stop: int) -> None:
        """Check what it rests on that a chunk is not there: its array's rows are these alone, sound and sorted."""
        self.check_owner(array_id, start, stop)
        if (
            array_id in self._ids[max(start - 1, 0) : start]
            or array_id in self._ids[stop : stop + 1]
        ):
            raise self.wrong(f"it has more rows of array {array_id} than its snapshot says")
        if not self._is_sorted:
            raise self.wrong("its rows are not sorted")
        if array_id not in self._sound:
            try:
                coords.decode(self._coords.slice(start, stop - start), rank)
            except CorruptFileError as error:
                raise self.wrong(str(error)) from error
            self._sound.add(array_id)

    @lazy
    def _is_sorted(self) -> bool:
        ids = np.frombuffer(self._ids, np.uint32)
        words = coords.as_words(self._coords)
        if words is None:
            texts = self._coords.to_pylist()
            rising = np.fromiter(map(lt, texts, texts[1:]), np.bool_, len(texts) - 1)
        else:
            rising = words[1:] > words[:-1]
        return bool(((ids[1:] > ids[:-1]) | (ids[1:] == ids[:-1]) & rising).all())

    def ref_at(self, row: int, array_id: int) -> ChunkRef:
        """Read the reference of a row, which must be the array's."""
        if self._ids[row] != array_id:
            raise self.wrong(rows_not_of(array_id))
        length = self._lengths[row]
        if self._inline is not None:
            inline = self._inline[row].as_py()
            if inline is not None:
                if len(inline) != length:
                    raise wrong_file(self.key, f"a chunk of {length} bytes has {len(inline)} there")
                return ChunkRef(inline, None, 0, length)
        number = row if self._codes is None else self._codes[row]
        file = self._files[number].as_py() if self._names is None else self._names[number]
        if not (is_id(file) or is_virtual(file or "")):
            raise wrong_file(self.key, f"row {row} names the chunk file {file!r}, which is no id")
        crc = None if self._crcs is None else self._crcs[row]
        if not self._optional:
            return ChunkRef(None, file, self._starts[row], length, None, None, crc)
        extra: dict[str, Any] = {"crc32c": crc}
        for name, column in self._optional:
            if name == "last_modified":
                extra[name] = int(to_numpy(column)[row]) if column[row].is_valid else None
            else:
                extra[name] = column[row].as_py()
        return ChunkRef(None, file, self._starts[row], length, **extra)


def rows_not_of(array_id: int) -> str:
    """Say what is wrong with rows of another array."""
    return f"it has no rows of array {array_id} where its snapshot says so"


def wrong_file(key: str, fact: str) -> CorruptFileError:
    """Say that a manifest and a snapshot contradict each other."""
    return CorruptFileError(
        f"{key} does not go with the snapshot that refers to it: {fact}. Restore the files from a copy, "
        f"or open an earlier snapshot.",
        key=key,
    )
