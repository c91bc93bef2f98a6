"""Many references at once: any order, any number, written while they stream in; all or nothing."""

from __future__ import annotations

import itertools
import math
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icechunk_arrow import InvalidInputError, StorageError
from icechunk_arrow.core import coords
from icechunk_arrow.core.splits import box_numbers, box_of
from icechunk_arrow.engine.bulk import BulkSettings
from icechunk_arrow.storage.memory import MemoryStorage
from tests.engine.bulk_place import (
    TINY,
    BulkPlace,
    in_memory,
    manifest_names,
    table_of,
    view_of,
)
from tests.faults.storage_wrappers import LosingStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engine.bulk_place import Row

HUGE = 2**40
ORDERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "sorted": list,
    "reversed": lambda rows: rows[::-1],
    "shuffled": lambda rows: [rows[i] for i in np.random.default_rng(1).permutation(len(rows))],
    "two interleaved": lambda rows: [*rows[::2], *rows[1::2]],
    "late disorder": lambda rows: [*rows[:5], *rows[6:], rows[5]],
}


def whole(path: str, *counts: int, first: int = 0) -> list[Row]:
    """Give every chunk of an array, in order."""
    places = itertools.product(*map(range, counts))
    return [(path, place, first + number) for number, place in enumerate(places)]


def wanted(rows: list[Row]) -> dict[tuple[str, tuple[int, ...]], int]:
    """Tell what must be found: of each chunk the last."""
    return {(path, place): number for path, place, number in rows}


def pieces(rows: list[Row], size: int = 4, **options: Any) -> pa.RecordBatchReader:
    """Give rows through a reader, few at a time."""
    table = table_of(rows, **options)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=size))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, watched."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_gives_the_same_manifests(order: str, axis: int) -> None:
    """However rows come, the same manifests are cut along the grid, and the rest is left to the commit."""
    rows = whole("/a", 10, 9)
    place = BulkPlace({"/a": view_of("/a", 3, (10, 9))}, limit=20, axis=axis)
    expected = BulkPlace(dict(place.views), limit=20, axis=axis)
    staged = place.stage(None, pieces(ORDERS[order](rows)))
    in_order = expected.stage("/a", table_of(rows, paths=False))

    assert place.read(staged) == wanted(rows)
    found = [table for _, table in place.tables(staged)]
    assert len(found) == 5
    for ours, theirs in zip(found, (t for _, t in expected.tables(in_order)), strict=True):
        assert ours.equals(theirs)


@pytest.mark.parametrize(("axis", "cuts"), [(0, [2, 2, 2, 2, 2]), (1, [2, 2, 2, 2, 1])])
def test_cuts_lie_along_the_axis(axis: int, cuts: list[int]) -> None:
    """Manifests of a full array are slabs of it, as thick as the limit allows, along the axis that is named."""
    place = BulkPlace({"/a": view_of("/a", 3, (10, 9))}, limit=20, axis=axis)
    staged = place.stage("/a", table_of(ORDERS["shuffled"](whole("/a", 10, 9)), paths=False))
    tables = [table for _, table in place.tables(staged)]
    tables.sort(key=lambda table: table["coord"][0].as_py())
    spans = []
    for table in tables:
        index = coords.decode(table["coord"].combine_chunks(), 2)
        other = 1 - axis
        assert (index[:, other].min(), index[:, other].max() + 1) == (0, (10, 9)[other])
        spans.append(int(index[:, axis].max() - index[:, axis].min()) + 1)

    assert sorted(spans) == sorted(cuts)


def test_few_rows_are_left_to_the_commit() -> None:
    """Up to the bound an array's rows stay in memory, in order, and no file is written."""
    place = BulkPlace({"/a": view_of("/a", 3, (100,))})
    rows = whole("/a", 10)
    (staged,) = place.stage("/a", pieces(rows[::-1], paths=False))

    assert staged.node_id == 3
    assert len(staged.bulk.inventory) == 0
    assert place.read([staged]) == wanted(rows)
    assert manifest_names(place.storage) == []


