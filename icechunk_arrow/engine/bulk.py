"""Many references at once: gathered per array in order, written as manifests while they stream in.

Owns what one bulk write holds in memory, when it writes and when it sorts on disk. It is given rows that are
checked, and knows neither where they come from nor what a session makes of them.
"""

from __future__ import annotations

import heapq
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    HAS_STATISTICS,
    STATISTICS,
    chunk_table,
    columns_of,
    sort_rows,
)
from icechunk_arrow.core.columns import (
    bytes_at,
    from_numpy,
    indices,
    one_array,
)
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.packing import PlainShape, choose_set
from icechunk_arrow.core.placement import limit_of, set_for_size
from icechunk_arrow.core.splits import axis_of, cuts
from icechunk_arrow.engine.segments import Bulk, check_live
from icechunk_arrow.engine.sorting import GridOrder, KeyedRows, Spill, concat, in_order, merge
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.engine.manifest_writer import ManifestWriter

__all__ = [
    "BulkReferences",
    "BulkSettings",
    "Layout",
    "StagedReferences",
    "by_number",
    "layout_of",
    "spilled",
]

_LARGE = 1 << 26
_SPILLED_ROWS = 1 << 16
"""How many single writes make a manifest."""


def by_number(number: int) -> str:
    """Name a row of the input in an error."""
    return f"row {number} of the references"


class Layout(Struct, frozen=True, kw_only=True):
    """How the rows of a large array are cut into manifests."""

    limit: int
    """Rows of one manifest, at most."""
    axis: int
    """The dimension along which the grid is cut first."""

    @classmethod
    def of(cls, home: ManifestSet, view: ArrayView) -> Layout:
        """Cut an array as a set says whose manifests its rows fill."""
        assert view.node.columns is not None
        ndim = len(view.grid.chunk_counts)
        axis = axis_of(home.split_along, view.node.columns.dimension_names, ndim)
        return cls(limit=limit_of(home), axis=axis)


class BulkSettings(Struct, frozen=True, kw_only=True):
    """How much a bulk write holds in memory; smaller in tests."""

    slice_rows: int = 1 << 18
    """Rows that are checked at a time, while those before them are encoded."""
    slice_bytes: int = 1 << 26
    """Small batches of rows are united up to this size."""
    held_rows: int = 1 << 16
    """An array that has no more than this many rows is left to the commit, in memory."""
    held_rows_in_all: int = 1 << 20
    """All arrays together leave no more than this."""
    gather_rows: int = 1 << 20
    """Rows that wait in memory to be sorted, or for more of their array, before they go to disk."""
    gather_bytes: int = 1 << 28
    run_batch_rows: int = 1 << 14
    """Rows of each sorted run that are in memory while runs are merged."""


class StagedReferences(Struct, frozen=True, kw_only=True, eq=False):
    """What a bulk write gives a session for one array; no chunk is named twice."""

    node_id: int
    bulk: Bulk
    """What is laid over what the session has of the array."""


def layout_of(settings: ManifestSettings, view: ArrayView) -> Layout:
    """How the references of an array are cut where they are too many for one manifest.

    Whether a rule about initialized chunks applies is not known before they are all there: what the grid
    allows is taken.
    """
    node, counts = view.node, view.grid.chunk_counts
    assert node.columns is not None
    names = node.columns.dimension_names
    shape = PlainShape(
        path=node.path,
        chunk_counts=counts,
        dimension_names=names,
        chunk_count=view.grid.chunk_count,
    )
    chosen = set_for_size(settings, choose_set(settings, shape), view.grid.chunk_count)
    return Layout.of(chosen, view)


def spilled(rows: pa.Table, array_id: int, writer: ManifestWriter) -> Bulk:
    """Write sorted rows of one array as manifests, as they are; for single writes that have become many."""
    ndim = len(coords.decode_one(bytes_at(one_array(rows["coord"]), 0)))
    with writer:
        for start in range(0, rows.num_rows, _SPILLED_ROWS):
            writer.write(rows.slice(start, _SPILLED_ROWS), {array_id: ndim})
        written = writer.finish()
    return Bulk(inventory=written.entries.in_order(), sizes=written.sizes, array_id=array_id)


class _Blank:
    """The columns that may be empty, made once and not for every manifest."""

    def __init__(self) -> None:
        self._count = 0
        self._columns: dict[str, pa.Array] = {}

    def columns(self, count: int) -> dict[str, pa.Array]:
        """Give each of them with so many rows."""
        if count > self._count:
            self._count = count
            self._columns = {
                field.name: pa.nulls(count, field.type) for field in CHUNK_SCHEMA if field.nullable
            }
        return {name: column.slice(0, count) for name, column in self._columns.items()}


