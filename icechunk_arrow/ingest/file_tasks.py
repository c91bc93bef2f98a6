"""What is done with files whose variables follow one another: looked at, referred to, written anew.

Owns the work of one part, wherever an executor lets it be done. Files are opened by what it is given: of their
format it knows nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow.core.cf import decode_values, missing_values, shift_between
from icechunk_arrow.core.columns import from_numpy, from_values, list_items, to_numpy, validity
from icechunk_arrow.errors import (
    CorruptFileError,
    IcechunkArrowError,
    InvalidInputError,
    SourceChangedError,
)
from icechunk_arrow.ingest.agreement import compare_files
from icechunk_arrow.ingest.array_documents import quiet
from icechunk_arrow.ingest.source import TIME, index_lists, message_of, repeated
from icechunk_arrow.ingest.target import join_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from icechunk_arrow.ingest.concatenation import ArrayPlan, WriteItem
    from icechunk_arrow.ingest.source import FileContents, VariableSource
    from icechunk_arrow.session import ForkSession
    from icechunk_arrow.storage.source_files import SourceFiles

    OpenFile = Callable[[str], AbstractContextManager[VariableSource]]
    FileStamp = tuple[str, str | None, int | None]
    """A file's location, ETag and time."""

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
_LISTS = ("lengths", "layouts", "packings", "decoded", "units", "attributes")
_FLUSH_ROWS = 1 << 20
_OPEN_FILES = 4


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Compares files with the first: positions and locations in, ``SCAN_SCHEMA`` out."""

    files: SourceFiles
    open: OpenFile
    first: FileContents
    concat_dim: str | None
    combine_attrs: str | None

    def __call__(self, part: Sequence[tuple[int, str]]) -> pa.Table:
        """Look at some files."""
        rows = [self._row(position, location) for position, location in part]
        return pa.Table.from_arrays(
            [from_values([row[each.name] for row in rows], each.type) for each in SCAN_SCHEMA],
            schema=SCAN_SCHEMA,
        )

    def _row(self, position: int, location: str) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(SCAN_SCHEMA.names)
        row |= {"position": position, "location": location} | {name: [] for name in _LISTS}
        try:
            file = self.files.facts(location)
            with self.open(location) as source:
                contents = source.contents()
            row |= {
                "size_bytes": file.size_bytes,
                "etag": file.etag,
                "last_modified": file.last_modified,
                "chunk_count": sum(each.chunk_count for each in contents.variables.values()),
            }
            if self.concat_dim is not None:
                differences = compare_files(
                    self.first, contents, self.concat_dim, self.combine_attrs
                )
                lengths = contents.lengths(self.concat_dim)
                row |= {
                    "lengths": [lengths[group] for group in sorted(lengths)],
                    "layouts": list(differences.layouts),
                    "packings": list(differences.packings),
                    "decoded": [contents.variables[path].decoded for path in differences.packings],
                    "units": list(differences.units),
                    "attributes": list(differences.attributes),
                }
        except IcechunkArrowError as error:
            row |= {"error": type(error).__name__, "reason": message_of(location, error)}
        return row


@dataclass(frozen=True, kw_only=True)
class ReferChunks:
    """Refers to the chunks of files: one row per file, with where it begins."""

    open: OpenFile
    group: str
    """Where the arrays stand in the repository."""
    plans: tuple[ArrayPlan, ...]
    slots: Mapping[str, int]
    """Which of a row's starts counts for the variables of a group."""

    def __call__(self, fork: ForkSession, part: pa.Table) -> None:
        """Refer to all chunks of some files."""
        waiting: dict[str, list[pa.Table]] = {}
        for row in part.to_pylist():
            with self.open(row["location"]) as source:
                for plan in self.plans:
                    if plan.axis is not None or row["position"] == 0:
                        path = join_paths(self.group, plan.variable.path)
                        start = 0 if plan.axis is None else row["starts"][self.slots[plan.group]]
                        references = _references(fork, path, source, plan, start, row)
                        waiting.setdefault(path, []).append(references)
            if sum(each.num_rows for tables in waiting.values() for each in tables) > _FLUSH_ROWS:
                _flush(fork, waiting)
        _flush(fork, waiting)


def _references(
    fork: ForkSession,
    path: str,
    source: VariableSource,
    plan: ArrayPlan,
    start: int,
    row: Mapping[str, Any],
) -> pa.Table:
    """Give the references to a file, in the grid of the array; chunks that no reference can say are copied."""
    batch = source.references(plan.variable.path)
    ndim = len(plan.chunks)
    index = to_numpy(list_items(batch.column("index"))).reshape(batch.num_rows, ndim)
    offset, length = (to_numpy(batch.column(name)) for name in ("offset", "length"))
    there = validity(batch.column("location"))
    piece_bytes = plan.piece_bytes
    if piece_bytes is not None and len(index):
        pieces = int(length[0]) // piece_bytes
        index = np.zeros((pieces, ndim), np.int64)
        index[:, :1] = np.arange(pieces)[:, None]
        offset = offset[0] + piece_bytes * np.arange(pieces, dtype=np.int64)
        length = np.full(pieces, piece_bytes, np.int64)
        there = np.ones(pieces, np.bool_)
    if plan.axis is not None:
        index = index.copy()
        index[:, plan.axis] += start // plan.chunks[plan.axis]
    if not there.all():
        _copy_chunks(_open_array(fork, path), source, plan, start, index[~there])
        index, offset, length = index[there], offset[there], length[there]
    count = len(index)
    columns = {
        "index": index_lists(index),
        "location": repeated(row["location"], count),
        "offset": from_numpy(offset, pa.int64()),
        "length": from_numpy(length, pa.int64()),
        "etag": repeated(row.get("etag"), count),
        "last_modified": repeated(row.get("last_modified"), count, TIME),
    }
    return pa.Table.from_pydict(columns)


