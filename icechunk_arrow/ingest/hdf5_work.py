"""What executors do with HDF5 files: look at them, refer to their chunks, rewrite their values.

Owns opening files and naming them in errors. Each class is sent to executors; none knows Spark.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import h5py
import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow.core.cf_time import shift_between
from icechunk_arrow.core.cf_values import decode_values, missing_values
from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.errors import (
    CorruptFileError,
    IcechunkArrowError,
    InvalidInputError,
    SourceChangedError,
)
from icechunk_arrow.ingest.agreement import compare_files
from icechunk_arrow.ingest.hdf5 import (
    FileFacts,
    ScanOptions,
    find_variable,
    packing_of,
    read_values,
    scan_file,
)
from icechunk_arrow.ingest.hdf5_chunks import chunk_places
from icechunk_arrow.ingest.zarr_types import quiet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from icechunk_arrow.ingest.hdf5_chunks import ChunkPlaces
    from icechunk_arrow.storage.source_files import SourceFile, SourceFiles

__all__ = [
    "SCAN_SCHEMA",
    "ReferChunks",
    "ReferTarget",
    "Scan",
    "WriteTarget",
    "WriteValues",
    "scan_url",
]

SCAN_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("location", pa.string()),
        ("size_bytes", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.int64()),
        ("lengths", pa.list_(pa.int64())),
        ("chunk_count", pa.int64()),
        ("layouts", pa.list_(pa.string())),
        ("packings", pa.list_(pa.string())),
        ("decoded", pa.list_(pa.string())),
        ("units", pa.list_(pa.string())),
        ("attributes", pa.list_(pa.string())),
        ("error", pa.string()),
        ("reason", pa.string()),
    ]
)
"""One row per file: what it is, how long along the dimension, and how it differs from the first.

``decoded`` is the type of each of ``packings`` once it is decoded.
"""
_LISTS = ("layouts", "packings", "decoded", "units", "attributes")
_FLUSH_ROWS = 1 << 20
_OPEN_FILES = 4


@contextmanager
def _opened(files: SourceFiles, url: str) -> Iterator[h5py.File]:
    """Open a file; whatever goes wrong with it is said with its name."""
    try:
        with files.opened(url) as handle, h5py.File(handle, "r") as file:
            yield file
    except IcechunkArrowError as error:
        if url in error.message:
            raise
        raise type(error)(f"{url}: {error.message}") from error
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{url} cannot be read as HDF5 or NetCDF-4: {error}") from error


def scan_url(files: SourceFiles, url: str, options: ScanOptions) -> tuple[SourceFile, FileFacts]:
    """Look at one file."""
    facts = files.facts(url)
    with _opened(files, url) as file:
        return facts, scan_file(file, options)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Compares files with the first: batches of ``position`` and ``location`` in, ``SCAN_SCHEMA`` out."""

    files: SourceFiles
    options: ScanOptions
    first: FileFacts
    combine_attrs: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look at every file of some batches."""
        for batch in batches:
            rows = [
                self._row(position, location)
                for position, location in zip(
                    batch.column("position").to_pylist(),
                    batch.column("location").to_pylist(),
                    strict=True,
                )
            ]
            yield pa.RecordBatch.from_arrays(
                [
                    _strings_lists(rows, field.name)
                    if field.type == pa.list_(pa.string())
                    else from_values([row[field.name] for row in rows], field.type)
                    for field in SCAN_SCHEMA
                ],
                schema=SCAN_SCHEMA,
            )

    def _row(self, position: int, location: str) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(SCAN_SCHEMA.names)
        row |= {"position": position, "location": location} | {name: [] for name in _LISTS}
        try:
            file, facts = scan_url(self.files, location, self.options)
            row |= {
                "size_bytes": file.size_bytes,
                "etag": file.etag,
                "last_modified": file.last_modified,
                "chunk_count": sum(each.chunk_count for each in facts.variables.values()),
            }
            if self.options.concat_dim is not None:
                found = compare_files(
                    self.first, facts, self.options.concat_dim, self.combine_attrs
                )
                lengths = facts.lengths(self.options.concat_dim)
                row["lengths"] = [lengths[group] for group in sorted(lengths)]
                row["layouts"] = list(found.layouts)
                row["packings"] = list(found.packings)
                row["decoded"] = [facts.variables[path].decoded for path in found.packings]
                row["units"] = list(found.units)
                row["attributes"] = list(found.attributes)
        except IcechunkArrowError as error:
            message = error.message
            row["error"] = type(error).__name__
            row["reason"] = message if location in message else f"{location}: {message}"
        row["lengths"] = row["lengths"] or []
        return row


def _strings_lists(rows: list[dict[str, Any]], name: str) -> pa.Array:
    return from_values([row[name] for row in rows], pa.list_(pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferTarget:
    """An array whose chunks are referred to."""

    path: str
    source: str
    chunks: tuple[int, ...]
    axis: int | None
    slot: int
    """Which of a row's starts counts for it."""


