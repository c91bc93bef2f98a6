"""What a session has changed so far and not committed: nodes and chunks over a base snapshot.

Owns the picture of "base plus changes" that a session reads through, in memory; does no reading or writing.
Not safe for threads by itself: the session holds the lock.

Small writes are single entries, bulk writes sorted tables, and large ones *runs*: manifests that are written
already and that no snapshot names yet. Newer wins: entries over tables, later tables over earlier ones, these
over runs, which have no chunk in common, and all over the base.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import compress, islice, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import coords
from icechunk_arrow.core.chunk_set import ChunkSet
from icechunk_arrow.core.chunks import (
    CHUNK_SCHEMA,
    ChunkRef,
    concat_sorted,
    keep_rows,
    member_mask,
    ref_of_row,
    with_array_id,
)
from icechunk_arrow.core.columns import from_numpy, from_values, one_array
from icechunk_arrow.core.documents import join_document, same_json, split_document
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.core.snapshot import Node
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from icechunk_arrow.core.documents import ArrayColumns
    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.inventory import Inventory
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.payloads import PayloadWriter
    from icechunk_arrow.engine.view import ArrayView

__all__ = ["NO_RUNS", "ArrayDelta", "Runs", "Staging"]

_ABSENT = object()
_BINARY = CHUNK_SCHEMA.field("coord").type
Staged = ChunkRef | bytes | None
"""A reference, bytes that are not written yet, or None for a deleted chunk."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Manifests of one array that a session wrote and no snapshot names; no chunk stands in two of them."""

    inventories: Inventory = NO_INVENTORY
    sizes: Mapping[str, int] = field(default_factory=dict)
    array_id: int = 0
    """The array that their rows are marked with; after a rebase the array may have another id."""
    kept: tuple[int, ...] | None = None
    """Rows outside this many chunks along each dimension are void: the array shrank."""

    def __len__(self) -> int:
        return len(self.inventories)

    def hold(self, coord: tuple[int, ...]) -> bool:
        """Whether a chunk that is there, if it is, still counts."""
        return self.kept is None or all(i < n for i, n in zip(coord, self.kept, strict=True))


NO_RUNS = Runs()


@dataclass(kw_only=True, eq=False)
class ArrayDelta:
    """Uncommitted chunks of one array."""

    entries: dict[bytes, Staged] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    runs: Runs = NO_RUNS
    """Inventory and tables cover rows of these."""
    kept: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not (self.entries or self.tables or len(self.runs) or self.kept is not None)

    def find(self, coord: bytes) -> tuple[bool, Staged]:
        """Whether the session says anything of a chunk, and what."""
        staged = self.entries.get(coord, _ABSENT)
        if staged is not _ABSENT:
            return True, staged  # type: ignore[return-value]
        for table in reversed(self.tables):
            column = one_array(table["coord"])
            row = bisect_left(range(len(column)), coord, key=lambda i: column[i].as_py())
            if row < len(column) and column[row].as_py() == coord:
                return True, ref_of_row(table, row)
        return False, None

    def keeps(self, coord: tuple[int, ...]) -> bool:
        """Whether a chunk of the base is still there after the array shrank."""
        kept = self.kept
        return kept is None or all(i < n for i, n in zip(coord, kept, strict=True))

    def void_in_runs(self) -> ChunkSet:
        """Tell which rows of the runs do not count, for newer ones or because the array shrank."""
        present, gone = self.coordinates()
        ndim = self.runs.inventories.boxes.ndim
        return ChunkSet.of(ndim, written=present, deleted=gone, kept=self.runs.kept)

    def forget(self, covered: ChunkSet) -> None:
        """Drop entries and tables that something newer covers."""
        keys = list(self.entries)
        for key, gone in zip(keys, covered.mask(from_values(keys, _BINARY)).tolist(), strict=True):
            if gone:
                del self.entries[key]
        kept = []
        for table in self.tables:
            mask = ~covered.mask(one_array(table["coord"]))
            if mask.any():
                kept.append(keep_rows(table, mask))
        self.tables = kept

    def add_table(self, table: pa.Table) -> None:
        """Lay many references over what was there."""
        # first, so that a reader in another thread never sees less than what was there before
        self.tables.append(table)
        if self.entries:
            column = one_array(table["coord"])
            staged = from_values(list(self.entries), _BINARY)
            covered = member_mask(staged, column)
            for key, gone in zip(list(self.entries), covered.tolist(), strict=True):
                if gone:
                    del self.entries[key]

    def shrink(self, counts: tuple[int, ...]) -> None:
        """Drop what lies outside a smaller grid, for ever."""
        self.kept = _smaller(self.kept, counts)
        if len(self.runs):
            self.runs = replace(self.runs, kept=_smaller(self.runs.kept, counts))
        limit = np.array(counts, np.uint64)
        self.entries = {
            coord: value
            for coord, value in self.entries.items()
            if all(i < n for i, n in zip(coords.decode_one(coord), counts, strict=True))
        }
        inside = [
            np.all(coords.decode(one_array(table["coord"]), len(counts)) < limit, axis=1)
            for table in self.tables
        ]
        self.tables = [keep_rows(t, m) for t, m in zip(self.tables, inside, strict=True) if m.any()]

    def coordinates(self) -> tuple[pa.Array, pa.Array]:
        """Coordinates of chunks that are staged in memory, and of those that are deleted."""
        entries = list(self.entries.items())
        present = from_values([key for key, value in entries if value is not None], _BINARY)
        gone = from_values([key for key, value in entries if value is None], _BINARY)
        for table in reversed(self.tables):
            column = one_array(table["coord"])
            new = ~(member_mask(column, present) | member_mask(column, gone))
            present = pa.concat_arrays([present, column.filter(from_numpy(new, pa.bool_()))])
        return present, gone

    def merged(self, array_id: int, refs: pa.Table, deleted: pa.Array) -> pa.Table:
        """Lay the references that were staged one by one, and what was deleted, over the tables."""
        tables = [refs] if refs.num_rows else []
        for table in reversed(self.tables):
            rest = with_array_id(table, array_id)
            for cover in (*tables, None):
                over = deleted if cover is None else one_array(cover["coord"])
                if len(over) and rest.num_rows:
                    rest = keep_rows(rest, ~member_mask(rest["coord"], over))
            if rest.num_rows:
                tables.append(rest)
        return concat_sorted(tables)


