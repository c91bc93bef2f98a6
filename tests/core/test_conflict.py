"""Which changes go together: each of the eleven conflicts from logs alone, and the solvers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.conflict import (
    MOST_LISTED,
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictType,
    VersionSelection,
    chunks_of,
    conflicts,
    to_be_read,
)
from icechunk_arrow.core.coords import decode_one, encode_one
from icechunk_arrow.core.log import (
    BulkWrite,
    ChunkChanges,
    ChunkLog,
    NodeName,
    NodeUpdate,
    TransactionLog,
)
from tests.formats.kinds import ID

if TYPE_CHECKING:
    from collections.abc import Iterable

T = ConflictType
A = NodeName(id=1, path="/a", type="array")
B = NodeName(id=2, path="/b", type="array")
G = NodeName(id=3, path="/g", type="group")
INNER = NodeName(id=4, path="/g/x", type="array")
NOTHING = TransactionLog()


Sides = tuple[ChunkChanges, set[Any], dict[Any, set[Any]]]
Known = dict[tuple[int, str], pa.Array]
NOTHING_READ: Known = {}
"""Dense writes are known by their extent: nobody looks at their coordinates."""


def with_manifests(name: str, side: Sides) -> tuple[ChunkChanges, Known]:
    """Give each bulk write of a side a manifest of its own, and what would be read there."""
    changes_, _, holes = side
    bulk = [replace(each, manifest=f"{name}{n}") for n, each in enumerate(changes_.bulk)]
    known = {
        (A.id, each.manifest): encoded(holes[each.extent]) for each in bulk if not each.is_dense
    }
    return replace(changes_, bulk=tuple(bulk)), known


def conflicts_of(mine: Sides, other: Sides) -> tuple[Conflict, ...]:
    """What is found by reading no more than is asked for."""
    (ours, known), (theirs, more) = with_manifests("m", mine), with_manifests("o", other)
    both = log(chunks={A: ours}), log(chunks={A: theirs})
    asked = {(node_id, bulk.manifest) for node_id, bulk in to_be_read(*both)}
    return conflicts(
        *both, {key: coords for key, coords in {**known, **more}.items() if key in asked}
    )


def log(**facts: Any) -> TransactionLog:
    """A log; ``chunks`` maps nodes to changes."""
    chunks = facts.pop("chunks", {})
    members: dict[str, Any] = {name: tuple(value) for name, value in facts.items()}
    for name in {"updated_metadata", "updated_attributes"} & members.keys():
        members[name] = tuple(NodeUpdate(node, ("codecs",)) for node in members[name])
    return TransactionLog(
        **members,
        chunks=ChunkLog.of({node.id: changes for node, changes in chunks.items()}),
        names={node.id: node for node in chunks},
    )


def new(path: str, kind: str = "array", node_id: int = 9) -> NodeName:
    """A created node."""
    return NodeName(id=node_id, path=path, type=kind)


def encoded(places: Iterable[tuple[int, ...]]) -> pa.Array:
    """Coordinates as a log has them."""
    return from_values(sorted(map(encode_one, places)), pa.binary())


def wrote(*places: tuple[int, ...]) -> ChunkChanges:
    """Single chunks written."""
    return ChunkChanges(written=encoded(places))


def removed(*places: tuple[int, ...]) -> ChunkChanges:
    """Single chunks deleted."""
    return ChunkChanges(deleted=encoded(places))


def box(*extent: tuple[int, int], count: int | None = None) -> BulkWrite:
    """A bulk write, dense unless a count is given."""
    full = 1
    for start, stop in extent:
        full *= stop - start
    return BulkWrite(manifest=ID, extent=extent, chunk_count=full if count is None else count)


def kinds(ours: TransactionLog, theirs: TransactionLog) -> list[tuple[ConflictType, str]]:
    """Types and paths of what is found."""
    return [(c.conflict_type, c.path) for c in conflicts(ours, theirs, NOTHING_READ)]


def test_there_are_the_eleven_types() -> None:
    """Icechunk's names and numbers for ten, and one for moves."""
    assert [(t.name, t.value) for t in T] == [
        ("NewNodeConflictsWithExistingNode", 1),
        ("NewNodeInInvalidGroup", 2),
        ("ZarrMetadataDoubleUpdate", 3),
        ("ZarrMetadataUpdateOfDeletedArray", 4),
        ("ZarrMetadataUpdateOfDeletedGroup", 5),
        ("ChunkDoubleUpdate", 6),
        ("ChunksUpdatedInDeletedArray", 7),
        ("ChunksUpdatedInUpdatedArray", 8),
        ("DeleteOfUpdatedArray", 9),
        ("DeleteOfUpdatedGroup", 10),
        ("MoveOperationCannotBeRebased", 11),
    ]


