"""From a caller's references, in whatever Arrow form, to checked columns: all or nothing, no object per row.

Owns what a source may look like and every check of its rows. Order, duplicates and files are the business of
``engine.bulk``.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core import coords
from icechunk_arrow.core.columns import from_numpy, indices, run_edges, to_numpy, validity
from icechunk_arrow.core.locations import fault_of_location, suspects
from icechunk_arrow.engine.bulk import BulkReferences, BulkSettings, by_number
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from icechunk_arrow.engine.bulk import Layout, StagedReferences
    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.engine.manifest_writer import ManifestWriter

    Mask = npt.NDArray[np.bool_]
    Index = npt.NDArray[np.uint64]
    from collections.abc import Sequence

__all__ = ["REFERENCES", "Faults", "Values", "read_batches", "slices", "stage_rows"]

_READ_AHEAD = 4
_TEXTS = frozenset({"location", "etag"})
"""Texts of some types cannot be brought in order by Arrow."""
_MAX_END = 2**63 - 1
_SETTINGS = BulkSettings()
_FEW = 1000
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def read_batches(
    source: Any, rows: int, choose: Callable[[pa.Schema], Sequence[str]]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Give the schema of a source, and its chosen columns, batch by batch; nothing else need be read."""
    reader: Any
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    datasets = sys.modules.get("pyarrow.dataset")  # a caller that has a dataset has imported it
    if isinstance(source, pa.Table):
        reader = source.to_reader(max_chunksize=rows)
    elif isinstance(source, pa.RecordBatchReader):
        reader = source
    elif datasets is not None and isinstance(source, datasets.Dataset):
        scanner = source.scanner(
            columns=list(choose(source.schema)),
            batch_size=rows,
            batch_readahead=_READ_AHEAD,
            fragment_readahead=1,
        )
        reader = scanner.to_reader()
    elif datasets is not None and isinstance(source, datasets.Scanner):
        reader = source.to_reader()
    elif hasattr(source, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(source)
        except pa.ArrowInvalid as error:
            raise _unknown(source) from error
    else:
        raise _unknown(source)
    names = list(choose(reader.schema))
    return reader.schema, (batch.select(names) for batch in reader)


def _unknown(source: Any) -> InvalidInputError:
    return InvalidInputError(
        f"references must be a pyarrow.Table, RecordBatch, RecordBatchReader, Dataset or Scanner, or a table "
        f"of another library that has __arrow_c_stream__, not {type(source).__name__}"
    )


def slices(
    batches: Iterator[pa.RecordBatch], rows: int, size_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Cut long batches, without copying, and unite small ones up to a size; none is empty."""
    waiting: list[pa.RecordBatch] = []
    count = waiting_bytes = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            if waiting and count + part.num_rows > rows:
                yield _united(waiting)
                waiting, count, waiting_bytes = [], 0, 0
            waiting.append(part)
            count += part.num_rows
            waiting_bytes += part.nbytes
            if count * 4 >= rows or waiting_bytes >= size_bytes:
                yield _united(waiting)
                waiting, count, waiting_bytes = [], 0, 0
    if waiting:
        yield _united(waiting)


def _united(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


class Values(Struct, frozen=True, kw_only=True):
    """What rows say of their chunks beside path and index, and how that is read."""

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    check: Callable[[pa.RecordBatch, Faults], dict[str, pa.Array]]
    """Gives columns of references, and notes what is wrong."""

    @property
    def known(self) -> frozenset[str]:
        """Columns that are not the numbers of a dimension."""
        return frozenset({"path", "index", *self.needed, *self.optional})


def stage_rows(
    get_array: Callable[[str], ArrayView],
    array_path: Any,
    source: Any,
    values: Values,
    *,
    layout_of: Callable[[ArrayView], Layout],
    writer: ManifestWriter,
    duplicates: str = "error",
    settings: BulkSettings = _SETTINGS,
    name_row: Callable[[int], str] = by_number,
) -> list[StagedReferences]:
    """Check rows of chunks and give, per array, those left to the commit and manifests with the others.

    Parameters
    ----------
    get_array
        Gives the array at a path, or raises.
    array_path
        The array; None where the source has a column ``path``.
    source
        A table, batch, reader, dataset or scanner of pyarrow, or anything with ``__arrow_c_stream__``.
    values
        What the rows hold.
    layout_of
        Tells how a large array is cut into manifests.
    writer
        Writes manifests of what is too much for memory; used up afterwards.
    duplicates
        ``"error"`` refuses a chunk that stands there twice, ``"last"`` keeps the last.
    settings
        How much is held in memory.
    name_row
        How a row of the source is named in an error.
    """
    if duplicates not in {"error", "last"}:
        raise InvalidInputError(f"duplicates must be 'error' or 'last', not {duplicates!r}")
    schema, batches = read_batches(source, settings.slice_rows, partial(_useful, values.known))
    reader = _Reader(get_array, array_path, schema, values, name_row)
    bulk = BulkReferences(
        writer,
        layout_of,
        last_wins=duplicates == "last",
        settings=settings,
        name_row=name_row,
    )
    row = 0
    with writer, bulk:
        for batch in slices(batches, settings.slice_rows, settings.slice_bytes):
            size_bytes = 0
            for path, view, columns, index, numbers in reader.read(batch, row):
                bulk.add(path, view, columns, index, numbers)
                size_bytes += columns.nbytes
            row += batch.num_rows
            bulk.end_slice(batch.num_rows, size_bytes)
        return bulk.finish()


def _useful(known: frozenset[str], schema: pa.Schema) -> list[str]:
    """Columns that can mean something here: a dimension may have any name, its numbers are primitive."""
    names = schema.names
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    chosen = [
        field.name
        for field in schema
        if field.name in known
        or field.name.startswith("index_")
        or pa.types.is_primitive(field.type)
    ]
    for name in chosen:
        if name in twice:
            raise InvalidInputError(f"the references have the column {name!r} twice")
    return chosen


class _Target(Struct, frozen=True, kw_only=True, eq=False):
    """An array of which there are rows, and where its chunks' places stand."""

    path: str
    view: ArrayView
    columns: tuple[str, ...] | None
    """A column per dimension; None where one column holds lists."""

    @property
    def counts(self) -> tuple[int, ...]:
        return self.view.grid.chunk_counts

    @property
    def kind(self) -> tuple[int, tuple[str, ...] | None]:
        """Arrays whose places are read alike, and together."""
        return len(self.counts), self.columns


Span = tuple[_Target, int, int]
"""An array, and which rows of a slice are its."""


class Faults:
    """Gathers what is wrong with the rows of a slice, to refuse the first of them as the caller knows it."""

    def __init__(
        self,
        numbers: npt.NDArray[np.int64],
        spans: list[Span],
        name_row: Callable[[int], str] = by_number,
    ) -> None:
        self._numbers, self._spans, self._name_row = numbers, spans, name_row
        self._starts = [start for _, start, _ in spans]
        self._first: tuple[int, str, str] | None = None

    def target(self, place: int) -> _Target:
        """The array of a row of the slice."""
        return self._spans[bisect_right(self._starts, place) - 1][0]

    def note(self, bad: Mask, fact: Callable[[int], str], start: int = 0) -> None:
        """Note the first bad row; both the mask and the fact begin with row ``start`` of the slice."""
        places = np.flatnonzero(bad)
        if len(places):
            place = int(places[self._numbers[places + start].argmin()])
            number = int(self._numbers[place + start])
            if self._first is None or number < self._first[0]:
                self._first = number, self.target(place + start).path, fact(place)

    def refuse(self) -> None:
        """Raise, if anything was noted."""
        if self._first is not None:
            number, path, fact = self._first
            raise InvalidInputError(
                f"{self._name_row(number)} for {path!r}: {fact}. Nothing was staged.",
                row=number,
            )


class _Reader:
    """Reads slices of a source: which arrays, which chunks, which references."""

    def __init__(
        self,
        get_array: Callable[[str], ArrayView],
        array_path: Any,
        schema: pa.Schema,
        values: Values,
        name_row: Callable[[int], str],
    ) -> None:
        for name in values.needed:
            if name not in schema.names:
                raise InvalidInputError(
                    f"the references have no column {name!r}; they have {schema.names}"
                )
        has_paths = "path" in schema.names
        if array_path is None and not has_paths:
            raise InvalidInputError(
                "which array? Give array_path, or a column 'path' where there are several"
            )
        if array_path is not None and has_paths:
            raise InvalidInputError("the references have a column 'path': give None as array_path")
        self._get_array = get_array
        self._values = values
        self._name_row = name_row
        self._names = frozenset(schema.names)
        self._targets: dict[str, _Target] = {}
        self._only = None if array_path is None else self._target(get_array(array_path).node.path)

    def _target(self, path: str) -> _Target:
        target = self._targets.get(path)
        if target is None:
            view = self._get_array(path)
            target = self._targets.get(view.node.path)  # said in another way
            if target is None:
                columns = self._index_columns(view)
                target = _Target(path=view.node.path, view=view, columns=columns)
            self._targets[path] = self._targets[target.path] = target
        return target

    def _index_columns(self, view: ArrayView) -> tuple[str, ...] | None:
        if "index" in self._names:
            return None
        ndim = len(view.grid.chunk_counts)
        columns = view.node.columns
        names = (columns.dimension_names if columns else None) or ()
        chosen = []
        for d in range(ndim):
            options = [f"index_{d}", *(name for name in names[d : d + 1] if name is not None)]
            present = [n for n in options if n in self._names and n not in self._values.known]
            if not present:
                raise InvalidInputError(
                    f"the references have neither a column 'index' nor one of {options} for dimension {d}"
                )
            chosen.append(present[0])
        return tuple(chosen)

    def read(
        self, batch: pa.RecordBatch, first_row: int
    ) -> Iterator[tuple[str, ArrayView, pa.RecordBatch, Index, npt.NDArray[np.int64]]]:
        """Check a slice, and give path, array, columns, coordinates and row numbers for each array."""
        numbers = np.arange(first_row, first_row + batch.num_rows)
        if self._only is not None:
            spans = [(self._only, 0, batch.num_rows)]
        else:
            batch, numbers, spans = self._grouped(batch, numbers)
        faults = Faults(numbers, spans, self._name_row)
        alike = [list(group) for _, group in groupby(spans, key=lambda span: span[0].kind)]
        places = [_index(batch, group, faults) for group in alike]
        columns = self._values.check(batch, faults)
        faults.refuse()
        for group, index in zip(alike, places, strict=True):
            first, last = group[0][1], group[-1][2]
            parts = {name: column.slice(first, last - first) for name, column in columns.items()}
            rows = pa.RecordBatch.from_pydict({"coord": coords.encode(index), **parts})
            for target, start, stop in group:
                chosen = slice(start - first, stop - first)
                yield (
                    target.path,
                    target.view,
                    rows.slice(start - first, stop - start),
                    index[chosen],
                    numbers[start:stop],
                )

    def _grouped(
        self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Span]]:
        """Bring the rows of each array together, and arrays that are read alike; each keeps its order."""
        coded = batch.column("path")
        if not pa.types.is_dictionary(coded.type) or coded.dictionary.null_count:
            coded = _text(coded, "path").dictionary_encode()
        if coded.null_count:
            row = int(numbers[np.flatnonzero(~validity(coded))[0]])
            raise InvalidInputError(
                f"{self._name_row(row)}: the path is missing. Nothing was staged.", row=row
            )
        codes = to_numpy(coded.indices.cast(pa.int32()))
        firsts = np.full(len(coded.dictionary), len(codes))
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]
        used = np.flatnonzero(firsts < len(codes))
        used = used[np.argsort(firsts[used])]
        paths = _text(coded.dictionary.take(indices(used)), "path").to_pylist()
        by_path = {path: self._target(path) for path in paths}
        alone = {target.path: target for target in by_path.values()}
        kinds: dict[Any, int] = {}
        for target in alone.values():
            kinds.setdefault(target.kind, len(kinds))
        targets = sorted(alone.values(), key=lambda target: kinds[target.kind])
        ranks = {target.path: rank for rank, target in enumerate(targets)}
        rank_of = np.zeros(len(firsts), np.uint16 if len(targets) < 1 << 16 else np.int64)
        rank_of[used] = [ranks[by_path[path].path] for path in paths]
        order = rank_of[codes]
        if (order[1:] < order[:-1]).any():
            rows = np.argsort(order, kind="stable")
            batch = pa.RecordBatch.from_pydict(
                {
                    name: _text(batch.column(name), name) if name in _TEXTS else batch.column(name)
                    for name in batch.schema.names
                    if name != "path"
                }
            ).take(indices(rows))
            numbers, order = numbers[rows], order[rows]
        edges = run_edges(order).tolist()
        spans = list(zip(targets, edges[:-1], edges[1:], strict=True))
        return batch, numbers, spans