@dataclass(frozen=True, kw_only=True)
class ReferChunks:
    """Refers to the chunks of files: one row per file, with where it begins."""

    files: SourceFiles
    source_group: str
    targets: tuple[ReferTarget, ...]

    def __call__(self, fork: Any, batches: Iterable[pa.RecordBatch]) -> None:
        """Refer to all chunks of some files."""
        waiting: dict[str, _References] = {}
        for batch in batches:
            for row in batch.to_pylist():
                with _opened(self.files, row["location"]) as file:
                    for target in self.targets:
                        if target.axis is not None or row["position"] == 0:
                            self._refer(fork, file, target, row, waiting)
                if sum(each.count for each in waiting.values()) > _FLUSH_ROWS:
                    _flush(fork, waiting)
        _flush(fork, waiting)

    def _refer(
        self,
        fork: Any,
        file: h5py.File,
        target: ReferTarget,
        row: dict[str, Any],
        waiting: dict[str, _References],
    ) -> None:
        dataset = find_variable(file, self.source_group, target.source)
        places = chunk_places(dataset, target.chunks)
        if target.axis is not None:
            start = row["starts"][target.slot]
            places.index[:, target.axis] += start // target.chunks[target.axis]
        if places.by_value.any():
            _copy_values(fork, dataset, target, places, row)
        waiting.setdefault(target.path, _References()).add(places, row)


def _copy_values(
    fork: Any,
    dataset: h5py.Dataset,
    target: ReferTarget,
    places: ChunkPlaces,
    row: dict[str, Any],
) -> None:
    """Write the chunks that the file stores without some of its filters, which no reference can say."""
    array = _open_array(fork, target.path)
    start = row["starts"][target.slot] if target.axis is not None else 0
    for index in places.index[places.by_value].tolist():
        corner = [i * edge for i, edge in zip(index, target.chunks, strict=True)]
        stop = [
            min(at + edge, length)
            for at, edge, length in zip(corner, target.chunks, array.shape, strict=True)
        ]
        own = [
            slice(at - start, end - start) if axis == target.axis else slice(at, end)
            for axis, (at, end) in enumerate(zip(corner, stop, strict=True))
        ]
        values = read_values(dataset, dataset.dtype, dataset.shape, tuple(own))
        with quiet():
            array[tuple(map(slice, corner, stop))] = values


class _References:
    """References of one array, from any number of files."""

    def __init__(self) -> None:
        self._places: list[tuple[ChunkPlaces, npt.NDArray[np.bool_]]] = []
        self._files: list[dict[str, Any]] = []
        self.count = 0

    def add(self, places: ChunkPlaces, row: dict[str, Any]) -> None:
        kept = ~places.by_value
        self._places.append((places, kept))
        self._files.append(row)
        self.count += int(kept.sum())

    def table(self) -> pa.Table:
        """Put them into columns; a file's name stands there once."""
        index = np.concatenate([places.index[kept] for places, kept in self._places])
        counts = [int(kept.sum()) for _, kept in self._places]
        codes = from_numpy(np.repeat(np.arange(len(counts)), counts), pa.int32())
        columns = {f"index_{d}": from_numpy(index[:, d], pa.int64()) for d in range(index.shape[1])}
        for name in ("offset", "length"):
            values = np.concatenate([getattr(places, name)[kept] for places, kept in self._places])
            columns[name] = from_numpy(values, pa.int64())
        for name in ("location", "etag"):
            if any(row.get(name) is not None for row in self._files):
                words = from_values([row.get(name) for row in self._files], pa.string())
                columns[name] = words.take(codes)
        if any(row.get("last_modified") is not None for row in self._files):
            times = from_values([row.get("last_modified") for row in self._files], pa.int64())
            columns["last_modified"] = times.take(codes).view(pa.timestamp("us", "UTC"))
        return pa.Table.from_pydict(columns)


def _flush(fork: Any, waiting: dict[str, _References]) -> None:
    for path, references in waiting.items():
        if references.count:
            fork.set_references(path, references.table())
    waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """An array whose values are written."""

    path: str
    source: str
    dtype: np.dtype[Any] | None
    """In the files."""
    shape: tuple[int, ...]
    """Of the first file's variable."""
    decoded: np.dtype[Any] | None
    """In the array, where values are decoded as each file says; None where they stay as they are stored."""
    axis: int | None
    units_source: str
    """The variable whose attributes say the units."""
    units: Any
    calendar: str