def _copy_chunks(
    array: Any,
    source: VariableSource,
    plan: ArrayPlan,
    start: int,
    index: npt.NDArray[np.int64],
) -> None:
    """Write chunks that a file stores otherwise than the others."""
    for place in index.tolist():
        corner = [i * edge for i, edge in zip(place, plan.chunks, strict=True)]
        stop = [
            min(at + edge, length)
            for at, edge, length in zip(corner, plan.chunks, array.shape, strict=True)
        ]
        box = list(map(slice, corner, stop))
        if plan.axis is not None:
            box[plan.axis] = slice(corner[plan.axis] - start, stop[plan.axis] - start)
        with quiet():
            array[tuple(map(slice, corner, stop))] = source.values(plan.variable.path, tuple(box))


def _flush(fork: ForkSession, waiting: dict[str, list[pa.Table]]) -> None:
    for path, tables in waiting.items():
        if any(each.num_rows for each in tables):
            fork.set_references(path, pa.concat_tables(tables))
    waiting.clear()


@dataclass(frozen=True, kw_only=True)
class WriteValues:
    """Writes blocks of arrays from pieces of files."""

    files: SourceFiles
    open: OpenFile
    group: str
    plans: Mapping[str, ArrayPlan]
    """By path of the variable."""

    def __call__(
        self, fork: ForkSession, part: Sequence[tuple[WriteItem, Sequence[FileStamp]]]
    ) -> None:
        """Write some blocks; beside each stand the files of its pieces."""
        arrays: dict[str, Any] = {}
        with _OpenFiles(self.files, self.open) as opened, quiet():
            for item, files in part:
                if item.path not in arrays:
                    arrays[item.path] = _open_array(fork, join_paths(self.group, item.path))
                region = tuple(map(slice, item.start, item.stop))
                arrays[item.path][region] = _block(opened, self.plans[item.path], item, files)


def _block(
    opened: _OpenFiles, plan: ArrayPlan, item: WriteItem, files: Sequence[FileStamp]
) -> npt.NDArray[Any]:
    parts = []
    for piece, file in zip(item.pieces, files, strict=True):
        box = list(map(slice, item.start, item.stop))
        if plan.axis is not None:
            box[plan.axis] = slice(piece.start, piece.stop)
        with _naming(file[0]):
            parts.append(_piece(opened.get(*file), plan, tuple(box)))
    block = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=plan.axis or 0)
    return block.astype(np.dtypes.StringDType()) if plan.stored is None else block


def _piece(source: VariableSource, plan: ArrayPlan, box: tuple[slice, ...]) -> npt.NDArray[Any]:
    """Read values of one file as the array has them: decoded if need be, times counted as in the first file."""
    path, units = plan.variable.path, plan.units
    values, meaning = source.values(path, box), source.meaning(path)
    counted = plan.axis is not None and isinstance(units.text, str) and plan.stored is not None
    if counted:  # stored numbers that stand for no value are no times
        missing = np.isin(values, [meaning.fill_value, *missing_values(meaning.packing)])
    if plan.decoded:
        values = decode_values(values, meaning.packing).astype(plan.variable.dtype, copy=False)
    if not counted or (own := source.meaning(units.path).units) == units.text:
        return values
    shift = shift_between(own, units.text, units.calendar)
    there = np.where(missing, np.zeros_like(values), values)
    shifted = None if shift is None else shift.apply(there)
    if shifted is None:
        raise InvalidInputError(
            f"{path!r} counts {own!r}, which cannot be said exactly in {units.text!r} of the first file"
        )
    shifted[missing] = values[missing]
    return shifted


@contextmanager
def _naming(location: str) -> Iterator[None]:
    try:
        yield
    except IcechunkArrowError as error:
        if location in error.message:
            raise
        raise type(error)(message_of(location, error)) from error
    except (OSError, RuntimeError, KeyError) as error:
        raise CorruptFileError(f"{location} cannot be read: {error}") from error


class _OpenFiles:
    """The files read last, still open."""

    def __init__(self, files: SourceFiles, open_file: OpenFile) -> None:
        self._files = files
        self._open_file = open_file
        self._open: OrderedDict[str, tuple[VariableSource, ExitStack]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1][1].close()

    def get(self, url: str, etag: str | None, last_modified: int | None) -> VariableSource:
        """Give an open file, if it is still the one that was looked at.

        One that was rewritten since all files were compared may be shorter, or mean other values.
        """
        if url not in self._open:
            now = self._files.facts(url)
            if (now.etag, now.last_modified) != (etag, last_modified):
                raise SourceChangedError(
                    f"{url} was changed while it was taken in. Nothing was changed; begin again when it is done.",
                    location=url,
                )
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1][1].close()
            with ExitStack() as stack:
                source = stack.enter_context(self._open_file(url))
                self._open[url] = source, stack.pop_all()
        self._open.move_to_end(url)
        return self._open[url][0]


def _open_array(fork: ForkSession, path: str) -> Any:
    with quiet():
        return zarr.open_array(fork.store, path=path.lstrip("/"), mode="r+")
