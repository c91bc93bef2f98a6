"""A branch as a stream: commit after commit, and what each changed, as rows of chunks or of elements.

Owns where a query stands, which is a snapshot of the branch, and that it never skips one: a branch that was reset
to before it, or to elsewhere, is an error.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.boxes import Boxes
from icechunk_arrow.core.columns import from_numpy, from_values, indices
from icechunk_arrow.engine.history import ancestors, tip_to_read
from icechunk_arrow.errors import InvalidInputError, NodeNotFoundError, SnapshotNotFoundError
from icechunk_arrow.session import Session
from icechunk_arrow.spark.reading.changed_chunks import arrays_changed
from icechunk_arrow.spark.reading.chunk_layout import ChunkRows
from icechunk_arrow.storage.secrets import secrets_kept
from icechunk_arrow.tables.columns import lists_of, repeated
from icechunk_arrow.tables.selection import find_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.spark.reading.arrays import ArrayRead
    from icechunk_arrow.spark.reading.changed_chunks import ArrayChanges, Piece
    from icechunk_arrow.spark.reading.grids import GridRows

    Coordinates = npt.NDArray[np.uint64]

__all__ = ["CHANGE_ROWS", "CommitStream", "Place"]

CHANGE_ROWS = pa.schema(
    [
        ("path", pa.string()),
        ("node_id", pa.int64()),
        ("index", pa.list_(pa.int64())),
        ("operation", pa.string()),
        ("snapshot", pa.string()),
        ("written_at", pa.timestamp("us", "UTC")),
    ]
)
"""A changed chunk; ``operation`` is ``write_chunk`` or ``delete_chunk``, as transaction logs have it."""
_PART_CHUNKS = 1 << 18
_PART_PIECES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a query stands: behind a commit, which has so many before it."""

    snapshot_id: str
    commits: int

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Place:
        """Read an offset as it stands in a checkpoint."""
        return cls(snapshot_id=str(offset["snapshot"]), commits=int(offset["commits"]))

    def offset(self) -> dict[str, Any]:
        """Write it as an offset."""
        return {"snapshot": self.snapshot_id, "commits": self.commits}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitStream:
    """The commits of a branch, and what of their changes is wanted; pickles."""

    context: Context
    branch: str
    since: str | None = None
    from_beginning: bool = False
    most_commits: int | None = None
    read: ArrayRead | None = None
    """What is read of arrays, at a snapshot of the time when the stream was described; None for rows of chunks."""
    columns: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        if self.read is not None:
            return self.read.schema
        if self.columns is None:
            return CHANGE_ROWS
        unknown = [name for name in self.columns if name not in CHANGE_ROWS.names]
        if unknown or len(set(self.columns)) != len(self.columns):
            raise InvalidInputError(
                f"the columns {', '.join(self.columns)} cannot be chosen: changed chunks have "
                f"{', '.join(CHANGE_ROWS.names)}"
            )
        return pa.schema([CHANGE_ROWS.field(name) for name in self.columns])

    # -- places

    def _place(self, snapshot_id: str) -> Place:
        facts = self.context.files.read_facts(snapshot_id)
        return Place(snapshot_id=snapshot_id, commits=facts.total_parents)

    def tip(self) -> Place:
        """Where the branch stands."""
        return self._place(tip_to_read(self.context, self.branch).snapshot_id)

    def first(self) -> Place:
        """Where a query without a checkpoint begins."""
        tip = self.tip()
        if self.from_beginning:
            *_, oldest = ancestors(self.context.files, tip.snapshot_id)
            return self._place(oldest.id)
        if self.since is None:
            return tip
        named = self._place(find_named(self.context, self.since))
        self._commits(named, tip)
        return named

    def next(self, start: Place, until: Place, most: int | None) -> Place:
        """Go at most so many commits on from a place, not beyond another."""
        commits = self._commits(start, until)
        if not commits:
            return start
        number = len(commits) if most is None else min(most, len(commits))
        return Place(snapshot_id=commits[number - 1], commits=start.commits + number)

    def _commits(self, start: Place, end: Place) -> list[str]:
        """List the snapshots behind one place up to another, oldest first."""
        if start == end:
            return []
        ids: list[str] = []
        count = end.commits - start.commits
        reached = None
        if count > 0:
            walk = (info.id for info in ancestors(self.context.files, end.snapshot_id))
            ids = list(islice(walk, count))
            reached = next(walk, None)
        if reached != start.snapshot_id:
            raise SnapshotNotFoundError(
                f"the snapshot {start.snapshot_id}, behind which this query stands, is not in the history of "
                f"{end.snapshot_id} on the branch {self.branch!r}, which was reset: what changed since cannot be "
                f"told. Begin a new query with another checkpoint, and say where with the option since",
                snapshot=start.snapshot_id,
            )
        return ids[::-1]

    # -- parts

    def parts(self, start: Place, end: Place) -> Iterator[tuple[Piece, ...]]:
        """Divide what the commits between two places changed, in their order."""
        most = _PART_CHUNKS
        if self.read is not None:
            most = self.read.opened().chunks_in(self.read.part_bytes)
        part: list[Piece] = []
        filled = 0
        for snapshot_id in self._commits(start, end):
            for array in self._wanted(snapshot_id):
                for piece in array.pieces(most):
                    count = piece.stop - piece.start
                    if part and (filled + count > most or len(part) == _PART_PIECES):
                        yield tuple(part)
                        part, filled = [], 0
                    part.append(piece)
                    filled += count
        if part:
            yield tuple(part)

    def _wanted(self, snapshot_id: str) -> Sequence[ArrayChanges]:
        """Give what a commit did to arrays that are wanted, in the order in which these are named."""
        changed = _arrays_changed(self.context, snapshot_id)
        if self.read is None:
            return changed
        by_path = {each.node.path: each for each in changed if not each.is_gone}
        return [by_path[path] for path in self.read.query.paths if path in by_path]

    def read_part(self, part: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        for piece in part:
            arrays = self._wanted(piece.snapshot_id)
            (number,) = (n for n, each in enumerate(arrays) if each.node.id == piece.node.id)
            changed = arrays[number].coordinates(piece)
            if self.read is None:
                yield from (self._change_rows(piece, some) for some in changed if len(some))
            else:
                yield from self._elements(piece, changed, arrays[:number])

    # -- rows

    def _change_rows(self, piece: Piece, places: Coordinates) -> pa.RecordBatch:
        count, ndim = places.shape
        index = lists_of(
            from_numpy(places.reshape(-1).astype(np.int64), pa.int64()), np.full(count, ndim)
        )
        facts = self.context.files.read_facts(piece.snapshot_id)
        written_at = from_values([facts.written_at], CHANGE_ROWS.field("written_at").type)
        columns = {
            "path": repeated(piece.node.path, count),
            "node_id": from_numpy(np.full(count, piece.node.id), pa.int64()),
            "index": index,
            "operation": repeated(piece.operation, count),
            "snapshot": repeated(piece.snapshot_id, count),
            "written_at": written_at.take(indices(np.zeros(count, np.int64))),
        }
        schema = self.schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _elements(
        self, piece: Piece, changed: Iterable[Coordinates], earlier: Sequence[ArrayChanges]
    ) -> Iterator[pa.RecordBatch]:
        """Give the elements of changed chunks as they are behind the commit; chunks outside are no more."""
        opened = self._opened_at(piece.snapshot_id)
        grid = opened.grid_of(piece.node.path)
        for places in changed:
            some = places[grid.contains_all(places)]
            if isinstance(opened, ChunkRows):
                yield from opened.rows_of_chunks(piece.node.path, some)
                continue
            for other in earlier:  # a row has all arrays, and comes with the first that changed
                some = some[~other.touches(some)]
            for box in Boxes.of_cells(some):
                yield from opened.rows_of_chunks(box)

    def _opened_at(self, snapshot_id: str) -> GridRows | ChunkRows:
        assert self.read is not None
        paths = ", ".join(self.read.query.paths)
        with secrets_kept():
            session = pickle.dumps(Session(self.context, snapshot_id))
        try:
            opened = replace(self.read, session=session).opened()
        except NodeNotFoundError as error:
            raise InvalidInputError(
                f"at the snapshot {snapshot_id} not all of the arrays {paths} are there: "
                f"{error}. Begin a new query behind it, with since={snapshot_id}, or read them apart",
                snapshot=snapshot_id,
            ) from error
        if not opened.schema.equals(self.schema):
            raise InvalidInputError(
                f"at the snapshot {snapshot_id} the arrays {paths} give other columns "
                f"({_listed(opened.schema)}) than when this query began ({_listed(self.schema)}); begin a new "
                f"one, with since={snapshot_id}",
                snapshot=snapshot_id,
            )
        return opened


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@lru_cache(maxsize=4)
def _arrays_changed(context: Context, snapshot_id: str) -> list[ArrayChanges]:
    return arrays_changed(context, snapshot_id)
