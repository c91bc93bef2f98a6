"""Sorting more references than memory holds: keys, runs on local disk, and merging.

Owns the order in which the references of one array are gathered (one sortable key per row) and the spill file.
Knows neither sessions nor manifests.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core.columns import from_numpy, indices, to_numpy
from icechunk_arrow.core.splits import box_numbers, box_of, keeps_order
from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage.forked_children import refuse_child

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

__all__ = ["GridOrder", "KeyedRows", "Spill", "concat", "in_order", "is_rising", "merge"]

_WORD = 1 << 64
_KEY, _NUMBER = "key", "number"


class KeyedRows(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of one array."""

    columns: pa.RecordBatch
    keys: npt.NDArray[Any]
    """Where each belongs: numbers or byte strings, compared with one another."""
    numbers: npt.NDArray[np.int64]
    """Which rows of the input they are."""

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> KeyedRows:
        """Give some neighbouring rows, without copying."""
        return KeyedRows(
            columns=self.columns.slice(start, stop - start),
            keys=self.keys[start:stop],
            numbers=self.numbers[start:stop],
        )

    def take(self, order: npt.NDArray[np.int64]) -> KeyedRows:
        """Copy rows in another order."""
        return KeyedRows(
            columns=self.columns.take(indices(order)),
            keys=self.keys[order],
            numbers=self.numbers[order],
        )

    def copied(self) -> KeyedRows:
        """Let go of everything larger that these rows are a part of."""
        return self.take(np.arange(len(self)))


