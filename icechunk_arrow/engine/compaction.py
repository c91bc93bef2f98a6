"""Gathering small chunk files into larger ones, as one commit.

Owns which files are worth it, which new file each of their byte ranges goes to, and the copying. References
of the same bytes stay references of the same bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.checksums import BLOCK_BYTES, SUM_BYTES, crc32c
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    HAS_NATIVE,
    STATISTICS,
    columns_of,
    keep_rows,
    kinds_of_rows,
    known_statistics,
)
from icechunk_arrow.core.columns import (
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.conflict import ConflictDetector
from icechunk_arrow.core.manifest_columns import COLUMNS, About
from icechunk_arrow.engine.bulk import BulkReferences, BulkSettings
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.segments import check_rows
from icechunk_arrow.errors import ConflictError, CorruptFileError, InvalidInputError
from icechunk_arrow.formats.layout import chunk_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import Node
    from icechunk_arrow.engine.branch_session import BranchSession
    from icechunk_arrow.engine.context import Context

__all__ = ["ChunkCompaction", "compact_chunks"]

_RANGE = ("chunk_file", "offset", "length")
_OF_BYTES = tuple(
    each.name for each in COLUMNS if each.about is About.BYTES and each.name in CHUNK_SCHEMA.names
)
"""What stays right where the same bytes stand elsewhere; so do statistics."""
_SUMS = ("crc32c", "sums_crc32c")
"""The checksums of a chunk's bytes, and of the sums of blocks behind them."""
_COPIERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCompaction:
    """What gathering chunk files did, or would do."""

    snapshot_id: str | None
    """The commit; None for a dry run, and where there is nothing to gather."""
    files_before: int
    """Small chunk files that the snapshot referred to."""
    files_after: int
    """Chunk files that hold the same chunks now."""
    chunk_count: int
    """References that were pointed to the new files."""
    size_bytes: int
    """Bytes that were copied."""


_NOTHING = ChunkCompaction(
    snapshot_id=None, files_before=0, files_after=0, chunk_count=0, size_bytes=0
)


class _Copy(Struct, frozen=True, kw_only=True, eq=False):
    """Which byte ranges of which files go where: one row per range, in the order of the new files."""

    ranges: pa.Table
    """chunk_file, offset, length; no range twice. The checksums of the chunk and of the sums behind it, where there
    are any; ``stored`` is how many bytes go, with these sums."""
    targets: npt.NDArray[np.int64]
    """Number of the new file of each range."""
    offsets: npt.NDArray[np.uint64]
    """Where each range begins in it."""


def compact_chunks(
    context: Context,
    session: BranchSession,
    message: str,
    *,
    properties: Mapping[str, Any],
    smaller_than_bytes: int | None,
    dry_run: bool,
) -> ChunkCompaction:
    """Gather the chunk files below a size that the session's snapshot refers to."""
    config = context.config
    below = config.chunk_file_size_bytes // 8 if smaller_than_bytes is None else smaller_than_bytes
    if not 0 < below <= config.chunk_file_size_bytes:
        raise InvalidInputError(
            f"smaller_than_bytes must lie between 1 and chunk-file-size-bytes, which is "
            f"{config.chunk_file_size_bytes}, not {below}"
        )
    nodes = [session.find_node(path) for path in session.node_paths()]
    arrays = [node for node in nodes if node is not None and node.is_array]
    small = _small_files(context, arrays, below)
    rows = [(node, part) for node in arrays for part in _rows_in(context, node, small)]
    copy = _plan_copy([part for _, part in rows], small, config.chunk_file_size_bytes)
    files_after = int(copy.targets[-1]) + 1 if len(copy.targets) else 0
    report = ChunkCompaction(
        snapshot_id=None,
        files_before=len(small),
        files_after=files_after,
        chunk_count=sum(part.num_rows for _, part in rows),
        size_bytes=int(to_numpy(copy.ranges["stored"]).sum()),
    )
    if files_after >= len(small):
        return _NOTHING
    if dry_run:
        return report
    names = _copy(context, copy)
    session.place_only()
    _point(context, session, rows, copy, names)
    snapshot_id = _commit(session, message, properties)
    if snapshot_id is None:
        return _NOTHING
    return ChunkCompaction(
        snapshot_id=snapshot_id,
        files_before=report.files_before,
        files_after=report.files_after,
        chunk_count=report.chunk_count,
        size_bytes=report.size_bytes,
    )