def test_one_more_row_and_manifests_are_written() -> None:
    """Beyond the bound whole manifests are written, and only the rest of the last stays in memory."""
    place = BulkPlace({"/a": view_of("/a", 3, (100,))}, limit=4)
    (staged,) = place.stage("/a", pieces(whole("/a", 11), paths=False))

    assert [entry.row_count for entry in staged.bulk.inventory] == [4, 4]
    assert in_memory(staged).num_rows == 3
    large = BulkPlace(dict(place.views), limit=100)
    (staged,) = large.stage("/a", pieces(whole("/a", 11), paths=False))
    assert [entry.row_count for entry in staged.bulk.inventory] == [11]
    assert in_memory(staged).num_rows == 0


def test_all_arrays_together_leave_little() -> None:
    """Where many arrays would leave too much in memory the largest rests become manifests."""
    views = {f"/{i}": view_of(f"/{i}", i + 1, (20,)) for i in range(8)}
    place = BulkPlace(views, limit=100)
    rows = [row for i in range(8) for row in whole(f"/{i}", i + 1)]
    for source in (table_of(rows), pieces(ORDERS["shuffled"](rows))):
        place.storage = MemoryStorage()
        staged = place.stage(None, source)

        assert place.read(staged) == wanted(rows)
        held = {each.node_id: in_memory(each).num_rows for each in staged}
        assert sum(held.values()) <= TINY.held_rows_in_all
        assert min(held) in [n for n, count in held.items() if count]
        assert all(len(each.bulk.inventory) == (held[each.node_id] == 0) for each in staged)