def concat(parts: Sequence[KeyedRows]) -> KeyedRows:
    """Put rows one after the other."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches([each.columns for each in parts]).combine_chunks()
    (columns,) = table.to_batches()
    return KeyedRows(
        columns=columns,
        keys=np.concatenate([each.keys for each in parts]),
        numbers=np.concatenate([each.numbers for each in parts]),
    )


def is_rising(keys: npt.NDArray[Any]) -> bool:
    """Whether every key is greater than the one before."""
    return bool((keys[1:] > keys[:-1]).all())


def in_order(rows: KeyedRows) -> KeyedRows:
    """Sort by key; rows of one key stay as they were."""
    if is_rising(rows.keys):
        return rows
    return rows.take(np.argsort(rows.keys, kind="stable"))


class GridOrder:
    """The order of an array's chunks in which they are gathered: box after box, and within each in C order.

    A box is what one manifest may hold. Where boxes keep the order of coordinates, that is plain C order. Keys
    are 64-bit numbers where the grid allows, and byte strings where it is too large.
    """

    def __init__(self, counts: tuple[int, ...], limit: int, axis: int) -> None:
        self.counts = counts
        self._axis = axis
        self._box = box_of(counts, limit, axis)
        self.by_coordinate = keeps_order(self._box, counts, axis)
        """Whether this is the order of coordinates."""
        self._box_volume = _volume(self._box)
        around = [-(-n // size) * size for n, size in zip(counts, self._box, strict=True)]
        self._narrow = _volume(counts if self.by_coordinate else around) < _WORD
        cut = [d for d, (n, size) in enumerate(zip(counts, self._box, strict=True)) if size < n]
        self._in_rows = self._narrow and (
            not self.by_coordinate or not cut or _volume(counts[: cut[-1]]) == 1
        )
        """Whether boxes follow one another in the numbers: then one is told by a division."""

    def keys(self, index: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Give the keys of coordinates, n × dimensions."""
        boxes = None if self.by_coordinate else self._box_numbers(index)
        if not self._narrow:
            words = [*([] if boxes is None else [boxes]), *index.T]
            return _as_bytes(words, len(index))
        if boxes is None:
            return _place_in(index, self.counts)
        inner = index % np.array(self._box, np.uint64)
        return boxes * np.uint64(self._box_volume) + _place_in(inner, self._box)

    def boxes(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Tell in which box each of some keys lies.

        Why that is right: a key is the place of a chunk in the order of gathering. Where boxes are numbered first
        (``boxes * volume + place within``), or follow one another in plain C order because nothing but the slowest
        axis that is longer than one is cut, all keys of a box are neighbours, and one division tells which it is.
        Where keys are bytes and boxes do not keep the order of coordinates, the number of the box is the first
        word of the key. In all other cases the key is the place of the chunk in C order, or its indices as words,
        and the box follows from the indices as when the key was made.
        """
        if self._in_rows:
            boxes: npt.NDArray[np.uint64] = keys // np.uint64(self._box_volume)
            return boxes
        if not self.by_coordinate:
            return _words(keys)[:, 0]
        if not self._narrow:
            return self._box_numbers(_words(keys))
        index = np.empty((len(self.counts), len(keys)), np.uint64)
        rest = keys
        for d in range(len(self.counts) - 1, 0, -1):
            whole = rest // np.uint64(self.counts[d])  # four times as fast as divmod
            index[d] = rest - whole * np.uint64(self.counts[d])
            rest = whole
        if self.counts:
            index[0] = rest
        return self._box_numbers(index.T)

    def _box_numbers(self, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return box_numbers(index, self.counts, self._box, self._axis)


def _volume(counts: Iterable[int]) -> int:
    total = 1
    for count in counts:
        total *= max(count, 1)
    return total


def _place_in(index: npt.NDArray[np.uint64], counts: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Number coordinates in C order."""
    place = np.zeros(len(index), np.uint64)
    for d, count in enumerate(counts):
        if d:
            place *= np.uint64(count)
        place += index[:, d]
    return place


def _as_bytes(words: Sequence[npt.NDArray[np.uint64]], count: int) -> npt.NDArray[Any]:
    wide = np.empty((count, len(words)), ">u8")
    for position, word in enumerate(words):
        wide[:, position] = word
    return wide.view(f"S{8 * len(words)}").reshape(count)


def _words(keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    wide = np.ascontiguousarray(keys).view(">u8").reshape(len(keys), -1)
    return wide.astype(np.uint64)


def merge(runs: Sequence[Iterator[KeyedRows]]) -> Iterator[KeyedRows]:
    """Unite runs, each in order and without a key twice, into rows in order.

    Rows of one key come together and in the order of the runs. Of each run one batch is held at a time.

    Why that is right: what a run still has behind its batch is greater than the batch's last key. So up to the
    least of these last keys all rows of all runs are at hand, to be sorted and given out. The sort is stable and
    the parts stand in the order of the runs, so rows of one key stay in that order.
    """
    heads = [(rows, run) for run in runs if (rows := next(run, None)) is not None]
    while heads:
        if len(heads) == 1:
            rows, run = heads[0]
            yield rows
            yield from run
            return
        end = min((rows.keys[-1:] for rows, _ in heads), key=lambda last: last[0])
        parts, left = [], []
        for rows, run in heads:
            stop = int(np.searchsorted(rows.keys, end, side="right")[0])
            if stop:
                parts.append(rows.slice(0, stop))
            rest = rows.slice(stop, len(rows)) if stop < len(rows) else next(run, None)
            if rest is not None:
                left.append((rest, run))
        heads = left
        yield in_order(concat(parts))


class Spill(Struct):
    """A temporary file that holds sorted runs: each batch is a small Arrow stream somewhere in it.

    The file has no name where the system can do that, so nothing stays behind whatever happens.
    """

    batch_rows: int
    _file: IO[bytes] | None = None
    _end: int = field(default=0)
    _process: int = field(default_factory=os.getpid)
    """Whose file it is: a child that was forked shares it, and would write between what its parent does."""

    def write(self, rows: KeyedRows) -> list[tuple[int, int]]:
        """Write rows in order; give the place of each batch."""
        places = []
        refuse_child(self._process, "sorted references")
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="icechunk-arrow-")  # noqa: SIM115
            for start in range(0, len(rows), self.batch_rows):
                stop = min(start + self.batch_rows, len(rows))
                data = _encode(rows.slice(start, stop))
                self._file.seek(self._end)
                self._file.write(data)
                places.append((self._end, len(data)))
                self._end += len(data)
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"references that are out of order are sorted on disk, and after {self._end} bytes "
                f"{tempfile.tempdir or 'no temporary folder'} took no more: {error}. Set TMPDIR to a folder "
                f"with more room, or give the references in the order of their coordinates."
            ) from error
        return places

    def read(self, places: Iterable[tuple[int, int]]) -> Iterator[KeyedRows]:
        """Read batches back, one at a time."""
        assert self._file is not None
        for start, length in places:
            refuse_child(self._process, "sorted references")
            try:
                self._file.seek(start)
                data = self._file.read(length)
            except OSError as error:
                raise StorageError(
                    f"what was sorted on disk cannot be read back from {tempfile.tempdir}: {error}. Set "
                    f"TMPDIR to another folder, or give the references in the order of their coordinates."
                ) from error
            assert len(data) == length
            yield _decode(data)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written is of no use any more
                self._file.close()
            self._file = None


def _encode(rows: KeyedRows) -> pa.Buffer:
    keys = rows.keys
    if keys.dtype == np.uint64:
        key = from_numpy(keys, pa.uint64())
    else:
        data = pa.py_buffer(np.ascontiguousarray(keys).view(np.uint8))
        key = pa.Array.from_buffers(pa.binary(keys.dtype.itemsize), len(keys), [None, data])
    batch = pa.RecordBatch.from_arrays(
        [*rows.columns.columns, key, from_numpy(rows.numbers, pa.int64())],
        names=[*rows.columns.schema.names, _KEY, _NUMBER],
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _decode(data: bytes) -> KeyedRows:
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    *columns, key, number = batch.columns
    if key.type == pa.uint64():
        keys = to_numpy(key)
    else:
        width = key.type.byte_width
        keys = np.frombuffer(key.buffers()[1], f"S{width}")[key.offset : key.offset + len(key)]
    return KeyedRows(
        columns=pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:-2]),
        keys=keys,
        numbers=to_numpy(number),
    )
