"""Chunks that the caller encoded already, as columns of bytes: into chunk files or the manifest, and staged.

Owns how a column of bytes is laid into files. Order, duplicates and manifests are the business of ``engine.bulk``.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.columns import from_numpy, from_values, indices, validity
from icechunk_arrow.engine.bulk import BulkReferences, BulkSettings
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.references import Values
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from icechunk_arrow.engine.payloads import PayloadWriter, Sealed
    from icechunk_arrow.engine.references import Faults
    from icechunk_arrow.engine.session import BaseSession

    TakeChunks = Callable[[str, npt.NDArray[np.uint64], pa.LargeBinaryArray], None]

__all__ = ["encoded_chunks", "staging_in_order"]

_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def encoded_chunks(writer: PayloadWriter) -> Values:
    """Say what rows with a column ``data`` mean: the bytes of a chunk as its array's codecs make them."""
    return Values(needed=("data",), optional=(), check=partial(_store, writer))


def _store(writer: PayloadWriter, batch: pa.RecordBatch, faults: Faults) -> dict[str, pa.Array]:
    column = batch.column("data")
    if not _is_bytes(column.type):
        raise InvalidInputError(f"the column 'data' must hold bytes, not {column.type}")
    if column.null_count:
        faults.note(~validity(column), lambda _: "the data is missing")
    faults.refuse()  # nothing is written of what will not be staged
    return _columns_of(writer, column.cast(pa.large_binary()))


@contextmanager
def staging_in_order(session: BaseSession) -> Iterator[TakeChunks]:
    """Give a function that takes chunks which come in the order of their coordinates, array by array.

    It is given the path, the chunks' places, n × dimensions, and their bytes. What it was given is staged when the
    block ends well.
    """
    writer = ManifestWriter(session._context.storage, new_id)  # noqa: SLF001 -- as the session's own bulk writes
    bulk = BulkReferences(writer, session.layout_of, last_wins=False, settings=BulkSettings())

    def take(path: str, places: npt.NDArray[np.uint64], data: pa.LargeBinaryArray) -> None:
        columns = {"coord": coords.encode(places), **_columns_of(session.payload_writer, data)}
        rows = pa.RecordBatch.from_pydict(columns)
        bulk.add(path, session.get_array(path), rows, places, np.arange(len(places)))
        bulk.end_slice(len(places), rows.nbytes)

    with writer, bulk:
        yield take
        session.stage(bulk.finish())


def _columns_of(writer: PayloadWriter, data: pa.LargeBinaryArray) -> dict[str, pa.Array]:
    """Lay chunks into files, or keep them where they are small; give the columns of their references."""
    lengths = np.diff(_offsets(data))
    inline = lengths <= writer.inline_limit
    large = ~inline & (lengths >= writer.packed_limit)
    names: list[str] = []
    codes = np.zeros(len(data), np.int64)
    places = np.zeros(len(data), np.uint64)
    sums = _Sums(len(data))
    for chosen, most_bytes in ((large, 0), (~inline & ~large, writer.file_size)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            laid = _lay(writer, data, rows, most_bytes, len(names))
            codes[rows], places[rows] = laid.files, laid.places
            sums.take(rows, laid.sealed)
            names += laid.names
    return {
        "chunk_file": _files(names, codes, ~inline),
        "offset": from_numpy(places, pa.uint64(), ~inline),
        "length": from_numpy(lengths.astype(np.uint64), pa.uint64()),
        "inline_data": _only(data, inline),
        **sums.columns(),
    }


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


def _offsets(data: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(data.buffers()[1], np.int64)[data.offset : data.offset + len(data) + 1]


class _Laid(NamedTuple):
    """Rows in files: the names of these, and each row's file and offset."""

    names: list[str]
    files: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint64]
    sealed: Sealed


class _Sums:
    """Checksums of rows as columns, the same ones whatever the rows are."""

    def __init__(self, count: int) -> None:
        self._crcs, self._of_sums = np.zeros((2, count), np.uint32)
        self._known, self._has_sums = np.zeros((2, count), np.bool_)

    def take(self, rows: npt.NDArray[np.int64], sealed: Sealed) -> None:
        """Take those of some rows."""
        if sealed.crcs is not None:
            self._known[rows], self._crcs[rows] = True, sealed.crcs
        if sealed.sums:
            self._has_sums[rows[list(sealed.sums)]] = True
            self._of_sums[rows] = sealed.sums_crcs

    def columns(self) -> dict[str, pa.Array]:
        """Give them."""
        return {
            "crc32c": from_numpy(self._crcs, pa.uint32(), self._known),
            "sums_crc32c": from_numpy(self._of_sums, pa.uint32(), self._has_sums),
        }


def _lay(
    writer: PayloadWriter,
    data: pa.Array,
    rows: npt.NDArray[np.int64],
    most_bytes: int,
    first: int,
) -> _Laid:
    """Put some rows one behind the other into files."""
    chosen = data if len(rows) == len(data) else data.take(indices(rows))
    offsets = _offsets(chosen)
    payload = memoryview(chosen.buffers()[2])
    views = [payload[a:b] for a, b in pairwise(offsets.tolist())]
    sealed = writer.sealed(views)
    ends = np.append(0, np.cumsum(sealed.stored(np.diff(offsets))))
    names: list[str] = []
    files, places = np.empty(len(rows), np.int64), np.empty(len(rows), np.uint64)
    start = 0
    while start < len(rows):
        # the row that reaches the size of a file is its last one
        stop = int(np.searchsorted(ends, ends[start] + max(most_bytes, 1), side="left"))
        stop = min(max(stop, start + 1), len(rows))
        files[start:stop] = first + len(names)
        places[start:stop] = ends[start:stop] - ends[start]
        together = payload[int(offsets[start]) : int(offsets[stop])]
        pieces = sealed.pieces(views, start, stop) if sealed.sums else [together]
        names.append(writer.write_file(pieces))
        start = stop
    return _Laid(names, files, places, sealed)


def _files(
    names: list[str], codes: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]
) -> pa.Array:
    if not names:
        return pa.nulls(len(codes), pa.string())
    coded = from_values(names, pa.string()).take(indices(codes))
    if valid.all():
        return coded
    return coded.take(from_numpy(np.arange(len(codes)), pa.int64(), valid))


def _only(data: pa.Array, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    if not chosen.any():
        return pa.nulls(len(data), pa.binary())
    rows = from_numpy(np.arange(len(data)), pa.int64(), chosen)
    return data.take(rows).cast(pa.binary())
