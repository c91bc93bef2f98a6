"""What a session and its forks have in common: one snapshot to read from, and chunks that are staged over it.

Owns the state and its lock. Nodes and commits are the business of ``engine.branch_session``, keys and Zarr's ways
the store's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core import coords
from icechunk_arrow.core.documents import encode_document
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.engine.bulk import by_number, layout_of, spilled
from icechunk_arrow.engine.changes import Changes, in_columns
from icechunk_arrow.engine.chunk_bytes import ChunkBytes
from icechunk_arrow.engine.context import ArrayView, new_id, now
from icechunk_arrow.engine.history import Diff, diff_of
from icechunk_arrow.engine.listing import BATCH_ROWS, chunk_batches, chunk_coordinates
from icechunk_arrow.engine.lookup import find_ref
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.merging import merge_all
from icechunk_arrow.engine.payloads import PayloadWriter
from icechunk_arrow.engine.plan import log_of
from icechunk_arrow.engine.preload import start_preload
from icechunk_arrow.engine.references import REFERENCES, stage_rows
from icechunk_arrow.engine.segments import UNSAID, StagedChunks
from icechunk_arrow.engine.staging import OfOneProcess, Staging
from icechunk_arrow.engine.virtual import check_reference
from icechunk_arrow.errors import (
    CorruptFileError,
    InvalidInputError,
    NodeNotFoundError,
)
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.formats.live_manifests import manifest_table
from icechunk_arrow.formats.structure import sound_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.core.conflict import ConflictSolver
    from icechunk_arrow.core.log import TransactionLog
    from icechunk_arrow.core.snapshot import Node, Snapshot
    from icechunk_arrow.engine.bulk import Layout, StagedReferences
    from icechunk_arrow.engine.chunk_bytes import Part
    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.references import Values

__all__ = ["BaseSession"]

_MANIFESTS_AT_ONCE = 10_000
_MOST_SINGLES = 1 << 18
"""So many single writes are held in memory, as objects; more become a manifest, as a bulk write does."""
_SINGLES_CHECKED = 1 << 16
"""After so many writes it is looked at."""


class BaseSession(OfOneProcess, ABC):
    """Reads one snapshot, and stages chunks over it where it can be written. Safe to use from many threads."""

    def __init__(self, context: Context, snapshot_id: str) -> None:
        super().__init__()
        self._context = context
        self._started_at = now()
        self._writer = PayloadWriter(context.storage, context.saved_config.to_write, new_id)
        self._chunk_bytes = ChunkBytes(context.files)
        self._begin(context.files.read_snapshot(snapshot_id))
        self._preload = start_preload(context, self._staging.base)

    def _begin(self, base: Snapshot) -> None:
        # whole before anything else changes: an interrupt may end this method at any line
        self._staging = Staging(base)
        self._waiting_bytes = 0
        """What was staged as bytes and not written since it was looked at, or more: some may be overwritten."""
        self._unchecked = 0
        self._is_placement = False

    # -- what it is

    @property
    def snapshot_id(self) -> str:
        """The snapshot that is read."""
        self._find_out()
        return self._staging.base.id

    @property
    def config(self) -> RepositoryConfig:
        """The settings in force."""
        return self._context.config

    @property
    def storage_url(self) -> str:
        """Where the repository is."""
        return self._context.storage.url

    def allows(self, location: str) -> bool:
        """Whether virtual chunks at a location may be read."""
        return self._context.access.allows(location)

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is anything to commit."""
        self._find_out()
        return not self._staging.is_empty

    def status(self) -> Diff:
        """Tell what is changed and not committed."""
        with self._lock:
            self._find_out()
            return diff_of(self._log_of(self._staging), self._staging.find_node)

    def discard_changes(self) -> None:
        """Forget everything that is not committed."""
        with self._lock:
            self._check_writable()
            self._begin(self._staging.base)

    @property
    @abstractmethod
    def branch(self) -> str | None:
        """The branch that a commit goes to; None where there is none."""

    @property
    @abstractmethod
    def read_only(self) -> bool:
        """Whether this session can only read."""

    @abstractmethod
    def _check_writable(self) -> None:
        """Refuse to change anything where that cannot be."""

    def _find_out(self) -> bool:
        """Learn what became of commits that were cut short; whether one of them may still arrive."""
        return False

    # -- nodes

    @abstractmethod
    def set_document(self, path: str, data: bytes) -> None:
        """Create a node, or replace its document."""

    @abstractmethod
    def delete_nodes(self, paths: Sequence[str]) -> None:
        """Remove nodes with all their chunks."""

    @abstractmethod
    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Make the changes the branch's next snapshot, and give its id."""

    def find_node(self, path: str) -> Node | None:
        """Find a node as the session sees it."""
        return self._staging.find_node(path)

    def node_paths(self) -> list[str]:
        """Paths of all nodes, sorted."""
        with self._lock:
            return self._staging.paths()

    def attributes_of(self, node: Node) -> bytes | None:
        """Give a node's attributes as JSON, wherever they stand."""
        if node.attributes_ref is not None:
            return self._context.files.read_attributes(node.attributes_ref, node.id)
        return node.attributes

    def document(self, node: Node) -> bytes:
        """Give a node's Zarr document."""
        attributes = self.attributes_of(node)
        try:
            return encode_document(node.document(attributes))
        except (ValueError, KeyError, TypeError) as error:
            key = key_of(FileKind.STRUCTURE, self._staging.base.id)
            raise CorruptFileError(
                f"{key} is damaged: what it holds of the node {node.path!r} makes no document: {error!r}. "
                f"Restore the file from a copy, or open an earlier snapshot.",
                key=key,
            ) from error

    def find_array(self, path: str) -> ArrayView | None:
        """Find the array at a node's path, or None."""
        try:
            return self._staging.views[path]
        except KeyError:
            with self._lock:
                staging = self._staging
                node = staging.find_node(path)
                view = None
                if node is not None and node.is_array:
                    view = self._view_of(node)
                if view is not None or len(staging.views) < 100_000:
                    staging.views[path] = view
                return view

    def _view_of(self, node: Node) -> ArrayView:
        with sound_array(node.path, self._staging.base.id):  # what is staged was checked before
            return ArrayView(node=node, grid=node.grid, keys=node.chunk_keys)

    def get_array(self, path: Any) -> ArrayView:
        """Give an array; callers name it as :func:`~icechunk_arrow.core.keys.node_path` says."""
        view = self.find_array(path) if isinstance(path, str) else None
        if view is None:  # a node's path is found at once
            self._refuse_foreign(path)
            path = node_path(path)
            view = self.find_array(path)
        if view is None:
            raise NodeNotFoundError(
                f"there is no array {path!r} here; create it before writing its chunks", path=path
            )
        return view

    def _refuse_foreign(self, node: Any) -> None:
        """Refuse an array of zarr that was opened in another repository: its path says nothing here."""
        home = getattr(getattr(getattr(node, "store", None), "session", None), "storage_url", None)
        if home not in {None, self.storage_url}:
            raise InvalidInputError(
                f"the array {node.name!r} was opened in {home}, and this is a session of {self.storage_url}; "
                f"give its path, if you mean the array at the same place here"
            )

    # -- chunks

    @property
    def payload_writer(self) -> PayloadWriter:
        """Writes chunk bytes where this session's repository has them."""
        return self._writer

    def find_chunk(self, view: ArrayView, coord: tuple[int, ...]) -> ChunkRef | bytes | None:
        """Find a chunk: its reference, its bytes while they wait in memory, or None."""
        staged = self._staging.arrays.get(view.node.id)
        if staged is not None:
            chunk = staged.find(self._context.files, coord)
            if chunk is not UNSAID:
                return chunk  # type: ignore[return-value]
        return find_ref(self._context.files, view.node.id, view.node.inventories, coord)

    def chunk_coordinates(self, array_path: Any) -> Iterator[npt.NDArray[np.uint64]]:
        """Give the coordinates of all chunks that an array has, in batches of n × dimensions."""
        view = self.get_array(array_path)
        return chunk_coordinates(self._context.files, view, self._staging.arrays.get(view.node.id))

    def chunk_references(
        self, array_path: Any, batch_size: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Give the references of all chunks that an array has, in batches of at most so many rows.

        Columns: ``index`` (a list of the chunk's place along each dimension), ``kind`` (inline, native or
        virtual), ``location`` (a URL, or the name of a chunk file), ``offset``, ``length``, ``etag``,
        ``last_modified``, ``crc32c``, ``inline_data``. The virtual ones can be handed to
        :meth:`set_references`. Bytes that this session has not written yet count as inline.
        """
        view = self.get_array(array_path)
        staged = self._staging.arrays.get(view.node.id)
        return chunk_batches(self._context.files, view, staged, batch_size)

    def manifests(self) -> Iterator[pa.RecordBatch]:
        """List the manifests of the snapshot that this session began on, in batches.

        Columns: ``manifest`` (its id), ``size_bytes``, ``chunk_count``, and ``arrays``: for each array that it
        has rows of, in their order, ``path``, ``row`` (its first), ``chunk_count``, ``extent``, ``flags``.
        """
        yield from manifest_table(self._staging.base).to_batches(max_chunksize=_MANIFESTS_AT_ONCE)

    def read_chunk(self, found: ChunkRef | bytes, start: int, stop: int) -> bytes | memoryview:
        """Read a part of a chunk that was found."""
        if isinstance(found, bytes):
            return found[start:stop] if (start, stop) != (0, len(found)) else found
        if found.inline is not None:
            return found.inline[start:stop]
        if found.kind == "virtual":
            return self._context.access.read(found, start, stop - start)
        return self._chunk_bytes.read(found, start, stop)

    def part_to_fetch(self, ref: ChunkRef, start: int, stop: int) -> Part | None:
        """Say what is fetched for a part of a chunk that is in a file; None where it is not checked."""
        if ref.kind == "virtual":
            return None
        return self._chunk_bytes.part(ref, start, stop)

    def write_chunk(self, path: str, coord: tuple[int, ...], data: bytes | memoryview) -> None:
        """Stage a chunk's bytes."""
        self._check_writable()
        view = self.get_array(path)
        if not view.grid.contains(coord):
            raise _outside(path, coord, view)
        size_bytes = len(data)
        waits = self._writer.waits(size_bytes)
        value = bytes(data) if waits else self._writer.write_one(data)
        key = coords.encode_one(coord)
        with self._lock:
            self._check_writable()
            if self.find_array(view.node.path) is not view:
                view = self.get_array(path)  # changed meanwhile, by another thread
                if not view.grid.contains(coord):
                    raise _outside(path, coord, view)
            node_id = view.node.id
            if waits and not self._writer.is_inline(size_bytes):
                self._waiting_bytes += size_bytes
            self._unchecked += 1
            self._staging.chunks_of(node_id).singles[key] = value
            many = self._unchecked >= _SINGLES_CHECKED
        if self._waiting_bytes >= self._writer.file_size or many:
            self._make_room()

    def _make_room(self) -> None:
        """Write what waits in memory, where that has become much."""
        with self._lock:
            arrays = self._staging.arrays
            waiting = self._staging.waiting(self._writer)
            # what came in is not all there any more: some of it may be overwritten
            held = chain.from_iterable(staged.singles.values() for staged in waiting.values())
            self._waiting_bytes = sum(map(len, held))  # type: ignore[arg-type]
            many = self._unchecked >= _SINGLES_CHECKED
            if many or self._waiting_bytes * 2 >= self._writer.file_size:
                self._write(waiting)
                self._unchecked = 0
            for node_id in sorted(arrays, key=lambda each: -len(arrays[each].singles)):
                # each once: deletions stay, however many they are
                if sum(len(staged.singles) for staged in arrays.values()) > _MOST_SINGLES:
                    self._spill(node_id)

    def _spill(self, node_id: int) -> None:
        """Make a bulk write of an array's single writes, because they have become many; deletions stay."""
        staged = self._staging.arrays[node_id]
        alone = {node_id: StagedChunks(singles=staged.singles)}
        rows = in_columns(alone).rows
        if rows.num_rows:
            writer = ManifestWriter(self._context.storage, new_id)
            staged.spill(spilled(rows, node_id, writer))

    def _write_waiting(self) -> None:
        """Write the chunks that wait in memory into chunk files."""
        with self._lock:
            if self._waiting_bytes:
                self._write(self._staging.waiting(self._writer))

    def _write(self, waiting: Mapping[int, StagedChunks]) -> None:
        pending = in_columns(waiting, self._writer).pending
        if pending is not None:
            pending.finish()
            pending.take_over(self._staging.arrays)
        self._waiting_bytes = 0

    def delete_chunk(self, path: str, coord: tuple[int, ...]) -> None:
        """Remove a chunk; where there is none, say that there shall be none."""
        with self._lock:
            self._check_writable()
            view = self.find_array(node_path(path))
            if view is None or not view.grid.contains(coord):
                return
            # what others do to the chunk matters even where there is none; in a new array there are no others
            if self._staging.is_committed(view.node.id) or self.find_chunk(view, coord) is not None:
                key = coords.encode_one(coord)
                self._staging.chunks_of(view.node.id).singles[key] = None

    def set_chunk_ref(self, path: str, coord: tuple[int, ...], ref: ChunkRef) -> None:
        """Stage a reference to bytes that are somewhere already."""
        check_reference(ref)
        with self._lock:
            self._check_writable()
            view = self.get_array(path)
            if not view.grid.contains(coord):
                raise _outside(path, coord, view)
            key = coords.encode_one(coord)
            self._staging.chunks_of(view.node.id).singles[key] = ref

    def set_references(
        self, array_path: Any, references: Any, *, duplicates: str = "error"
    ) -> None:
        """Point many chunks of arrays at byte ranges of files that exist already.

        Many references are written while they stream in, so they may be more than fits into memory; they
        may come in any order.

        Parameters
        ----------
        array_path
            The array; None where the references have a column ``path``.
        references
            A table, record batch, record batch reader, dataset or scanner of pyarrow, or anything with
            ``__arrow_c_stream__``. Columns ``location``, ``offset``, ``length``; optionally ``etag`` and
            ``last_modified``; and the chunk's place, as a column ``index`` of lists or one integer column
            per dimension, named as the array's dimensions or ``index_0``, ``index_1``, ….
        duplicates
            ``"error"`` refuses a chunk that stands there twice, ``"last"`` keeps the last.

        Raises
        ------
        InvalidInputError
            A row is wrong; nothing is staged, and the message names the first.
        """
        self.stage_rows(array_path, references, REFERENCES, duplicates=duplicates)

    def stage_rows(
        self,
        array_path: Any,
        rows: Any,
        values: Values,
        *,
        duplicates: str = "error",
        name_row: Callable[[int], str] = by_number,
    ) -> None:
        """Check and stage rows of chunks, whatever they say of them."""
        with self._lock:
            self._check_writable()
            self.stage(
                stage_rows(
                    self.get_array,
                    array_path,
                    rows,
                    values,
                    duplicates=duplicates,
                    layout_of=self.layout_of,
                    writer=ManifestWriter(self._context.storage, new_id),
                    name_row=name_row,
                )
            )

    def layout_of(self, view: ArrayView) -> Layout:
        """How many references of an array are cut into manifests."""
        return layout_of(self.config.chunk_manifests, view)

    def stage(self, references: Iterable[StagedReferences]) -> None:
        """Lay references over what is staged."""
        with self._lock:
            for each in references:
                self._staging.chunks_of(each.node_id).add(each.bulk)

    def _log_of(self, staging: Staging) -> TransactionLog:
        return log_of(staging.base, self._changes_of(staging))

    def _changes_of(self, staging: Staging, writer: PayloadWriter | None = None) -> Changes:
        """Put everything staged into columns; a writer begins to put what waits in memory into chunk files."""
        merge_all(self._context, staging.arrays)
        return Changes(
            overlay=staging.overlay,
            chunks=in_columns(staging.arrays, writer, aside=True),
            next_node_id=staging.next_node_id,
            attributes_before=staging.attributes_before(self.attributes_of),
            is_placement=self._is_placement,
        )


def _outside(path: str, coord: tuple[int, ...], view: ArrayView) -> InvalidInputError:
    return InvalidInputError(
        f"the chunk {coord} lies outside the grid {view.grid.chunk_counts} of {path!r}; resize the "
        f"array first"
    )