class _Cutter(Struct, kw_only=True, eq=False):
    """Takes the rows of one array in order and makes manifests of them, cut along the grid."""

    node_id: int
    order: GridOrder
    limit: int
    held_rows: int
    writer: ManifestWriter
    blank: _Blank
    written: list[tuple[str, int]] = field(default_factory=list)
    """Manifests, and the last box of each."""
    parts: list[KeyedRows] = field(default_factory=list)
    rows: int = 0
    _boxes: list[npt.NDArray[np.uint64]] = field(default_factory=list)

    def add(self, rows: KeyedRows) -> None:
        """Take more rows, and write what is complete."""
        self.parts.append(rows)
        self._boxes.append(self.order.boxes(rows.keys))
        self.rows += len(rows)
        if self.rows > self.limit and (self.written or self.rows > self.held_rows):
            self._write(last=False)

    def close(self) -> None:
        """Know that nothing follows: a rest that is too large to wait for the commit is written."""
        if self.rows > self.held_rows:
            self.write_rest()

    def write_rest(self) -> None:
        """Write everything."""
        if self.rows:
            self._write(last=True)

    def _write(self, *, last: bool) -> None:
        boxes = np.concatenate(self._boxes)
        start = 0
        for stop in cuts(boxes, self.limit, last=last):
            name = self.writer.write(
                self._table(start, stop), {self.node_id: len(self.order.counts)}
            )
            self.written.append((name, int(boxes[stop - 1])))
            start = stop
        self.parts = self._between(start, self.rows)
        self._boxes = [boxes[start:].copy()]
        self.rows -= start

    def _between(self, start: int, stop: int) -> list[KeyedRows]:
        pieces = []
        for part in self.parts:
            low, high = max(start, 0), min(stop, len(part))
            if low < high:
                pieces.append(part.slice(low, high))
            start, stop = start - len(part), stop - len(part)
        return pieces

    def _table(self, start: int, stop: int) -> pa.Table:
        """Give some of the rows as a manifest has them."""
        ids = np.full(stop - start, self.node_id, np.uint32)
        return self.in_order(_chunks_of(self._between(start, stop), ids, self.blank))

    def in_order(self, table: pa.Table) -> pa.Table:
        """Bring rows of the array from the order in which they are gathered into that of coordinates."""
        return table if self.order.by_coordinate else sort_rows(table)

    def release(self) -> list[KeyedRows]:
        """Give back what is not written."""
        parts, self.parts, self._boxes, self.rows = self.parts, [], [], 0
        return parts

    def withdraw(self, box: int) -> list[str]:
        """Give up the manifests that rows of this box and later ones may belong to."""
        names = [name for name, last in self.written if last >= box]
        self.written = self.written[: len(self.written) - len(names)]
        return names


def _chunks_of(
    parts: Sequence[KeyedRows], array_ids: npt.NDArray[np.uint32], blank: _Blank
) -> pa.Table:
    """Put rows into a table as a manifest has them."""
    count = len(array_ids)
    columns: dict[str, Any] = {
        name: pa.chunked_array([each.columns.column(name) for each in parts])
        for name in parts[0].columns.schema.names
    }
    columns["array_id"] = from_numpy(array_ids, pa.uint32())
    return chunk_table({**blank.columns(count), **columns}, count)


def _rests(cutters: Iterable[_Cutter], blank: _Blank) -> dict[int, pa.Table]:
    """Give what is left to the commit, by array id; what it was cut from is let go where that is large."""
    alike: dict[pa.Schema, list[_Cutter]] = {}
    for cutter in cutters:
        if cutter.rows:
            alike.setdefault(cutter.parts[0].columns.schema, []).append(cutter)
    tables = {}
    for some in alike.values():
        parts = [part for cutter in some for part in cutter.parts]
        counts = [cutter.rows for cutter in some]
        ids = np.repeat(np.array([cutter.node_id for cutter in some], np.uint32), counts)
        table = _chunks_of(parts, ids, blank)
        if any(each.columns.get_total_buffer_size() > _LARGE for each in parts):
            table = table.take(indices(np.arange(len(ids))))
        table = table.combine_chunks()
        for cutter, stop in zip(some, accumulate(counts), strict=True):
            rows = table.slice(stop - cutter.rows, cutter.rows)
            tables[cutter.node_id] = cutter.in_order(rows)
    return tables


