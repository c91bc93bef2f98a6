"""Random values of every file kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from icechunk_arrow.core import coords
from icechunk_arrow.core.boxes import volume
from icechunk_arrow.core.chunks import DENSE, ChunkRef, concat_sorted
from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.documents import split_document
from icechunk_arrow.core.ids import encode_id
from icechunk_arrow.core.inventory import Inventory, InventoryEntry
from icechunk_arrow.core.log import (
    BulkWrite,
    ChunkChanges,
    ChunkLog,
    Cleared,
    NodeName,
    NodeUpdate,
    Resize,
    Shift,
    TakenSource,
    TransactionLog,
)
from icechunk_arrow.core.snapshot import (
    AttributesRef,
    MadeFrom,
    Node,
    Snapshot,
    SnapshotFacts,
    SnapshotInfo,
)
from icechunk_arrow.formats import structure
from icechunk_arrow.formats.refs import RefEntry
from icechunk_arrow.formats.state import State
from tests.core.strategies import documents, finite_values
from tests.refs import table_of_refs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.core.boxes import Box

ids = st.binary(min_size=12, max_size=12).map(encode_id)
moments = st.integers(0, 220 * 10**15).map(
    lambda number: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number)
)
milliseconds = st.integers(-(10**12), 10**13).map(
    lambda number: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)
)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
objects = st.dictionaries(texts, finite_values, max_size=3)
indices = st.integers(0, 63) | st.integers(0, 2**14) | st.integers(0, 2**62 - 1)
node_ids = st.integers(1, 300) | st.integers(1, 2**32 - 1)
names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda name: name not in {".", ".."})
paths = st.just("/") | st.lists(names, min_size=1, max_size=3).map(lambda n: "/" + "/".join(n))


@st.composite
def infos(draw: st.DrawFn, times: st.SearchStrategy[datetime] = moments) -> SnapshotInfo:
    """One snapshot of a history."""
    return SnapshotInfo(
        id=draw(ids), parent_id=None, written_at=draw(times), message=draw(texts), metadata={}
    )


@st.composite
def facts(draw: st.DrawFn, largest_id: int = 0) -> SnapshotFacts:
    """The facts of a snapshot, each ancestor's parent being the next and older."""
    count = draw(st.integers(0, 16))
    times = sorted(draw(st.sets(moments, min_size=count + 1, max_size=count + 1)))
    own, *others = draw(st.lists(ids, min_size=count + 1, max_size=count + 1, unique=True))
    history = [
        replace(draw(infos(st.just(times[count - 1 - n]))), id=other)
        for n, other in enumerate(others)
    ]
    parents: list[str | None] = [*(info.id for info in history[1:]), None]
    linked = tuple(
        SnapshotInfo(id=i.id, parent_id=parent, written_at=i.written_at, message=i.message)
        for i, parent in zip(history, parents, strict=False)
    )
    return SnapshotFacts(
        id=own,
        repository=draw(ids),
        message=draw(texts),
        written_at=times[-1],
        started_at=draw(moments.filter(lambda moment: moment <= times[-1]) | st.just(times[-1])),
        properties=draw(objects),
        history=linked,
        total_parents=count if count < 16 else draw(st.integers(16, 2**40)),
        next_node_id=draw(st.integers(largest_id + 1, 2**32)),
        made_from=tuple(
            MadeFrom(kind=kind, snapshot=draw(ids))
            for kind in draw(st.lists(st.sampled_from(["merge", "revert"]), max_size=2))
        ),
        author=draw(st.none() | texts),
        synced=draw(st.booleans()),
    )


@st.composite
def extents(draw: st.DrawFn, ndim: int) -> Box:
    """A half-open range per dimension."""
    starts = [draw(indices) for _ in range(ndim)]
    return tuple((start, start + draw(st.integers(1, 2**16))) for start in starts)


@st.composite
def entries(draw: st.DrawFn, ndim: int) -> InventoryEntry:
    """What one manifest holds of an array: dense, or no more rows than there is room for."""
    extent = draw(extents(ndim))
    room = volume(extent)
    flags = draw(st.integers(0, 127))
    dense = flags & DENSE and room < 2**32
    return InventoryEntry(
        manifest=draw(ids),
        row=draw(st.integers(0, 2**32)),
        extent=extent,
        flags=flags if dense else flags & ~DENSE,
        row_count=room if dense else draw(st.integers(1, min(room, 2**32))),
        stored_bytes=draw(st.integers(0, 2**64 - 1)),
    )