CASES = {
    "both create a node": (
        log(created=[new("/n")]),
        log(created=[new("/n", "group", 8)]),
        [(T.NewNodeConflictsWithExistingNode, "/n")],
    ),
    "ours below their array": (
        log(created=[new("/n/x/y")]),
        log(created=[new("/n")]),
        [(T.NewNodeInInvalidGroup, "/n/x/y")],
    ),
    "ours in a group that they deleted": (
        log(created=[new("/g/y")]),
        log(deleted=[G]),
        [(T.NewNodeInInvalidGroup, "/g/y")],
    ),
    "ours in a group that both replaced": (
        log(created=[new("/g", "group", 10), new("/g/y")], deleted=[G]),
        log(deleted=[G]),
        [],
    ),
    "our array above their node": (
        log(created=[new("/n")]),
        log(created=[new("/n/x/y", "group")]),
        [(T.NewNodeInInvalidGroup, "/n")],
    ),
    "both update metadata": (
        log(updated_metadata=[A]),
        log(updated_metadata=[A]),
        [(T.ZarrMetadataDoubleUpdate, "/a")],
    ),
    "metadata and attributes": (
        log(updated_attributes=[G]),
        log(updated_metadata=[G]),
        [(T.ZarrMetadataDoubleUpdate, "/g")],
    ),
    "we update an array that they deleted": (
        log(updated_attributes=[A]),
        log(deleted=[A]),
        [(T.ZarrMetadataUpdateOfDeletedArray, "/a")],
    ),
    "we update a group that they deleted": (
        log(updated_metadata=[G]),
        log(deleted=[G]),
        [(T.ZarrMetadataUpdateOfDeletedGroup, "/g")],
    ),
    "both write a chunk": (
        log(chunks={A: wrote((0, 1), (5, 5))}),
        log(chunks={A: wrote((0, 1), (2, 2))}),
        [(T.ChunkDoubleUpdate, "/a")],
    ),
    "we delete a chunk that they wrote": (
        log(chunks={A: removed((0, 1))}),
        log(chunks={A: wrote((0, 1))}),
        [(T.ChunkDoubleUpdate, "/a")],
    ),
    "we write chunks of an array that they deleted": (
        log(chunks={A: wrote((0,))}),
        log(deleted=[A]),
        [(T.ChunksUpdatedInDeletedArray, "/a")],
    ),
    "we write chunks of an array that they changed": (
        log(chunks={A: wrote((0,))}),
        log(updated_metadata=[A]),
        [(T.ChunksUpdatedInUpdatedArray, "/a")],
    ),
    "we delete an array whose chunks they wrote": (
        log(deleted=[A]),
        log(chunks={A: wrote((0,))}),
        [(T.DeleteOfUpdatedArray, "/a")],
    ),
    "we delete an array that they changed": (
        log(deleted=[A]),
        log(updated_attributes=[A]),
        [(T.DeleteOfUpdatedArray, "/a")],
    ),
    "we delete a group that they changed": (
        log(deleted=[G]),
        log(updated_metadata=[G]),
        [(T.DeleteOfUpdatedGroup, "/g")],
    ),
    "we delete a group in which they made a node": (
        log(deleted=[G]),
        log(created=[new("/g/new")]),
        [(T.DeleteOfUpdatedGroup, "/g")],
    ),
    "they moved": (
        log(chunks={B: wrote((0,))}),
        log(moved=[(A, "/old")]),
        [(T.MoveOperationCannotBeRebased, "/old")],
    ),
    "we moved": (
        log(moved=[(A, "/old")]),
        log(chunks={B: wrote((0,))}),
        [(T.MoveOperationCannotBeRebased, "/old")],
    ),
    "two at once": (
        log(updated_metadata=[A, G], deleted=[B]),
        log(updated_metadata=[A], deleted=[G], chunks={B: wrote((0,))}),
        [
            (T.ZarrMetadataDoubleUpdate, "/a"),
            (T.ZarrMetadataUpdateOfDeletedGroup, "/g"),
            (T.DeleteOfUpdatedArray, "/b"),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_go_together(case: str) -> None:
    """Each conflict is found, named by its type and by the path as we know it."""
    ours, theirs, expected = CASES[case]

    assert kinds(ours, theirs) == expected
    unsolved = ConflictDetector().solve(conflicts(ours, theirs, NOTHING_READ)).unsolved
    assert [(c.conflict_type, c.path) for c in unsolved] == expected


def test_every_type_has_a_case() -> None:
    """The table above misses none."""
    assert {kind for _, _, expected in CASES.values() for kind, _ in expected} == set(T)


PEACE = {
    "nothing": (NOTHING, NOTHING),
    "different nodes": (
        log(created=[new("/n")], updated_metadata=[A], chunks={A: wrote((0,))}, deleted=[INNER]),
        log(created=[new("/m")], updated_metadata=[B], chunks={B: wrote((0,))}),
    ),
    "different chunks": (log(chunks={A: wrote((0,))}), log(chunks={A: wrote((1,))})),
    "different boxes": (
        log(chunks={A: ChunkChanges(bulk=(box((0, 5), (0, 5)),))}),
        log(chunks={A: ChunkChanges(bulk=(box((5, 9), (0, 5)),))}),
    ),
    "both delete": (log(deleted=[A, G]), log(deleted=[A, G])),
    "they wrote, we change metadata": (
        log(updated_metadata=[A]),
        log(chunks={A: wrote((0,))}),
    ),
    "new groups beside each other": (
        log(created=[new("/n/x", "group")]),
        log(created=[new("/n", "group"), new("/n/y")]),
    ),
    "names that only resemble": (log(created=[new("/nn")]), log(created=[new("/n")])),
    "an id given out twice": (
        log(created=[new("/n", node_id=7)], chunks={new("/n", node_id=7): wrote((0,))}),
        log(created=[new("/m", node_id=7)], chunks={new("/m", node_id=7): wrote((0,))}),
    ),
}


@pytest.mark.parametrize("case", PEACE)
def test_what_goes_together(case: str) -> None:
    """Changes that touch different things follow each other in either order."""
    ours, theirs = PEACE[case]

    assert kinds(ours, theirs) == []
    assert not ConflictDetector().solve(conflicts(ours, theirs, NOTHING_READ)).unsolved


coordinates: st.SearchStrategy[Any] = st.sets(
    st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5
)
ranges = st.tuples(st.integers(0, 4), st.integers(1, 3)).map(lambda p: (p[0], p[0] + p[1]))


@st.composite
def changes(draw: st.DrawFn) -> tuple[ChunkChanges, set[tuple[int, ...]], dict[Any, set[Any]]]:
    """Changes to chunks, the set of chunks that they touch, and coordinates of boxes with holes."""
    written: set[tuple[int, ...]] = draw(coordinates)
    deleted: set[tuple[int, ...]] = draw(coordinates)
    bulk: list[BulkWrite] = []
    holes: dict[Any, set[Any]] = {}
    for extent in draw(st.lists(st.tuples(ranges, ranges), max_size=1)):
        full = set(itertools.product(*(range(a, b) for a, b in extent)))
        if draw(st.booleans()):
            bulk.append(box(*extent))
            deleted |= full
        else:
            some = draw(st.sets(st.sampled_from(sorted(full)), min_size=1))
            if len(some) < len(full):
                bulk.append(box(*extent, count=len(some)))
                holes[extent] = some
    touched = written | draw(st.just(deleted)) | set().union(*holes.values())
    single = deleted - set().union(
        *(set(itertools.product(*(range(a, b) for a, b in e.extent))) for e in bulk if e.is_dense)
    )
    found = ChunkChanges(
        written=encoded(written),
        deleted=encoded(single),
        bulk=tuple(bulk),
    )
    return found, touched, holes


@given(changes(), changes())
def test_chunks_that_both_touched(
    mine: tuple[ChunkChanges, set[Any], dict[Any, set[Any]]],
    other: tuple[ChunkChanges, set[Any], dict[Any, set[Any]]],
) -> None:
    """Singles, full boxes and boxes with holes: a conflict exactly where a chunk is in both."""
    found = conflicts_of(mine, other)
    both = mine[1] & other[1]

    assert bool(found) == bool(both)
    for conflict in found:
        assert conflict.conflict_type is T.ChunkDoubleUpdate
        assert conflict.node_id == A.id
        assert set(conflict.conflicted_chunks or ()) <= both
        assert (conflict.chunk_count or 0) >= 1
        if not (mine[0].bulk or other[0].bulk):
            assert conflict.conflicted_chunks == tuple(sorted(both))
            assert conflict.chunk_count == len(both)


@st.composite
def sides(draw: st.DrawFn) -> tuple[ChunkChanges, set[Any], dict[Any, set[Any]]]:
    """What a session or a commit did in bulk and singly, no chunk twice, as a log tells it."""
    taken: set[Any] = set()
    bulk: list[BulkWrite] = []
    holes: dict[Any, set[Any]] = {}
    for extent in draw(st.lists(st.tuples(ranges, ranges), max_size=4)):
        full = set(itertools.product(*(range(a, b) for a, b in extent)))
        if full & taken:
            continue
        some = draw(st.just(full) | st.sets(st.sampled_from(sorted(full)), min_size=1))
        bulk.append(box(*extent, count=len(some)))
        if len(some) < len(full):
            holes[extent] = some
        taken |= full
    written: set[Any] = draw(coordinates) - taken
    deleted: set[Any] = draw(coordinates) - taken - written
    every = [
        *(holes.get(b.extent, set(itertools.product(*(range(*r) for r in b.extent)))) for b in bulk)
    ]
    found = ChunkChanges(
        written=encoded(written),
        deleted=encoded(deleted),
        bulk=tuple(bulk),
    )
    return found, written.union(deleted, *every), holes


@given(sides(), sides())
def test_bulk_against_bulk(
    mine: tuple[ChunkChanges, set[Any], dict[Any, set[Any]]],
    other: tuple[ChunkChanges, set[Any], dict[Any, set[Any]]],
) -> None:
    """Boxes of both sides, with holes or without, and single chunks: every common one counts once."""
    both = mine[1] & other[1]
    for ours, theirs in ((mine, other), (other, mine)):
        found = conflicts_of(ours, theirs)
        assert [c.chunk_count for c in found] == [len(both)] * bool(both)
        for conflict in found:
            listed = conflict.conflicted_chunks or ()
            assert 0 < len(set(listed)) == len(listed)
            assert set(listed) <= both


@given(sides())
def test_the_chunks_of_changes(
    side: tuple[ChunkChanges, set[Any], dict[Any, set[Any]]],
) -> None:
    """Full boxes stay boxes; single chunks and those of boxes with holes are named one by one."""
    changes_, touched, _ = side
    named, known = with_manifests("m", side)
    found = chunks_of(named, {manifest: coords for (_, manifest), coords in known.items()})
    single = set(map(decode_one, found.coordinates.to_pylist()))
    dense = [bulk.extent for bulk in changes_.bulk if bulk.is_dense]

    assert list(found.boxes) == dense
    assert touched == single.union(*(itertools.product(*(range(*r) for r in e)) for e in dense))


def test_two_large_boxes_are_compared_by_their_extents() -> None:
    """A hundred million chunks on each side: the count is exact, and no more are enumerated than are named."""
    ours = log(chunks={A: ChunkChanges(bulk=(box((0, 10_000), (0, 10_000)),))})
    theirs = log(chunks={A: ChunkChanges(bulk=(box((9_000, 20_000), (5_000, 15_000)),))})
    (found,) = conflicts(ours, theirs, NOTHING_READ)

    assert found.chunk_count == 1_000 * 5_000
    assert found.conflicted_chunks == tuple((9_000, 5_000 + n) for n in range(MOST_LISTED))


def test_a_conflict_lists_so_many_chunks_and_counts_all() -> None:
    """Errors stay readable."""
    places = [(n,) for n in range(MOST_LISTED + 5)]
    (found,) = conflicts(
        log(chunks={A: wrote(*places)}), log(chunks={A: wrote(*places)}), NOTHING_READ
    )

    assert found.conflicted_chunks == tuple(places[:MOST_LISTED])
    assert found.chunk_count == MOST_LISTED + 5


def test_boxes_with_holes_are_looked_into_only_where_they_matter() -> None:
    """A manifest is read for its coordinates only when the other side comes near."""
    holed = ChunkChanges(bulk=(box((0, 10), (0, 10), count=2),))

    ours = log(chunks={A: holed})
    far, near = (log(chunks={A: wrote(place)}) for place in ((10, 3), (9, 3)))

    assert to_be_read(ours, far) == []
    assert not conflicts(ours, far, NOTHING_READ)
    assert to_be_read(ours, near) == to_be_read(near, ours) == [(A.id, holed.bulk[0])]
    assert conflicts(ours, near, {(A.id, ID): encoded([(9, 3), (0, 0)])})
    assert not conflicts(ours, near, {(A.id, ID): encoded([(9, 4), (0, 0)])})


def test_an_id_that_both_gave_out_is_no_reason_to_read() -> None:
    """A node of theirs with the id of one of ours is another array, of whatever rank."""
    ours = log(chunks={A: ChunkChanges(bulk=(box((0, 10), (0, 10), count=2),))})
    theirs = log(created=[A], chunks={A: ChunkChanges(bulk=(box((0, 10), count=2),))})

    assert to_be_read(ours, theirs) == []
    assert not conflicts(ours, theirs, NOTHING_READ)


def found(kind: ConflictType, node_id: int = 1) -> Conflict:
    """A conflict as a solver sees it."""
    return Conflict(conflict_type=kind, path="/a", node_id=node_id)


ALL = tuple(found(kind) for kind in T)
HARD = set(T) - {T.ChunkDoubleUpdate, T.DeleteOfUpdatedArray, T.DeleteOfUpdatedGroup}


def test_the_detector_settles_nothing() -> None:
    """Every conflict comes back."""
    resolution = ConflictDetector().solve(ALL)

    assert resolution.unsolved == ALL
    assert resolution.drop_chunks_of == frozenset()


@pytest.mark.parametrize("on_chunks", VersionSelection)
@pytest.mark.parametrize("fail_array", [False, True])
@pytest.mark.parametrize("fail_group", [False, True])
def test_the_basic_solver_settles_what_its_settings_say(
    on_chunks: VersionSelection, fail_array: bool, fail_group: bool
) -> None:
    """Chunks by either side, deletions by ours; everything else comes back."""
    solver = BasicConflictSolver(
        on_chunk_conflict=on_chunks,
        fail_on_delete_of_updated_array=fail_array,
        fail_on_delete_of_updated_group=fail_group,
    )
    resolution = solver.solve(ALL)
    expected = HARD | {
        kind
        for kind, fails in (
            (T.ChunkDoubleUpdate, on_chunks is VersionSelection.Fail),
            (T.DeleteOfUpdatedArray, fail_array),
            (T.DeleteOfUpdatedGroup, fail_group),
        )
        if fails
    }

    assert {c.conflict_type for c in resolution.unsolved} == expected
    dropped = {1} if on_chunks is VersionSelection.UseTheirs else set()
    assert resolution.drop_chunks_of == dropped


def test_the_basic_solver_keeps_our_side_by_default() -> None:
    """As in icechunk: ours wins chunks, deletions go through."""
    assert BasicConflictSolver() == BasicConflictSolver(
        on_chunk_conflict=VersionSelection.UseOurs,
        fail_on_delete_of_updated_array=False,
        fail_on_delete_of_updated_group=False,
    )
    assert BasicConflictSolver().solve((found(T.ChunkDoubleUpdate),)).unsolved == ()