class _Array(Struct, kw_only=True, eq=False):
    """The references of one array as they come in: straight into manifests, or aside to be sorted."""

    path: str
    cutter: _Cutter
    last_wins: bool
    spill: Spill
    name_row: Callable[[int], str]
    streams: bool = True
    """Whether everything so far came in order, and nothing of it is aside."""
    superseded: list[str] = field(default_factory=list)
    """Manifests whose rows stand in others now."""
    _last: npt.NDArray[Any] | None = None
    _loose: list[KeyedRows] = field(default_factory=list)
    _runs: list[tuple[npt.NDArray[Any], list[tuple[int, int]]]] = field(default_factory=list)
    """The first key of each, and where its batches are."""
    _names: tuple[str, ...] = ()
    _is_slice: bool = False
    _repeated: tuple[int, bytes] | None = None

    @property
    def rows(self) -> int:
        """How many rows are in memory."""
        return self.cutter.rows + sum(map(len, self._loose))

    def add(self, rows: KeyedRows) -> None:
        """Take more rows, in any order."""
        self._is_slice = True
        self._names = tuple(rows.columns.schema.names)
        if self.streams:
            before = rows.keys[:0] if self._last is None else self._last
            keys = np.concatenate([before, rows.keys])
            falls = keys[1:] <= keys[:-1]
            if not falls.any():
                self.cutter.add(rows)
                self._last = rows.keys[-1:].copy()
                return
            at = int(np.argmax(falls)) + 1
            if (
                not self.last_wins and keys[at] == keys[at - 1]
            ):  # the first, as all before are rising
                self._note_repeated(rows, at - len(before))
                self._refuse_repeated()
            self._put_aside()
        self._loose.append(rows)

    def _put_aside(self) -> None:
        self.streams = False
        self._loose = self.cutter.release()

    def _note_repeated(self, rows: KeyedRows, place: int) -> None:
        number = int(rows.numbers[place])
        if self._repeated is None or number < self._repeated[0]:
            self._repeated = number, bytes_at(rows.columns.column("coord"), place)

    def _refuse_repeated(self) -> None:
        if self._repeated is not None:
            number, coord = self._repeated
            raise InvalidInputError(
                f"{self.name_row(number)} for {self.path!r}: chunk {coords.decode_one(coord)} "
                f"stands there twice; duplicates='last' keeps the last of them. Nothing was staged.",
                row=number,
            )

    def _once(self, rows: KeyedRows) -> KeyedRows:
        """Keep one row of each key, of rows in order."""
        same = rows.keys[1:] == rows.keys[:-1]
        if not same.any():
            return rows
        if self.last_wins:
            return rows.take(np.flatnonzero(np.append(~same, True)))
        places = np.flatnonzero(same) + 1
        self._note_repeated(rows, int(places[rows.numbers[places].argmin()]))
        return rows.take(np.flatnonzero(np.append(True, ~same)))

    def _sorted_loose(self) -> KeyedRows:
        rows = concat(self._loose)
        self._loose = []
        return self._once(in_order(rows))

    def write_run(self) -> None:
        """Put everything in memory on disk, as one sorted run."""
        if self.streams and self.rows:
            self._put_aside()
        if self._loose:
            rows = self._sorted_loose()
            self._runs.append((rows.keys[:1].copy(), self.spill.write(rows)))

    def copy_slices(self) -> None:
        """Copy what is in memory where it keeps something larger alive."""
        if not self._is_slice:
            return
        self._is_slice = False
        for parts in (self.cutter.parts, self._loose):
            if parts:
                parts[:] = [concat(parts) if len(parts) > 1 else parts[0].copied()]

    def finish(self) -> None:
        """Bring what went aside in order; what is in memory afterwards is left to the commit."""
        if not self.streams:
            loose = [self._sorted_loose()] if self._loose else []
            firsts = [first for first, _ in self._runs] + [rows.keys[:1] for rows in loose]
            least = min(firsts, key=lambda first: first[0])
            self.superseded = self.cutter.withdraw(int(self.cutter.order.boxes(least)[0]))
            runs = [
                self._recalled(),
                *(self.spill.read(places) for _, places in self._runs),
                iter(loose),
            ]
            del loose
            for rows in merge(runs):
                chosen = self._once(rows)
                if self._repeated is None:
                    self.cutter.add(chosen)
            self._refuse_repeated()
        self.cutter.close()

    def _recalled(self) -> Iterator[KeyedRows]:
        """Read the rows of manifests again that later rows belong between: older than all those."""
        order = self.cutter.order
        for name in self.superseded:
            table = self.cutter.writer.recall(name)
            columns = columns_of(table, self._names)
            index = coords.decode(one_array(table["coord"]), len(order.counts))
            rows = KeyedRows(
                columns=pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)),
                keys=order.keys(index),
                numbers=np.full(len(index), -1, np.int64),
            )
            yield in_order(rows)