def _index(batch: pa.RecordBatch, group: list[Span], faults: Faults) -> Index:
    """Read the chunks' places of arrays that are read alike, as an n × dimensions array."""
    start, stop = group[0][1], group[-1][2]
    ndim, names = group[0][0].kind
    if names is None:
        index = _from_lists(batch.column("index").slice(start, stop - start), ndim, start, faults)
    else:
        parts = [
            _unsigned(batch.column(name).slice(start, stop - start), name, start, faults)
            for name in names
        ]
        index = np.stack(parts).T if parts else np.zeros((stop - start, 0), np.uint64)
    limits = np.array([target.counts for target, _, _ in group], np.uint64)
    limits = limits.reshape(len(group), ndim)
    if len(group) > 1:
        limits = np.repeat(limits, [last - first for _, first, last in group], axis=0)
    inside = np.ones(len(index), np.bool_)
    for d in range(ndim):
        inside &= index[:, d] < limits[:, d]
    faults.note(
        ~inside,
        lambda row: (
            f"chunk {tuple(index[row].tolist())} is outside the grid "
            f"{faults.target(row + start).counts}"
        ),
        start,
    )
    return index


def _from_lists(lists: pa.Array, ndim: int, start: int, faults: Faults) -> Index:
    if not any(is_kind(lists.type) for is_kind in _LISTS):
        raise InvalidInputError(f"the column 'index' must hold lists, not {lists.type}")
    wrong = to_numpy(pc.list_value_length(lists).cast(pa.int64())) != ndim
    if lists.null_count:
        wrong |= ~validity(lists)
    if not wrong.any():
        values, missing, negative = _whole_numbers(lists.flatten(), "index")
        index = values.reshape(len(lists), ndim)
        right = np.arange(len(lists)) if missing is not None or negative is not None else None
    else:
        faults.note(
            wrong,
            lambda row: f"the index is {lists[row].as_py()}, the array has {ndim} dimensions",
            start,
        )
        right = np.flatnonzero(~wrong)
        values, missing, negative = _whole_numbers(lists.take(indices(right)).flatten(), "index")
        index = np.zeros((len(lists), ndim), np.uint64)
        index[right] = values.reshape(len(right), ndim)
    for mask, fact in ((missing, "the index is missing"), (negative, "the index is negative")):
        if mask is not None:
            bad = np.zeros(len(lists), np.bool_)
            bad[right] = mask.reshape(-1, ndim).any(axis=1)
            faults.note(bad, lambda _, fact=fact: fact, start)  # type: ignore[misc]
    return index