@st.composite
def nodes(draw: st.DrawFn, node_id: int, path: str) -> Node:
    """A node with any valid document."""
    columns, attributes, extension = split_document(draw(documents))
    ndim = 0 if columns is None else len(columns.shape)
    held = [] if columns is None else draw(st.lists(entries(ndim), max_size=3))
    elsewhere = draw(st.booleans())
    return Node(
        id=node_id,
        path=path,
        columns=columns,
        attributes=None if elsewhere else attributes,
        attributes_ref=AttributesRef(identifier=draw(ids), row=draw(st.integers(0, 2**32)))
        if elsewhere
        else None,
        extension=extension,
        inventories=Inventory.of(held, ndim),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[Snapshot, list[Node]]:
    """A snapshot, and the nodes that it was made of."""
    chosen = draw(st.dictionaries(paths, node_ids, max_size=4))
    numbered = {number: path for path, number in chosen.items()}
    drawn = [draw(nodes(number, path)) for number, path in numbered.items()]
    arrays = [node.path.rstrip("/") + "/" for node in drawn if node.is_array]
    held = [
        node for node in drawn
        if not any(node.path != "/" and node.path.startswith(above) for above in arrays)
    ]  # fmt: skip
    largest = max((node.id for node in held), default=0)
    manifests = sorted({name for node in held for name in node.inventories.names})
    sizes = {name: draw(st.integers(0, 2**50)) for name in manifests}
    snapshot = structure.with_changes(
        None, draw(facts(largest)), removed=(), changed=held, manifest_sizes=sizes
    )
    return snapshot, held


@st.composite
def chunk_refs(draw: st.DrawFn) -> ChunkRef:
    """An inline, native or virtual reference."""
    kind = draw(st.sampled_from(["inline", "native", "virtual"]))
    if kind == "inline":
        data = draw(st.binary(max_size=9))
        return ChunkRef(inline=data, length=len(data))
    large = st.integers(0, 100) | st.integers(0, 2**64 - 1)
    maybe = st.booleans()
    return ChunkRef(
        file=draw(ids) if kind == "native" else "s3://bucket/" + draw(names),
        offset=draw(large),
        length=draw(st.integers(0, 2**32 - 1) if draw(maybe) else large),
        etag=draw(st.none() | texts) if kind == "virtual" else None,
        last_modified=draw(st.none() | st.integers(0, 2**50)) if kind == "virtual" else None,
        crc32c=draw(st.none() | st.integers(0, 2**32 - 1)) if kind == "native" else None,
    )


def refs_of(ndim: int) -> st.SearchStrategy[dict[bytes, ChunkRef]]:
    """References of one array by encoded coordinate, at least one."""
    places = st.lists(indices, min_size=ndim, max_size=ndim).map(coords.encode_one)
    return st.dictionaries(places, chunk_refs(), min_size=1, max_size=6)


@st.composite
def chunk_tables(draw: st.DrawFn) -> pa.Table:
    """The rows of a manifest, of one array or several."""
    arrays = draw(st.dictionaries(node_ids, st.integers(0, 3), min_size=1, max_size=3))
    return concat_sorted(
        [table_of_refs(number, draw(refs_of(ndim))) for number, ndim in sorted(arrays.items())]
    )


@st.composite
def node_names(draw: st.DrawFn, type_: str | None = None) -> NodeName:
    """A node as a log speaks of it."""
    kind = type_ or draw(st.sampled_from(["array", "group"]))
    return NodeName(id=draw(node_ids), path=draw(paths), type=kind)


def bulk_writes(ndim: int) -> st.SearchStrategy[BulkWrite]:
    """Many chunks at once."""
    facts: dict[str, st.SearchStrategy[Any]] = {
        "manifest": ids,
        "extent": extents(ndim),
        "chunk_count": st.integers(1, 2**63),
    }
    return st.fixed_dictionaries(facts).map(lambda found: BulkWrite(**found))


@st.composite
def chunk_changes(draw: st.DrawFn) -> ChunkChanges:
    """What happened to the chunks of one array; not nothing."""
    ndim = draw(st.integers(0, 3))
    places = st.sets(
        st.lists(indices, min_size=ndim, max_size=ndim).map(coords.encode_one), max_size=4
    ).map(lambda found: from_values(sorted(found), pa.binary()))
    bulk = bulk_writes(ndim)
    size: dict[str, st.SearchStrategy[Any]] = {
        "extent": extents(ndim),
        "chunk_count": st.integers(0, 2**63),
    }
    cleared = st.fixed_dictionaries(size).map(lambda found: Cleared(**found))
    changes = ChunkChanges(
        written=draw(places),
        deleted=draw(places),
        cleared=tuple(draw(st.lists(cleared, max_size=2))),
        bulk=tuple(draw(st.lists(bulk, max_size=2))),
        kept=draw(st.none() | st.tuples(*[st.integers(0, 2**62)] * ndim)),
    )
    return (
        ChunkChanges(written=from_values([b""], pa.binary()))
        if not ChunkLog.of({1: changes})
        else changes
    )


@st.composite
def logs(draw: st.DrawFn) -> TransactionLog:
    """What a commit did."""
    some = st.lists(node_names(), max_size=3).map(lambda each: _by_path(each, lambda node: node))
    updates = st.lists(
        st.builds(NodeUpdate, node_names(), st.lists(texts, max_size=2).map(tuple)), max_size=2
    ).map(lambda each: _by_path(each, lambda update: update.node))
    touched = draw(st.dictionaries(node_ids, chunk_changes(), max_size=3))
    shape = st.lists(st.integers(0, 2**63), max_size=3).map(tuple)
    resizes = st.lists(st.builds(Resize, node_names(), shape, shape), max_size=2)
    placed = st.dictionaries(node_ids, st.tuples(bulk_writes(2)), max_size=2)
    relocated, annotated = draw(placed), draw(placed)
    shift = st.builds(Shift, node_names(), st.tuples(st.integers(-5, 5)))
    source = st.builds(
        TakenSource,
        texts,
        st.none() | texts,
        st.none() | st.integers(0, 2**50),
        st.none() | st.integers(0, 2**60),
    )
    shifted = draw(st.lists(shift, max_size=2, unique_by=lambda each: each.node.id))
    spoken_of = {*touched, *relocated, *annotated}
    return TransactionLog(
        facts=draw(facts()),
        created=draw(some),
        deleted=draw(some),
        moved=_by_path(
            draw(st.lists(st.tuples(node_names(), paths), max_size=2)), lambda move: move[0]
        ),
        updated_metadata=draw(updates),
        updated_attributes=draw(updates),
        resized=_by_path(draw(resizes), lambda resize: resize.node),
        shifted=tuple(sorted(shifted, key=lambda each: each.node.id)),
        chunks=ChunkLog.of(touched),
        relocated=relocated,
        annotated=annotated,
        sources=tuple(draw(st.lists(source, max_size=2))),
        names={
            **{i: NodeName(id=i, path=draw(paths), type="array") for i in spoken_of},
            **{each.node.id: each.node for each in shifted},
        },
    )


def _by_path(some: list[Any], node_of: Callable[[Any], NodeName]) -> tuple[Any, ...]:
    """Operations of one kind as a log has them: each node once, by path."""
    by_path = {node_of(each).path: each for each in some}
    return tuple(by_path[path] for path in sorted(by_path))


attribute_rows = st.lists(
    st.tuples(node_ids, st.binary(max_size=20)), min_size=1, max_size=5, unique_by=lambda r: r[0]
)
ref_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: (
        name == name.strip() and not any(c in "/\\" or ord(c) < 32 or ord(c) == 127 for c in name)
    )
)
ENTRY_KEY = "refs/branch.main/ZZZZZZZZ.json"
ref_entries = st.builds(RefEntry, snapshot=ids, catalog=st.sampled_from([None, "state"])) | (
    st.builds(RefEntry, snapshot=ids, write_id=ids, deleted=st.booleans(), key=st.just(ENTRY_KEY))
)