def _commit(session: BranchSession, message: str, properties: Mapping[str, Any]) -> str | None:
    """Commit, without the chunks that others touched meanwhile; None where they touched all of them."""
    while session.has_uncommitted_changes:
        try:
            return session.commit(message, properties)
        except ConflictError:
            session.rebase(ConflictDetector())
    return None


def _native_rows(context: Context, node: Node) -> Iterator[pa.Table]:
    """Read the references of an array's native chunks, a manifest at a time."""
    for entry in node.inventories:
        if not entry.flags & HAS_NATIVE:
            continue
        rows = context.files.read_manifest(entry.manifest).slice(entry.row, entry.row_count)
        check_rows(rows, node.id, entry)
        yield keep_rows(rows, kinds_of_rows(rows) == HAS_NATIVE)


def _small_files(context: Context, arrays: list[Node], below: int) -> pa.Array:
    """Find files of small chunks whose live bytes are few, in the order in which arrays use them first."""
    parts = []
    for node in arrays:
        for rows in _native_rows(context, node):
            sums = rows.select(["chunk_file", "length"]).group_by("chunk_file", use_threads=False)
            parts.append(sums.aggregate([("length", "sum"), ("length", "count")]))
    if not parts:
        return from_values([], pa.string())
    table = pa.concat_tables(parts).group_by("chunk_file", use_threads=False)
    table = table.aggregate([("length_sum", "sum"), ("length_count", "sum")])
    size, count = to_numpy(table["length_sum_sum"]), to_numpy(table["length_count_sum"])
    packed = context.config.packed_chunk_threshold_bytes
    chosen = (size < below) & (size < packed * count.astype(np.uint64))
    return one_array(table["chunk_file"]).filter(from_numpy(chosen, pa.bool_()))


def _rows_in(context: Context, node: Node, files: pa.Array) -> Iterator[pa.Table]:
    if not len(files):
        return
    for rows in _native_rows(context, node):
        part = rows.filter(pc.is_in(rows["chunk_file"], value_set=files))
        if part.num_rows:
            statistics = [STATISTICS.name] if any(known_statistics(part)) else []
            yield part.select(["coord", *_RANGE, *_OF_BYTES, *statistics])


