"""What is staged of an array, as segments: newer over older, in whatever order they come, merged or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow import Repository
from icechunk_arrow.core import coords
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.merging import merge, merge_all
from icechunk_arrow.engine.segments import UNSAID, Bulk, Memory, Shrunk, StagedChunks
from tests.core.chunk_rows import Place, binary
from tests.refs import table_of_refs

GRID = (6, 5)
PLACES = [(i, j) for i in range(GRID[0]) for j in range(GRID[1])]
FILE = "0" * 20
some = st.sets(st.sampled_from(PLACES), min_size=1, max_size=12)
blocks = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
    lambda at: {(at[0] + i, at[1] + j) for i in range(3) for j in range(2)}
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), some),
        st.tuples(st.just("delete"), some),
        st.tuples(st.just("table"), some | blocks),
        st.tuples(st.just("manifest"), some | blocks),
        st.tuples(st.just("both"), some),
        st.tuples(st.just("spill"), st.none()),
        st.tuples(st.just("shrink"), st.sampled_from(PLACES)),
        st.tuples(st.just("merge"), st.none()),
        st.tuples(st.just("withdraw"), some),
    ),
    max_size=10,
)


@pytest.fixture(scope="module")
def context() -> Any:
    """An open repository's parts."""
    return Repository.create("memory://segments").readonly_session("main")._context


def rows(places: set[Place], number: int, array_id: int = 7) -> Any:
    """References that tell by their offset which step made them."""
    ref = ChunkRef(file=FILE, offset=number, length=1)
    return table_of_refs(array_id, {coords.encode_one(place): ref for place in places})


def manifest(context: Any, places: set[Place], number: int, array_id: int = 7) -> Bulk:
    """A manifest of one step."""
    with ManifestWriter(context.storage, new_id) as writer:
        writer.write(rows(places, number, array_id), {array_id: 2})
        written = writer.finish()
    return Bulk(inventory=written.entries, sizes=written.sizes, array_id=array_id)


Said = dict[Place, int | None]


def take(context: Any, staged: StagedChunks, said: Said, number: int, step: Any) -> None:
    """Do one step to segments, and to a plain dictionary."""
    kind, given = step
    if kind in {"write", "delete"}:
        value = ChunkRef(file=FILE, offset=number, length=1) if kind == "write" else None
        for place in given:
            staged.singles[coords.encode_one(place)] = value
            said[place] = number if kind == "write" else None
    elif kind in {"table", "manifest", "both"}:
        half = set(sorted(given)[::2]) if kind == "both" else given
        bulk = Bulk() if kind == "table" else manifest(context, half, number)
        left = given if kind == "table" else given - half
        tables = (rows(left, number),) if left else ()
        staged.add(Bulk(tables=tables, inventory=bulk.inventory, sizes=bulk.sizes, array_id=7))
        said.update(dict.fromkeys(given, number))
    elif kind == "spill":
        writes = {coords.decode_one(k): v for k, v in staged.singles.items() if v is not None}
        if writes:
            refs = {coords.encode_one(place): ref for place, ref in writes.items()}
            with ManifestWriter(context.storage, new_id) as writer:
                writer.write(table_of_refs(7, refs), {7: 2})  # type: ignore[arg-type]
                written = writer.finish()
            staged.spill(Bulk(inventory=written.entries, sizes=written.sizes, array_id=7))
    elif kind == "shrink":
        staged.shrink(given)
        said.update({p: None for p in PLACES if p[0] >= given[0] or p[1] >= given[1]})
    elif kind == "merge":
        merge(context, staged, 7)
    else:
        merge(context, staged, 7, without=ChunkSet.of(2, deleted=binary(sorted(given))))
        kept = staged.kept or GRID
        for place in given:
            said.pop(place, None)
            if any(i >= n for i, n in zip(place, kept, strict=True)):
                said[place] = None


def found(context: Any, staged: StagedChunks) -> Said:
    """What look-ups find."""
    answers = {place: staged.find(context.files, place) for place in PLACES}
    return {
        place: value.offset if isinstance(value, ChunkRef) else None
        for place, value in answers.items()
        if value is not UNSAID
    }


