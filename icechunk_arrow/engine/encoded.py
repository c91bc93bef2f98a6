"""Chunks that somebody encoded already, as columns of bytes: into chunk files or the manifest, and staged.

Owns how a column of bytes is laid into files. Order, duplicates and manifests are the business of ``engine.bulk``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, from_values, indices, validity
from icechunk_arrow.engine.references import Values
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    from icechunk_arrow.engine.payloads import PayloadWriter
    from icechunk_arrow.engine.references import Faults

__all__ = ["encoded_chunks"]

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
    data = column.cast(pa.large_binary())
    lengths = np.diff(_offsets(data))
    inline = lengths <= writer.inline_limit
    large = ~inline & (lengths >= writer.packed_limit)
    names: list[str] = []
    codes = np.zeros(len(data), np.int64)
    places = np.zeros(len(data), np.uint64)
    for chosen, most_bytes in ((large, 0), (~inline & ~large, writer.file_size)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            files, codes[rows], places[rows] = _lay(writer, data, rows, most_bytes, len(names))
            names += files
    return {
        "chunk_file": _files(names, codes, ~inline),
        "offset": from_numpy(places, pa.uint64(), ~inline),
        "length": from_numpy(lengths.astype(np.uint64), pa.uint64()),
        "inline_data": _only(data, inline),
        **writer.checksums(data, ~inline),
    }


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


def _offsets(data: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(data.buffers()[1], np.int64)[data.offset : data.offset + len(data) + 1]


def _lay(
    writer: PayloadWriter,
    data: pa.Array,
    rows: npt.NDArray[np.int64],
    most_bytes: int,
    first: int,
) -> tuple[list[str], npt.NDArray[Any], npt.NDArray[Any]]:
    """Put some rows one behind the other into files; give names, and each row's file and offset."""
    chosen = data if len(rows) == len(data) else data.take(indices(rows))
    offsets = _offsets(chosen)
    payload = memoryview(chosen.buffers()[2])
    names: list[str] = []
    files, places = np.empty(len(rows), np.int64), np.empty(len(rows), np.uint64)
    start = 0
    while start < len(rows):
        # the row that reaches the size of a file is its last one
        stop = int(np.searchsorted(offsets, offsets[start] + max(most_bytes, 1), side="left"))
        stop = min(max(stop, start + 1), len(rows))
        files[start:stop] = first + len(names)
        places[start:stop] = offsets[start:stop] - offsets[start]
        names.append(writer.write_file(payload[int(offsets[start]) : int(offsets[stop])]))
        start = stop
    return names, files, places


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