def _plan_copy(parts: list[pa.Table], files: pa.Array, file_bytes: int) -> _Copy:
    """Put each byte range once into a new file: file after file, in the order of their first use."""
    empty = pa.Table.from_pydict({"chunk_file": files.slice(0, 0)})
    if not parts:
        ranges = pa.Table.from_arrays(
            [
                empty["chunk_file"],
                *(from_values([], pa.uint64()) for _ in _RANGE[1:]),
                *(from_values([], pa.uint32()) for _ in _SUMS),
                from_values([], pa.uint64()),
            ],
            names=[*_RANGE, *_SUMS, "stored"],
        )
        return _Copy(ranges=ranges, targets=np.empty(0, np.int64), offsets=np.empty(0, np.uint64))
    all_rows = pa.concat_tables([part.select([*_RANGE, *_SUMS]) for part in parts])
    grouped = all_rows.group_by(list(_RANGE), use_threads=False)
    ranges = grouped.aggregate([(name, "max") for name in _SUMS])
    ranges = ranges.rename_columns([*_RANGE, *_SUMS])
    place = pc.index_in(ranges["chunk_file"], value_set=files)
    order = np.lexsort([to_numpy(ranges["offset"]), to_numpy(place.cast(pa.int64()))])
    ranges = ranges.take(indices(order)).combine_chunks()
    stored = _stored(to_numpy(ranges["length"]), validity(ranges["sums_crc32c"]))
    ranges = ranges.append_column("stored", from_numpy(stored, pa.uint64()))
    before = np.cumsum(stored) - stored
    targets = (before // np.uint64(file_bytes)).astype(np.int64)
    targets = np.unique(targets, return_inverse=True)[1]  # none is left out where a chunk is large
    first = np.flatnonzero(np.r_[True, targets[1:] != targets[:-1]])
    return _Copy(ranges=ranges, targets=targets, offsets=before - before[first][targets])


def _stored(
    length: npt.NDArray[np.uint64], has_sums: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint64]:
    """How many bytes chunks take in their files, with the sums of their blocks where there are any."""
    blocks = -(-length.astype(np.int64) // BLOCK_BYTES)
    return length + np.where(has_sums, SUM_BYTES * blocks, 0).astype(np.uint64)


def _copy(context: Context, copy: _Copy) -> list[str]:
    """Write the new files; give their names."""
    first = np.flatnonzero(np.r_[True, copy.targets[1:] != copy.targets[:-1]])
    bounds = [*first.tolist(), len(copy.targets)]
    names = [new_id() for _ in first]
    storage = context.storage

    def write(number: int) -> None:
        start, stop = bounds[number], bounds[number + 1]
        storage.put(chunk_key(names[number]), list(_pieces(context, copy, start, stop)))

    if storage.capabilities.fast:
        for number in range(len(names)):
            write(number)
    else:
        with ThreadPoolExecutor(_COPIERS) as pool:
            list(pool.map(write, range(len(names))))
    return names


def _pieces(context: Context, copy: _Copy, start: int, stop: int) -> Iterator[bytes]:
    """Read neighbouring ranges of one file with one request."""
    part = copy.ranges.slice(start, stop - start)
    files = one_array(part["chunk_file"])
    codes = to_numpy(files.dictionary_encode().indices)
    offset, stored = to_numpy(part["offset"]), to_numpy(part["stored"])
    ends = offset + stored
    breaks = np.r_[True, (codes[1:] != codes[:-1]) | (offset[1:] != ends[:-1])]
    heads = np.flatnonzero(breaks)
    tails = np.r_[heads[1:], len(offset)] - 1
    for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
        key, low, high = chunk_key(files[head].as_py()), int(offset[head]), int(ends[tail])
        data = context.files.read_range(key, low, high - low)
        if len(data) != high - low:
            raise CorruptFileError(
                f"{key} is cut: chunks should stand in it up to byte {high}. Nothing was changed; restore "
                f"the file from a copy.",
                key=key,
            )
        _check_sums(part.slice(head, tail + 1 - head), low, memoryview(data), key)
        yield data


def _check_sums(ranges: pa.Table, low: int, data: memoryview, key: str) -> None:
    """Refuse to copy what is not what was written: the bytes of some ranges, from ``low`` of their file on."""
    columns = ("offset", "length", "stored", *_SUMS)
    for offset, length, stored, crc, sums_crc in zip(
        *(ranges[name].to_pylist() for name in columns), strict=True
    ):
        start = offset - low
        is_sound = crc is None or crc32c(data[start : start + length]) == crc
        if is_sound and sums_crc is not None:
            is_sound = crc32c(data[start + length : start + stored]) == sums_crc
        if not is_sound:
            raise CorruptFileError(
                f"{key} is damaged: the chunk of {length} bytes at {offset} does not match its checksum. Nothing "
                f"was changed; restore the file from a copy.",
                key=key,
            )


def _point(
    context: Context,
    session: BranchSession,
    rows: list[tuple[Node, pa.Table]],
    copy: _Copy,
    names: list[str],
) -> None:
    """Stage references to the new files."""
    targets = from_values(names, pa.string()).take(indices(copy.targets))
    moved = pa.Table.from_pydict(
        {
            **{name: copy.ranges[name] for name in _RANGE},
            "new_file": targets,
            "new_offset": from_numpy(copy.offsets, pa.uint64()),
        }
    )
    with (
        ManifestWriter(context.storage, new_id) as writer,
        BulkReferences(writer, session.layout_of, last_wins=False, settings=BulkSettings()) as bulk,
    ):
        described = any(STATISTICS.name in part.column_names for _, part in rows)
        more = [STATISTICS.name] if described else []
        for node, part in rows:
            number = from_numpy(np.arange(part.num_rows), pa.int64())
            joined = (
                part.select(list(_RANGE))
                .append_column("row", number)
                .join(moved, keys=list(_RANGE), join_type="inner", use_threads=False)
            )
            joined = joined.take(pc.sort_indices(joined["row"])).combine_chunks()
            columns = columns_of(part, ("coord", "length", *_OF_BYTES, *more))
            columns |= {
                "chunk_file": one_array(joined["new_file"]),
                "offset": one_array(joined["new_offset"]),
            }
            batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
            view = session.get_array(node.path)
            index = coords.decode(columns["coord"], len(view.grid.chunk_counts))
            bulk.add(node.path, view, batch, index, np.arange(len(index)))
            bulk.end_slice(len(index), batch.nbytes)
        staged = bulk.finish()
    session.stage(staged)