@settings(max_examples=150, deadline=None)
@given(given_steps=steps)
def test_look_ups_and_merges_agree_with_a_dictionary(context: Any, given_steps: list[Any]) -> None:
    """After every step, and after a merge, each chunk is what the newest step made of it."""
    staged = StagedChunks()
    said: Said = {}
    for number, step in enumerate(given_steps, 1):
        take(context, staged, said, number, step)
        assert found(context, staged) == said
    before = staged.copy()
    merge_all(context, {7: staged})
    assert found(context, staged) == said == found(context, before)
    kinds = [type(each) for each in staged.segments]
    assert kinds in ([], [Shrunk], [Bulk], [Shrunk, Bulk])
    seen = set(map(coords.decode_one, staged.singles))
    for segment in staged.segments:
        if isinstance(segment, Bulk):
            assert set(segment.inventory.owners.tolist()) <= {7}
            tables = [*segment.tables, *map(context.files.read_manifest, segment.inventory.names)]
            held = [
                coords.decode_one(key) for table in tables for key in table["coord"].to_pylist()
            ]
            assert len(held) == len(set(held)), "a chunk stands there twice"
            assert not seen & set(held), "a row does not count"
            assert {p for p, value in said.items() if value is not None} >= set(held)


def test_rows_of_an_array_that_was_renumbered_are_written_again(context: Any) -> None:
    """After a rebase manifests are marked with the id that the array has now."""
    staged = StagedChunks()
    staged.add(manifest(context, {(0, 0), (1, 1)}, 1))
    merge_all(context, {9: staged})
    (bulk,) = staged.segments

    assert isinstance(bulk, Bulk)
    assert bulk.array_id == 9
    (name,) = bulk.inventory.names
    assert context.files.read_manifest(name)["array_id"].to_pylist() == [9, 9]
    assert found(context, staged) == {(0, 0): 1, (1, 1): 1}


def test_a_manifest_of_several_arrays_is_taken_apart_for_the_others(context: Any) -> None:
    """Where one array overwrites its rows, what the others have there stays, in memory."""
    both = rows({(0, 0)}, 1, 7), rows({(0, 0), (2, 2)}, 1, 8)
    with ManifestWriter(context.storage, new_id) as writer:
        name = writer.write(pa.concat_tables(both), {7: 2, 8: 2})
        written = writer.finish()
    parts = written.entries.by_owner()
    arrays = {
        i: StagedChunks((
            Bulk(
                inventory=parts[i],
                sizes=written.sizes,
                array_id=i,
                tenants={name: frozenset({7, 8})},
            ),
        ))
        for i in (7, 8)
    }  # fmt: skip
    merge_all(context, arrays)
    assert all(len(each.segments[0].inventory) == 1 for each in arrays.values())  # type: ignore[union-attr]

    arrays[7].singles[coords.encode_one((0, 0))] = None
    merge_all(context, arrays)
    assert found(context, arrays[7]) == {(0, 0): None}
    assert found(context, arrays[8]) == {(0, 0): 1, (2, 2): 1}
    (bulk,) = arrays[8].segments
    assert isinstance(bulk, Bulk)
    assert len(bulk.inventory) == 0


def test_single_writes_below_a_bulk_write_with_holes_are_kept(context: Any) -> None:
    """Whether something covers them is not read before it has to be known."""
    staged = StagedChunks(
        singles={coords.encode_one((1, 1)): b"one", coords.encode_one((5, 4)): b"far"}
    )
    staged.add(manifest(context, {(0, 0), (2, 2)}, 1))

    assert [type(each) for each in staged.segments] == [Memory, Bulk]
    assert list(staged.singles) == [coords.encode_one((5, 4))]
    assert staged.find(context.files, (1, 1)) == b"one"
    merge(context, staged, 7)
    assert sorted(staged.singles.values()) == [b"far", b"one"]  # type: ignore[type-var]