@dataclass(frozen=True, kw_only=True)
class WriteValues:
    """Writes blocks of arrays from pieces of files: one row per block, with what the files were."""

    files: SourceFiles
    source_group: str
    drop: frozenset[str]
    targets: Mapping[str, WriteTarget]

    def __call__(self, fork: Any, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all blocks of some batches."""
        arrays: dict[str, Any] = {}
        with _OpenFiles(self.files) as opened, quiet():
            for batch in batches:
                for row in batch.to_pylist():
                    target = self.targets[row["path"]]
                    if target.path not in arrays:
                        arrays[target.path] = _open_array(fork, target.path)
                    region = tuple(map(slice, row["start"], row["stop"]))
                    arrays[target.path][region] = self._block(opened, target, row, region)

    def _block(
        self,
        opened: _OpenFiles,
        target: WriteTarget,
        row: dict[str, Any],
        region: tuple[slice, ...],
    ) -> npt.NDArray[Any]:
        parts = []
        names = ("locations", "etags", "times", "froms", "tos")
        for location, etag, time, start, stop in zip(*(row[name] for name in names), strict=True):
            own, shape = list(region), list(target.shape)
            if target.axis is not None:
                own[target.axis] = slice(start, stop)
                shape[target.axis] = stop
            with _naming(location):
                file = opened.get(location, etag, time)
                dataset = find_variable(file, self.source_group, target.source)
                values = read_values(dataset, target.dtype, tuple(shape), tuple(own))
                missing = self._missing(dataset, target, values)
                if target.decoded is not None:
                    packing = packing_of(dataset, target.source, self.drop)
                    values = decode_values(values, packing).astype(target.decoded, copy=False)
                parts.append(self._in_units(file, target, values, missing))
        block = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=target.axis or 0)
        return block.astype(np.dtypes.StringDType()) if target.dtype is None else block

    def _missing(
        self, dataset: h5py.Dataset, target: WriteTarget, values: npt.NDArray[Any]
    ) -> npt.NDArray[np.bool_] | None:
        """Tell which stored numbers stand for no value, and are no times; None where nothing counts any."""
        if target.axis is None or not isinstance(target.units, str) or target.dtype is None:
            return None
        packing = packing_of(dataset, target.source, self.drop)
        return np.isin(values, [dataset.fillvalue, *missing_values(packing)])

    def _in_units(
        self,
        file: h5py.File,
        target: WriteTarget,
        values: npt.NDArray[Any],
        missing: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[Any]:
        """Count times as the first file does."""
        if missing is None:
            return values
        source = find_variable(file, self.source_group, target.units_source)
        units = source.attrs.get("units", b"")
        text = units.decode() if isinstance(units, bytes) else str(units)
        if text == target.units:
            return values
        shift = shift_between(text, str(target.units), target.calendar)
        there = np.where(missing, np.zeros_like(values), values)
        found = None if shift is None else shift.apply(there)
        if found is None:
            raise InvalidInputError(
                f"{target.source!r} counts {text!r}, which cannot be said exactly in {target.units!r} of the "
                f"first file"
            )
        found[missing] = values[missing]
        return found


@contextmanager
def _naming(location: str) -> Iterator[None]:
    try:
        yield
    except IcechunkArrowError as error:
        if location in error.message:
            raise
        raise type(error)(f"{location}: {error.message}") from error
    except (OSError, RuntimeError, KeyError) as error:
        raise CorruptFileError(f"{location} cannot be read: {error}") from error


class _OpenFiles:
    """The files read last, still open."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._open: OrderedDict[str, tuple[h5py.File, ExitStack]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1][1].close()

    def get(self, url: str, etag: str | None, last_modified: int | None) -> h5py.File:
        """Give an open file, if it is still the one that was looked at."""
        if url not in self._open:
            _check_unchanged(self._files.facts(url), etag, last_modified)
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1][1].close()
            with ExitStack() as stack:
                file = stack.enter_context(_opened(self._files, url))
                self._open[url] = file, stack.pop_all()
        self._open.move_to_end(url)
        return self._open[url][0]


def _check_unchanged(file: SourceFile, etag: str | None, last_modified: int | None) -> None:
    """Refuse a file that was rewritten since all files were compared: it may be shorter, or mean other values."""
    if (file.etag, file.last_modified) != (etag, last_modified):
        raise SourceChangedError(
            f"{file.url} was changed while it was taken in. Nothing was changed; begin again when it is done.",
            location=file.url,
        )


def _open_array(fork: Any, path: str) -> Any:
    with quiet():
        return zarr.open_array(fork.store, path=path.lstrip("/"), mode="r+")