class BulkReferences:
    """One bulk write: rows of any arrays go in, slice by slice; what a session stages comes out.

    In order, an array's rows become manifests at once and are forgotten. The first that is out of order makes
    the rows of its array go aside: gathered, sorted, put on disk and merged at the end.
    """

    def __init__(
        self,
        writer: ManifestWriter,
        layout_of: Callable[[ArrayView], Layout],
        *,
        last_wins: bool,
        settings: BulkSettings,
        name_row: Callable[[int], str] = by_number,
    ) -> None:
        self._writer = writer
        self._layout_of = layout_of
        self._last_wins = last_wins
        self._name_row = name_row
        self._settings = settings
        self._spill = Spill(settings.run_batch_rows)
        self._blank = _Blank()
        self._arrays: dict[int, _Array] = {}
        self._newest: _Array | None = None
        self._since_copy = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()

    def _array(self, path: str, view: ArrayView) -> _Array:
        layout = self._layout_of(view)
        cutter = _Cutter(
            node_id=view.node.id,
            order=GridOrder(view.grid.chunk_counts, layout.limit, layout.axis),
            limit=layout.limit,
            held_rows=self._settings.held_rows,
            writer=self._writer,
            blank=self._blank,
        )
        return _Array(
            path=path,
            cutter=cutter,
            last_wins=self._last_wins,
            spill=self._spill,
            name_row=self._name_row,
        )

    def add(
        self,
        path: str,
        view: ArrayView,
        columns: pa.RecordBatch,
        index: npt.NDArray[np.uint64],
        numbers: npt.NDArray[np.int64],
    ) -> None:
        """Take rows of one array: columns of references, their coordinates, their numbers in the input."""
        array = self._arrays.get(view.node.id)
        if array is None:
            array = self._arrays[view.node.id] = self._array(path, view)
        keys = array.cutter.order.keys(index)
        array.add(KeyedRows(columns=columns, keys=keys, numbers=numbers))
        self._newest = array

    def add_manifests(
        self,
        files: Files,
        view: ArrayView,
        inventory: Inventory,
        names: Sequence[str],
        base: Snapshot | None = None,
    ) -> None:
        """Take what some manifests hold of an array: of a chunk in two of them the later one is newer.

        Those that are a snapshot's, ``base``, must hold what it says.
        """
        columns = CHUNK_SCHEMA.names[1:]
        if (inventory.flags & np.uint16(HAS_STATISTICS)).any():
            columns.append(STATISTICS.name)
        entries = {entry.manifest: entry for entry in inventory}
        for name in names:
            entry = entries[name]
            table = files.read_manifest(name)
            if base is not None:
                check_live(table, name, base)
            table = table.slice(entry.row, entry.row_count)
            # by names alone: what comes back from the spill file does not say that columns are never null
            rows = pa.Table.from_pydict(columns_of(table, columns))
            for batch in rows.to_batches(self._settings.slice_rows):
                index = coords.decode(batch.column("coord"), len(entry.extent))
                self.add(view.node.path, view, batch, index, np.zeros(len(index), np.int64))
                self.end_slice(batch.num_rows, batch.nbytes)

    def end_slice(self, row_count: int, size_bytes: int) -> None:
        """Keep memory bounded, after all arrays of a slice of so many rows and bytes were added."""
        settings = self._settings
        bound = settings.gather_rows
        if size_bytes:
            bound = min(bound, max(settings.gather_bytes * row_count // size_bytes, 1))
        # what streams right now needs no more than its manifest, and would gain nothing on disk
        current = self._newest if self._newest is not None and self._newest.streams else None
        others = [each for each in self._arrays.values() if each is not current]
        held = sum(each.rows for each in others)
        if held >= bound:
            for each in sorted(others, key=lambda array: -array.rows):
                held -= each.rows
                each.write_run()
                if held <= bound // 2:
                    break
        self._since_copy += row_count
        if self._since_copy >= bound:
            self._since_copy = 0
            if len(self._arrays) > 1:
                for each in others:
                    each.copy_slices()

    def finish(self) -> list[StagedReferences]:
        """Write and wait for what is to be written; the arrays stand in the order of their first rows."""
        arrays = list(self._arrays.values())
        waiting: list[tuple[int, int]] = []
        held = 0
        for place, array in enumerate(arrays):
            array.finish()
            held += array.rows
            heapq.heappush(waiting, (-array.rows, place))
            while held > self._settings.held_rows_in_all:
                rows, largest = heapq.heappop(waiting)
                held += rows
                arrays[largest].cutter.write_rest()
        self._writer.drop([name for array in arrays for name in array.superseded])
        written = self._writer.finish()
        entries = written.entries.by_owner()
        rests = _rests((array.cutter for array in arrays), self._blank)
        staged = []
        for node_id in self._arrays:
            inventory = entries.get(node_id, NO_INVENTORY)
            bulk = Bulk(
                tables=(rests[node_id],) if node_id in rests else (),
                inventory=inventory,
                sizes={name: written.sizes[name] for name in inventory.names},
                array_id=node_id,
            )
            staged.append(StagedReferences(node_id=node_id, bulk=bulk))
        return staged