@dataclass(frozen=True)
class Case:
    """A bulk write that hypothesis made up."""

    counts: dict[str, tuple[int, ...]]
    rows: list[Row]
    limit: int
    axis: int
    settings: BulkSettings
    batch: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Arrays of any shape and size, and rows for them in any order."""
    sizes = st.sampled_from([1, 2, 3, 5, 40, HUGE])
    shapes = st.lists(sizes, max_size=3).map(tuple)
    counts = {f"/{name}": draw(shapes) for name in "abc"[: draw(st.integers(1, 3))]}
    rows: list[Row] = []
    for path, shape in counts.items():
        chunk = st.tuples(
            *(st.integers(0, min(n, 12) - 1) | st.integers(max(n - 3, 0), n - 1) for n in shape)
        )
        some = draw(st.lists(chunk, max_size=60))
        if draw(st.booleans()):
            some.sort()
        rows += [(path, place, 0) for place in some]
    if draw(st.booleans()):
        rows = [rows[i] for i in draw(st.permutations(range(len(rows))))]
    settings = replace(
        TINY,
        slice_rows=draw(st.sampled_from([1, 5, 1000])),
        held_rows=draw(st.sampled_from([0, 3, 1000])),
        held_rows_in_all=draw(st.sampled_from([0, 4, 1000])),
        gather_rows=draw(st.sampled_from([1, 6, 1000])),
    )
    return Case(
        counts=counts,
        rows=[(path, place, number) for number, (path, place, _) in enumerate(rows)],
        limit=draw(st.sampled_from([1, 2, 7, 1000])),
        axis=draw(st.integers(0, 2)),
        settings=settings,
        batch=draw(st.sampled_from([1, 3, 1000])),
    )


def _place_for(case: Case) -> BulkPlace:
    axis = min([case.axis, *(max(len(shape) - 1, 0) for shape in case.counts.values())])
    views = {
        path: view_of(path, i + 1, shape) for i, (path, shape) in enumerate(case.counts.items())
    }
    return BulkPlace(views, limit=case.limit, axis=axis, settings=case.settings)


@given(cases())
def test_the_last_of_each_chunk_is_found(case: Case) -> None:
    """Whatever comes in whatever order, each chunk has the reference given last, in one place, as bounds say."""
    place = _place_for(case)
    staged = place.stage(None, pieces(case.rows, case.batch), duplicates="last")

    assert place.read(staged) == wanted(case.rows)
    tables = place.tables(staged)
    written = {id(table) for _, table in tables} - {
        id(table) for each in staged for table in each.bulk.tables
    }
    assert all(t.num_rows <= place.limit for _, t in tables if id(t) in written)
    assert all(in_memory(each).num_rows <= case.settings.held_rows for each in staged)
    assert sum(in_memory(each).num_rows for each in staged) <= case.settings.held_rows_in_all
    for each in staged:
        assert in_memory(each).num_rows or each.bulk.inventory
    for view in place.views.values():
        counts = view.grid.chunk_counts
        box = box_of(counts, place.limit, place.axis)
        boxes = math.prod(-(-n // size) for n, size in zip(counts, box, strict=True))
        if boxes >= 2**64:  # more than can be told apart
            continue
        seen: set[int] = set()
        for node_id, table in tables:
            if node_id == view.node.id:
                index = coords.decode(table["coord"].combine_chunks(), len(counts))
                found = set(box_numbers(index, counts, box, place.axis).tolist())
                assert not found & seen
                seen |= found


@given(cases())
def test_a_chunk_named_twice_is_refused(case: Case) -> None:
    """The first row that repeats a chunk of its array is named, and no file stays; without one all is well."""
    place = _place_for(case)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    repeated: dict[str, int] = {}
    for path, chunk, number in case.rows:
        if (path, chunk) in seen:
            repeated.setdefault(path, number)
        seen.add((path, chunk))
    if not repeated:
        assert place.read(place.stage(None, pieces(case.rows, case.batch))) == wanted(case.rows)
        return
    with pytest.raises(InvalidInputError, match="twice") as caught:
        place.stage(None, pieces(case.rows, case.batch))

    path, chunk, number = case.rows[caught.value.row]  # type: ignore[attr-defined]
    assert repeated[path] == number
    assert f"row {number} of the references for {path!r}: chunk {chunk} " in str(caught.value)
    assert manifest_names(place.storage) == []


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_later_rows_win_across_slices_and_runs(size: int) -> None:
    """Rows that repeat what is already written, on disk or in memory take its place."""
    place = BulkPlace({"/a": view_of("/a", 3, (40,))}, limit=6)
    rows = [*whole("/a", 40), *whole("/a", 40, first=100)[::-3], *whole("/a", 9, first=200)]
    staged = place.stage("/a", pieces(rows, size, paths=False), duplicates="last")

    assert place.read(staged) == wanted(rows)


def test_only_manifests_that_late_rows_belong_to_are_written_again() -> None:
    """A late row costs the manifests from its place on, not those before."""
    place = BulkPlace({"/a": view_of("/a", 3, (40,))}, limit=5)
    rows = whole("/a", 40)
    late = rows.pop(27)
    (staged,) = place.stage("/a", pieces([*rows, late], paths=False))

    assert place.read([staged]) == wanted([*rows, late])
    assert [entry.extent for entry in staged.bulk.inventory][:6] == [
        ((i, i + 5),) for i in range(0, 30, 5)
    ]
    names = [entry.manifest for entry in staged.bulk.inventory]
    assert names[:5] == sorted(names)[:5]
    assert names[5] > names[4]
    assert len(manifest_names(place.storage)) == len(names)


WRONG: dict[str, tuple[str, Any, str]] = {
    "outside": ("index", [99], "outside"),
    "dimensions": ("index", [0, 0], "1 dimensions"),
    "no index": ("index", None, "index is None"),
    "negative": ("offset", -1, "negative"),
    "missing": ("length", None, "missing"),
    "location": ("location", "a/b", "absolute"),
}


def _with_wrong_row(wrong: str, number: int, rows: list[Row]) -> Iterator[pa.RecordBatch]:
    name, value, _ = WRONG[wrong]
    table = table_of(rows, paths=False)
    if name == "offset":
        table = table.set_column(
            table.schema.get_field_index(name), name, table[name].cast(pa.int64())
        )
    values = table[name].to_pylist()
    values[number] = value
    place = table.schema.get_field_index(name)
    changed = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    yield from changed.to_batches(max_chunksize=4)


@pytest.mark.parametrize("order", ["sorted", "reversed"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_row_deep_in_a_reader_leaves_nothing(
    wrong: str, order: str, temporary: Path
) -> None:
    """The row is named by its number in the whole; no manifest, no temporary file and no thread stays."""
    place = BulkPlace({"/a": view_of("/a", 3, (90,))})
    batches = list(_with_wrong_row(wrong, 77, ORDERS[order](whole("/a", 90))))
    taken = []

    def give() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            taken.append(len(manifest_names(place.storage)))
            yield batch

    reader = pa.RecordBatchReader.from_batches(batches[0].schema, give())
    with pytest.raises(InvalidInputError, match=rf"row 77 .*{WRONG[wrong][2]}.*Nothing") as caught:
        place.stage("/a", reader)

    assert caught.value.row == 77  # type: ignore[attr-defined]
    assert max(taken) > 0 or order == "reversed"
    assert manifest_names(place.storage) == []
    assert list(temporary.iterdir()) == []


def test_a_source_that_fails_leaves_nothing(temporary: Path) -> None:
    """An error of whatever gives the references is passed on, and what was written is deleted."""
    place = BulkPlace({"/a": view_of("/a", 3, (200,))})
    table = table_of(ORDERS["two interleaved"](whole("/a", 200)), paths=False)

    def give() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=4)[:30]
        raise RuntimeError("the power went")

    with pytest.raises(Exception, match="the power went"):
        place.stage("/a", pa.RecordBatchReader.from_batches(table.schema, give()))

    assert manifest_names(place.storage) == []
    assert list(temporary.iterdir()) == []


def test_a_storage_that_fails_leaves_nothing() -> None:
    """A manifest that cannot be written is an error, and the others go."""
    inner = MemoryStorage()
    storage = LosingStorage(inner)
    place = BulkPlace({"/a": view_of("/a", 3, (200,))}, storage=storage)
    storage.arm("put", "failed", "00000000B")
    with pytest.raises(StorageError, match="no answer to put"):
        place.stage("/a", pieces(whole("/a", 200), paths=False))

    assert storage.fired
    assert manifest_names(inner) == []


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sorting finds no room on disk the folder is named, and how to choose another."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/folder")
    place = BulkPlace({"/a": view_of("/a", 3, (200,))})
    with pytest.raises(StorageError, match=r"/nonexistent/folder.*TMPDIR"):
        place.stage("/a", pieces(whole("/a", 200)[::-1], paths=False))

    assert manifest_names(place.storage) == []


def test_no_temporary_folder_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every folder for temporary files is full or closed there is none to be named, and a way out."""

    def nowhere(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    place = BulkPlace({"/a": view_of("/a", 3, (200,))})
    with pytest.raises(StorageError, match=r"no temporary folder.*No usable.*TMPDIR"):
        place.stage("/a", pieces(whole("/a", 200)[::-1], paths=False))

    assert manifest_names(place.storage) == []


def test_what_streams_in_order_needs_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in order become manifests without a temporary file, several arrays one after the other too."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/folder")
    settings = replace(TINY, gather_rows=1000)
    views = {path: view_of(path, i + 1, (100,)) for i, path in enumerate(("/a", "/b"))}
    place = BulkPlace(views, settings=settings)
    rows = [*whole("/a", 100), *whole("/b", 100)]

    assert place.read(place.stage(None, pieces(rows))) == wanted(rows)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_memory_does_not_grow_with_the_input(order: str) -> None:
    """A stream ten times as long takes no more memory: a few manifests, the gathered rows, a slice."""
    settings = BulkSettings(
        slice_rows=5000,
        held_rows=5000,
        held_rows_in_all=5000,
        gather_rows=20_000,
        gather_bytes=1 << 30,
        run_batch_rows=500,
    )
    peaks = []
    for count in (60_000, 600_000):
        place = BulkPlace({"/a": view_of("/a", 3, (count,))}, limit=5000, settings=settings)
        base = pa.total_allocated_bytes()
        peak = 0

        def give(count: int = count, base: int = base) -> Iterator[pa.RecordBatch]:
            nonlocal peak
            step = 5000
            for start in range(0, count, step):
                index = np.arange(start, start + step)
                if order == "shuffled":
                    index = (index * 7919) % count  # a permutation, since 7919 is prime
                batch = pa.record_batch(
                    {
                        "index_0": pa.array(index),
                        "location": pa.array(["s3://bucket/one"] * step),
                        "offset": pa.array(index),
                        "length": pa.array(index),
                    }
                )
                peak = max(peak, pa.total_allocated_bytes() - base)
                yield batch

        first = next(give())
        reader = pa.RecordBatchReader.from_batches(first.schema, give())
        (staged,) = place.stage("/a", reader)
        assert in_memory(staged).num_rows + sum(e.row_count for e in staged.bulk.inventory) == count
        peaks.append(peak)

    assert peaks[1] < 1.5 * peaks[0] + (1 << 20)