@st.composite
def states(draw: st.DrawFn) -> State:
    """A state file's contents."""
    held = draw(st.lists(infos(milliseconds), min_size=1, max_size=4, unique_by=lambda i: i.id))
    known = [info.id for info in held]
    linked = tuple(
        SnapshotInfo(
            id=info.id,
            parent_id=draw(st.none() | ids),
            written_at=info.written_at,
            message=info.message,
            metadata=draw(objects),
        )
        for info in held
    )
    pointers = st.dictionaries(ref_names, st.sampled_from(known), max_size=3)
    tags: dict[str, str] = draw(pointers)
    withdrawn: dict[str, str] = draw(st.dictionaries(ref_names, ids, max_size=2))
    return State(
        id=known[0],
        generation=draw(st.integers(0, 2**53)),
        snapshots=linked,
        branches={**draw(pointers), "main": draw(st.sampled_from(known))},
        tags=tags,
        withdrawn_tags={name: i for name, i in withdrawn.items() if name not in tags},
        store_root=draw(st.none() | texts.filter(bool)),
        write_id=draw(st.none() | ids),
    )


def inventories_of(node: Node) -> list[InventoryEntry]:
    """The entries of a node, as values that can be compared."""
    return list(node.inventories)


def rows_and_groups(row_count: int, array_id: int = 1) -> pa.Table:
    """A dense manifest of one array with one dimension."""
    place = coords.encode(np.arange(row_count, dtype=np.uint64).reshape(-1, 1))
    file = encode_id(bytes(12))
    found: dict[bytes, Any] = {
        key: ChunkRef(file=file, offset=100 * row, length=100)
        for row, key in enumerate(place.to_pylist())
    }
    return table_of_refs(array_id, found)