def _unsigned(column: pa.Array, name: str, start: int, faults: Faults) -> Index:
    values, missing, negative = _whole_numbers(column, name)
    if missing is not None:
        faults.note(missing, lambda _: f"the {name} is missing", start)
    if negative is not None:
        faults.note(negative, lambda _: f"the {name} is negative", start)
    return values


def _whole_numbers(column: pa.Array, name: str) -> tuple[Index, Mask | None, Mask | None]:
    """Copy whole numbers from 0, of any integer type; tell which are missing and which are negative."""
    if pa.types.is_decimal128(column.type) and column.type.scale == 0:
        return _from_decimals(column)
    if not pa.types.is_integer(column.type):
        raise InvalidInputError(f"the column {name!r} must hold whole numbers, not {column.type}")
    missing = ~validity(column) if column.null_count else None
    signed = pa.types.is_signed_integer(column.type)
    values = to_numpy(column.cast(pa.int64() if signed else pa.uint64()))
    if missing is not None:
        values = values.copy()
        values[missing] = 0
    negative = values < 0 if signed and len(values) and values.min() < 0 else None
    if negative is not None:
        values = np.where(negative, 0, values)
    return values.astype(np.uint64), missing, negative


def _from_decimals(column: pa.Array) -> tuple[Index, Mask | None, Mask | None]:
    """Copy whole numbers that are decimals, as Spark has unsigned ones; what is beyond 64 bits is their largest."""
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
    low, high = words[column.offset : column.offset + len(column)].T
    missing = ~validity(column) if column.null_count else None
    known = ~missing if missing is not None else np.True_
    values = np.where(high > 0, np.uint64(2**64 - 1), low.view(np.uint64))
    negative = (high < 0) & known
    values[~known | negative] = 0
    return values, missing, negative if negative.any() else None