def _smaller(kept: tuple[int, ...] | None, counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(a, b) for a, b in zip(kept or counts, counts, strict=True))


class Staging:
    """Nodes and chunks as a session sees them."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.overlay: dict[str, Node | None] = {}
        self._parents: set[str] = set()
        self._kinds: dict[ArrayColumns, ArrayColumns] = {}
        """Arrays that are alike share what is known of them."""
        self.deltas: dict[int, ArrayDelta] = {}
        self.next_node_id = base.facts.next_node_id
        self.views: dict[str, ArrayView | None] = {}
        """Arrays that were looked for, as they stand now; kept here, so that they never outlive what they show."""
        self.shared_runs: dict[str, frozenset[int]] = {}
        """Manifests among the runs that hold rows of several arrays, and of which."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not self.overlay and not self.deltas

    def copy(self) -> Staging:
        """Give the same changes, to go back to."""
        made = Staging(self.base)
        made.overlay, made._parents = dict(self.overlay), set(self._parents)
        made.deltas = {
            node_id: replace(delta, entries=dict(delta.entries), tables=list(delta.tables))
            for node_id, delta in self.deltas.items()
        }
        made.next_node_id, made.shared_runs = self.next_node_id, dict(self.shared_runs)
        return made

    def is_committed(self, node_id: int) -> bool:
        """Whether a node is in the base, so that others know it too."""
        return node_id in self.base.rows_by_id

    def find_node(self, path: str) -> Node | None:
        """Find a node as it stands now."""
        if path in self.overlay:
            return self.overlay[path]
        return self.base.find_node(path)

    def paths(self) -> list[str]:
        """Paths of all nodes, sorted."""
        if not self.overlay:
            return list(self.base.rows_by_path)
        kept = [path for path in self.base.rows_by_path if path not in self.overlay]
        return sorted([*kept, *(path for path, node in self.overlay.items() if node is not None)])

    def nodes(self) -> Iterator[Node]:
        """All nodes as they stand now, by path."""
        for path in self.paths():
            node = self.find_node(path)
            assert node is not None
            yield node

    def delta(self, node_id: int) -> ArrayDelta:
        """Uncommitted chunks of an array, to be changed."""
        found = self.deltas.get(node_id)
        if found is None:
            found = self.deltas[node_id] = ArrayDelta()
        return found

    def waiting(self, writer: PayloadWriter) -> dict[int, ArrayDelta]:
        """Give all bytes that wait to be gathered into chunk files, and nothing else."""
        found = {}
        for node_id, delta in self.deltas.items():
            waits = writer.waiting(delta.entries.values())
            if any(waits):
                found[node_id] = ArrayDelta(entries=dict(compress(delta.entries.items(), waits)))
        return found

    def set_document(
        self, path: str, document: dict[str, Any], attributes_of: Callable[[Node], bytes | None]
    ) -> None:
        """Create a node, or give it another document."""
        columns, attributes, extension = split_document(document)
        if columns is not None:
            columns = self._kinds.setdefault(columns, columns)
        node = self.find_node(path)
        if node is None:
            self._check_place(path, is_array=columns is not None)
        elif not _is_update(node, document):
            if columns is not None:
                self._check_place(path, is_array=True)
            self.delete_node(path)
            node = None
        if node is None:
            self._put(
                Node(
                    id=self.next_node_id,
                    path=path,
                    columns=columns,
                    attributes=attributes,
                    extension=extension,
                )
            )
            self.next_node_id += 1
            return
        same = attributes_of(node) == attributes
        updated = replace(
            node,
            columns=columns,
            extension=extension,
            attributes=node.attributes if same else attributes,
            attributes_ref=node.attributes_ref if same else None,
        )
        if columns is not None:
            self._resize(node, grid_of(document))
        if updated != node:
            self._put(updated)

    def attributes_before(
        self, attributes_of: Callable[[Node], bytes | None]
    ) -> dict[int, bytes | None]:
        """Read the attributes that were changed and stood in a file of their own."""
        found = {}
        for node in self.overlay.values():
            before = None if node is None else self.base.find_node_by_id(node.id)
            if before is not None and before.attributes_ref is not None:
                found[before.id] = attributes_of(before)
        return found

    def _check_place(self, path: str, *, is_array: bool) -> None:
        """An array has no children, and a node has no array above it."""
        above = path
        while above != "/":
            above = above.rpartition("/")[0] or "/"
            parent = self.find_node(above)
            if parent is not None and parent.is_array:
                raise InvalidInputError(
                    f"{path!r} cannot be created: {above!r} is an array, and arrays have no children. "
                    f"Delete the array first."
                )
        if is_array and self._has_children(path):
            raise InvalidInputError(
                f"{path!r} cannot become an array: there are nodes below it. Delete them first."
            )

    def _has_children(self, path: str) -> bool:
        """Whether there is a node below a path; quick, since it is asked for every new array."""
        if path in self._parents and any(
            node is not None and each.startswith(_below(path)) and each != path
            for each, node in self.overlay.items()
        ):
            return True
        base = self.base.paths
        first = bisect_left(base, _below(path))
        return any(
            each != path and each not in self.overlay
            for each in takewhile(lambda p: p.startswith(_below(path)), islice(base, first, None))
        )

    def _put(self, node: Node) -> None:
        self.overlay[node.path] = node
        above = node.path
        while above != "/":
            above = above.rpartition("/")[0] or "/"
            self._parents.add(above)

    def paths_below(self, path: str) -> Iterator[str]:
        """Paths of all nodes below one, without itself."""
        prefix = _below(path)
        return (each for each in self.paths() if each.startswith(prefix) and each != path)

    def _resize(self, node: Node, grid: Grid) -> None:
        before = node.grid.chunk_counts
        if any(new < old for new, old in zip(grid.chunk_counts, before, strict=True)):
            self.delta(node.id).shrink(grid.chunk_counts)

    def delete_node(self, path: str) -> None:
        """Remove a node, with all its chunks; what is below it stays."""
        node = self.find_node(path)
        if node is None:
            return
        self.deltas.pop(node.id, None)
        if path in self.base.rows_by_path:
            self.overlay[path] = None
        else:
            del self.overlay[path]

    def move_node(self, path: str, to: str) -> None:
        """Give a node, and all below it, another path."""
        if self.find_node(to) is not None:
            raise InvalidInputError(f"{path!r} cannot move to {to!r}: there is a node already")
        if self._has_children(to):
            raise InvalidInputError(
                f"{path!r} cannot move to {to!r}: there are nodes below it already. Move or delete "
                f"them first."
            )
        if path in {"/", to} or to.startswith(path + "/"):
            raise InvalidInputError(f"{path!r} cannot move to {to!r}, which is itself or below it")
        parent = self.find_node(to.rpartition("/")[0] or "/")
        if parent is None or parent.is_array:
            raise InvalidInputError(
                f"{path!r} cannot move to {to!r}: there is no group to hold it. Create it first."
            )
        for old in [path, *self.paths_below(path)]:
            node = self.find_node(old)
            assert node is not None
            if old in self.base.rows_by_path:
                self.overlay[old] = None
            else:
                del self.overlay[old]
            new = to + old[len(path) :]
            self._put(replace(node, path=new))


def _below(path: str) -> str:
    """What the paths of all nodes below a node begin with."""
    return "/" if path == "/" else path + "/"


def _is_update(node: Node, document: dict[str, Any]) -> bool:
    """Whether a document changes this node rather than putting another in its place.

    Chunks are kept when they still mean something: the same kind of node on the same chunking.
    """
    if node.is_array != (document["node_type"] == "array"):
        return False
    if not node.is_array:
        return True
    old = join_document(node.columns, None, node.extension)
    unchanged = all(
        same_json(old.get(name), document.get(name)) for name in ("data_type", "chunk_key_encoding")
    )
    return unchanged and node.grid.same_chunking(grid_of(document))