def _references(batch: pa.RecordBatch, faults: Faults) -> dict[str, pa.Array]:
    """Read where the chunks are: the columns that do not depend on the array."""
    offset = _unsigned(batch.column("offset"), "offset", 0, faults)
    length = _unsigned(batch.column("length"), "length", 0, faults)
    beyond = (offset > _MAX_END) | (length > _MAX_END - np.minimum(offset, np.uint64(_MAX_END)))
    faults.note(
        beyond,
        lambda row: f"offset {offset[row]} and length {length[row]} lead beyond the largest file",
    )
    columns = {
        "chunk_file": _locations(_text(batch.column("location"), "location"), faults),
        "offset": from_numpy(offset, pa.uint64()),
        "length": from_numpy(length, pa.uint64()),
    }
    names = batch.schema.names
    if "etag" in names:
        columns["etag"] = _text(batch.column("etag"), "etag")
    if "last_modified" in names:
        columns["last_modified"] = _times(batch.column("last_modified"), faults)
    return columns


def _text(column: pa.Array, name: str) -> pa.Array:
    """Bring texts of any Arrow type into one."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = plain.type
    if kind == pa.string():
        return plain
    if not (
        pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind)
    ):
        raise InvalidInputError(f"the column {name!r} must hold text, not {kind}")
    return plain.cast(pa.string())


def _locations(column: pa.Array, faults: Faults) -> pa.Array:
    """Check each distinct location once."""
    if column.null_count:
        faults.note(~validity(column), lambda _: "the location is missing")
        column = column.fill_null("file:///missing")
    changes = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    firsts = np.append(0, np.flatnonzero(to_numpy(changes)) + 1)
    distinct = column.take(indices(firsts)) if len(firsts) < len(column) else column
    if len(distinct) > _FEW:
        distinct = distinct.unique()
    if not suspects(distinct).any():
        return column
    coded = column.dictionary_encode()
    wrong = {
        int(code): fault
        for code in np.flatnonzero(suspects(coded.dictionary))
        if (fault := fault_of_location(coded.dictionary[int(code)].as_py())) is not None
    }
    if wrong:
        codes = to_numpy(coded.indices)
        faults.note(
            np.isin(codes, list(wrong)),
            lambda row: (
                f"the location {column[row].as_py()!r} cannot be used: {wrong[int(codes[row])]}"
            ),
        )
    return column


def _times(column: pa.Array, faults: Faults) -> pa.Array:
    if pa.types.is_null(column.type):
        return column.cast(pa.timestamp("us", "UTC"))
    if not pa.types.is_timestamp(column.type):
        raise InvalidInputError(
            f"the column 'last_modified' must hold timestamps, not {column.type}"
        )
    if column.type.tz is None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    late = to_numpy(column.cast(pa.timestamp("us", "UTC"), safe=False))
    faults.note((late < 0) & validity(column), lambda _: "the time is before 1970")
    return from_numpy(late.copy(), pa.int64(), validity(column)).view(pa.timestamp("us", "UTC"))


REFERENCES = Values(
    needed=("location", "offset", "length"),
    optional=("etag", "last_modified"),
    check=_references,
)
"""Byte ranges of files that exist already."""
