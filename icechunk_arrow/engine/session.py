"""A session: one snapshot to read from, and on a branch the changes that will be the next one.

Owns the state and its lock. Keys and Zarr's ways are the store's business, what a commit writes the plan's.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core import coords
from icechunk_arrow.core.documents import encode_document, parse_document
from icechunk_arrow.engine import commit as committing
from icechunk_arrow.engine.bulk import by_number
from icechunk_arrow.engine.chunk_bytes import ChunkBytes
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.engine.context import new_id, now
from icechunk_arrow.engine.copies import OfOneProcess
from icechunk_arrow.engine.diff import Diff, diff_of
from icechunk_arrow.engine.listing import BATCH_ROWS, chunk_batches, chunk_coordinates
from icechunk_arrow.engine.lookup import find_ref
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.payloads import PayloadWriter
from icechunk_arrow.engine.plan import Changes, log_of
from icechunk_arrow.engine.preload import start_preload
from icechunk_arrow.engine.rebase import Rebase
from icechunk_arrow.engine.references import REFERENCES, stage_rows
from icechunk_arrow.engine.runs import add_runs, layout_of, settle_runs, unshare, write_entries
from icechunk_arrow.engine.settling import settle
from icechunk_arrow.engine.staging import Staging
from icechunk_arrow.engine.view import ArrayView
from icechunk_arrow.engine.virtual import check_reference
from icechunk_arrow.errors import (
    ConflictError,
    CorruptFileError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    StorageError,
)
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.formats.live_manifests import manifest_table

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
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.chunk_bytes import Part
    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.references import Values
    from icechunk_arrow.engine.staging import ArrayDelta

__all__ = ["BaseSession"]

_MANIFESTS_AT_ONCE = 10_000
_MOST_ENTRIES = 1 << 18
"""So many single writes are held in memory, as objects; more become a manifest, as a bulk write does."""
_ENTRIES_CHECKED = 1 << 16
"""After so many writes it is looked at."""


class BaseSession(OfOneProcess):
    """Reads one snapshot; on a branch, also gathers changes and commits them.

    Safe to use from many threads. A read-only session pickles.
    """

    def __init__(self, context: Context, snapshot_id: str, tip: Tip | None = None) -> None:
        super().__init__()
        self._context = context
        self._tip = tip
        self._started_at = now()
        self._writer = PayloadWriter(context.storage, context.saved_config.to_write, new_id)
        self._chunk_bytes = ChunkBytes(context.files)
        self._attempts: tuple[str, ...] = ()
        """Snapshots that were to be the next on the tip, and of which it is not known whether they are."""
        self._unacknowledged: str | None = None
        """The commit that was made, until :meth:`commit` has given its id."""
        self._begin(context.files.read_snapshot(snapshot_id))
        self._preload = start_preload(context, self._staging.base)

    def _begin(self, base: Snapshot) -> None:
        # whole before anything else changes: an interrupt may end this method at any line
        self._staging = Staging(base)
        self._waiting_bytes = 0
        """What was staged as bytes and not written since it was looked at, or more: some may be overwritten."""
        self._unchecked = 0
        self._is_placement = False

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise ReadOnlyError(
                "a writable session cannot be pickled: its changes would be lost in the copy. Commit "
                "first, pickle a read-only session, or write from threads of this process."
            )
        return {"context": self._context, "snapshot_id": self.snapshot_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["context"], state["snapshot_id"])  # type: ignore[misc]

    def __repr__(self) -> str:
        if self._is_copy:
            return f"<Session copied by a fork {self._context.storage.url}>"
        tip, staging = self._tip, self._staging  # asked nobody: showing a session sends no request
        where = f"snapshot {staging.base.id!r}"
        if tip is not None:
            where = f"branch {tip.branch!r} at {where}"
        state = "read-only" if tip is None else "writable"
        changed = "" if staging.is_empty else ", uncommitted changes"
        if self._attempts:
            changed = ", a commit that was cut short"
        return f"<Session {state} {self._context.storage.url} {where}{changed}>"

    # -- what it is

    @property
    def branch(self) -> str | None:
        """The branch that a commit goes to; None when read-only."""
        self._find_out()
        return None if self._tip is None else self._tip.branch

    @property
    def snapshot_id(self) -> str:
        """The snapshot that is read."""
        self._find_out()
        return self._staging.base.id

    @property
    def read_only(self) -> bool:
        """Whether this session can only read."""
        self._find_out()
        return self._tip is None

    @property
    def _is_writer(self) -> bool:
        return self._tip is not None

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

    def _check_writable(self) -> None:
        if self._find_out():
            raise StorageError(
                "a commit of this session was cut short, and what it sent may still arrive, so that nothing "
                "can be added to it: call commit() again, which makes it or finds it made, or open a new session"
            )
        self._get_tip()

    def _get_tip(self) -> Tip:
        self._refuse_copy()
        if self._tip is None:
            raise ReadOnlyError(
                "this session is read-only; repo.writable_session(branch) gives one that writes "
                "(after a commit, too: a session commits once)"
            )
        return self._tip

    def _find_out(self) -> bool:
        """Learn what became of commits that were cut short; whether one of them may still arrive."""
        if not self._attempts or self._is_copy:
            return False
        with self._lock:
            if self._tip is None:  # one was made, and learning that was cut short
                self._attempts = ()
            elif self._attempts:
                fate = self._context.catalog.fate_of(self._attempts, self._tip)
                if fate.made is not None:
                    self._become(self._context.files.read_snapshot(fate.made))
                elif not (fate.is_open and self._context.storage.capabilities.lingering):
                    self._attempts = ()
            return bool(self._attempts)

    def _become(self, snapshot: Snapshot) -> None:
        """Stand on the commit that was made. Done again from the start where an interrupt comes between."""
        self._unacknowledged = snapshot.id
        self._begin(snapshot)
        self._tip = None
        self._attempts = ()

    # -- nodes

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

    def set_document(self, path: str, data: bytes) -> None:
        """Create a node, or replace its document."""
        document = parse_document(data, path=path)
        with self._lock:
            self._check_writable()
            self._staging.set_document(path, document, self.attributes_of)
            self._forget(path)

    def _forget(self, path: str) -> None:
        self._staging.views.pop(path, None)

    def delete_nodes(self, paths: Sequence[str]) -> None:
        """Remove nodes with all their chunks."""
        with self._lock:
            self._check_writable()
            for path in paths:
                self._staging.delete_node(path)
                self._forget(path)

    def move(self, from_path: str, to_path: str) -> None:
        """Give a node, and all below it, another path; chunks stay where they are."""
        with self._lock:
            self._check_writable()
            if self.find_node(from_path) is None:
                raise NodeNotFoundError(f"there is no node {from_path!r} to move", path=from_path)
            self._staging.move_node(from_path, to_path)
            self._staging.views.clear()

    def find_array(self, path: str) -> ArrayView | None:
        """Find an array, or None."""
        try:
            return self._staging.views[path]
        except KeyError:
            with self._lock:
                staging = self._staging
                node = staging.find_node(path)
                view = None
                if node is not None and node.is_array:
                    view = ArrayView(node=node, grid=node.grid, keys=node.chunk_keys)
                if view is not None or len(staging.views) < 100_000:
                    staging.views[path] = view
                return view

    def get_array(self, path: str) -> ArrayView:
        """Give an array."""
        view = self.find_array(path)
        if view is None:
            raise NodeNotFoundError(
                f"there is no array {path!r} here; create it before writing its chunks", path=path
            )
        return view

    # -- chunks

    @property
    def payload_writer(self) -> PayloadWriter:
        """Writes chunk bytes where this session's repository has them."""
        return self._writer

    def find_chunk(self, view: ArrayView, coord: tuple[int, ...]) -> ChunkRef | bytes | None:
        """Find a chunk: its reference, its bytes while they wait in memory, or None."""
        delta = self._staging.deltas.get(view.node.id)
        if delta is not None:
            said, staged = delta.find(coords.encode_one(coord))
            if said:
                return staged
            runs = delta.runs
            if len(runs) and runs.hold(coord):
                found = find_ref(self._context.files, runs.array_id, runs.inventories, coord)
                if found is not None:
                    return found
            if not delta.keeps(coord):
                return None
        return find_ref(self._context.files, view.node.id, view.node.inventories, coord)

    def chunk_coordinates(self, array_path: str) -> Iterator[npt.NDArray[np.uint64]]:
        """Give the coordinates of all chunks that an array has, in batches of n × dimensions."""
        view = self.get_array(array_path)
        return chunk_coordinates(self._context.files, view, self._staging.deltas.get(view.node.id))

    def chunk_references(
        self, array_path: str, batch_size: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Give the references of all chunks that an array has, in batches of at most so many rows.

        Columns: ``index`` (a list of the chunk's place along each dimension), ``kind`` (inline, native or
        virtual), ``location`` (a URL, or the name of a chunk file), ``offset``, ``length``, ``etag``,
        ``last_modified``, ``crc32c``, ``inline_data``. The virtual ones can be handed to
        :meth:`set_references`. Bytes that this session has not written yet count as inline.
        """
        view = self.get_array(array_path)
        delta = self._staging.deltas.get(view.node.id)
        return chunk_batches(self._context.files, view, delta, batch_size)

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
            if self.find_array(path) is not view:
                view = self.get_array(path)  # changed meanwhile, by another thread
                if not view.grid.contains(coord):
                    raise _outside(path, coord, view)
            node_id = view.node.id
            if waits and not self._writer.is_inline(size_bytes):
                self._waiting_bytes += size_bytes
            self._unchecked += 1
            self._staging.delta(node_id).entries[key] = value
            many = self._unchecked >= _ENTRIES_CHECKED
        if self._waiting_bytes >= self._writer.file_size or many:
            self._make_room()

    def _make_room(self) -> None:
        """Write what waits in memory, where that has become much."""
        with self._lock:
            deltas = self._staging.deltas
            waiting = self._staging.waiting(self._writer)
            # what came in is not all there any more: some of it may be overwritten
            held = chain.from_iterable(delta.entries.values() for delta in waiting.values())
            self._waiting_bytes = sum(map(len, held))  # type: ignore[arg-type]
            many = self._unchecked >= _ENTRIES_CHECKED
            if many or self._waiting_bytes * 2 >= self._writer.file_size:
                self._write(waiting)
                self._unchecked = 0
            for node_id in sorted(deltas, key=lambda each: -len(deltas[each].entries)):
                # each once: deletions stay, however many they are
                if sum(len(delta.entries) for delta in deltas.values()) > _MOST_ENTRIES:
                    write_entries(self._context, deltas[node_id], node_id)

    def _write_waiting(self) -> None:
        """Write the chunks that wait in memory into chunk files."""
        with self._lock:
            if self._waiting_bytes:
                self._write(self._staging.waiting(self._writer))

    def _write(self, waiting: Mapping[int, ArrayDelta]) -> None:
        gathered = settle(waiting, self._writer).gathered
        if gathered is not None:
            gathered.finish()
            gathered.take_over(self._staging.deltas)
        self._waiting_bytes = 0

    def delete_chunk(self, path: str, coord: tuple[int, ...]) -> None:
        """Remove a chunk; where there is none, say that there shall be none."""
        with self._lock:
            self._check_writable()
            view = self.find_array(path)
            if view is None or not view.grid.contains(coord):
                return
            # what others do to the chunk matters even where there is none; in a new array there are no others
            if self._staging.is_committed(view.node.id) or self.find_chunk(view, coord) is not None:
                key = coords.encode_one(coord)
                self._staging.delta(view.node.id).entries[key] = None

    def set_chunk_ref(self, path: str, coord: tuple[int, ...], ref: ChunkRef) -> None:
        """Stage a reference to bytes that are somewhere already."""
        check_reference(ref)
        with self._lock:
            self._check_writable()
            view = self.get_array(path)
            if not view.grid.contains(coord):
                raise _outside(path, coord, view)
            key = coords.encode_one(coord)
            self._staging.delta(view.node.id).entries[key] = ref

    def set_references(
        self, array_path: str | None, references: Any, *, duplicates: str = "error"
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
        array_path: str | None,
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
                node_id = each.node_id
                delta = self._staging.delta(node_id)
                if len(each.runs):
                    add_runs(self._context, delta, node_id, each.runs, each.sizes)
                if each.table.num_rows:
                    delta.add_table(each.table)

    # -- commit

    def _log_of(self, staging: Staging) -> TransactionLog:
        return log_of(staging.base, self._changes_of(staging))

    def _changes_of(self, staging: Staging, writer: PayloadWriter | None = None) -> Changes:
        """Put everything staged into columns; a writer begins to put what waits in memory into chunk files."""
        settle_runs(self._context, staging.deltas)
        unshare(self._context, staging)
        return Changes(
            overlay=staging.overlay,
            chunks=settle(staging.deltas, writer, aside=True),
            next_node_id=staging.next_node_id,
            attributes_before=staging.attributes_before(self.attributes_of),
            is_placement=self._is_placement,
        )

    def place_only(self) -> None:
        """Say that every reference staged here names the bytes that the chunk has already.

        Such a commit changes no value, so it gives way to whatever others do.
        """
        self._is_placement = True

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Make the changes the branch's next snapshot, and give its id; then the session is read-only.

        After an interrupt, or an error that leaves open whether the commit was made, it can be called again: where
        the first call made the commit, with its own message, that one's id is given.

        Raises
        ------
        ConflictError
            The branch has moved; the changes are kept, to be rebased.
        RebaseFailedError
            With ``rebase_with``: somebody changed the same things.
        InvalidInputError
            Nothing was changed, and ``allow_empty`` is False.
        """
        with self._lock:
            self._find_out()
            if self._unacknowledged is None:
                self._get_tip()
                if self._staging.is_empty and not allow_empty:
                    raise InvalidInputError(
                        "there are no changes to commit; allow_empty=True makes a snapshot all the same"
                    )
                check_message(message, metadata)
            tries = 0
            while self._unacknowledged is None:
                try:
                    self._commit_once(message, metadata or {})
                except CorruptFileError:
                    self._context.catalog.check_identity()  # no damage, if it is another repository's
                    raise
                except ConflictError:
                    self._find_out()
                    if self._unacknowledged is not None:
                        break  # it lost to an earlier attempt of this very session
                    tries += 1
                    if rebase_with is None or tries > rebase_tries:
                        raise
                    self.rebase(rebase_with)
            snapshot_id, self._unacknowledged = self._unacknowledged, None
            return snapshot_id

    def _commit_once(self, message: str, metadata: Mapping[str, Any]) -> None:
        tip = self._get_tip()
        changes = self._changes_of(self._staging, self._writer)
        gathered = changes.chunks.gathered
        try:
            planned = committing.plan(
                self._context,
                tip,
                self._staging.base,
                changes,
                message=message,
                properties=metadata,
                started_at=self._started_at,
            )
            committing.write(self._context, tip, planned, gathered)
            self._attempts = (*self._attempts, planned.snapshot.id)
            committing.publish(self._context, tip, planned)
        except BaseException:
            if gathered is not None and gathered.is_written():  # once is enough
                gathered.take_over(self._staging.deltas)
                self._waiting_bytes = 0
            raise
        self._become(planned.snapshot)

    def rebase(self, solver: ConflictSolver) -> None:
        """Put the changes on top of what the branch has become.

        Raises
        ------
        RebaseFailedError
            A commit changed the same things, and the solver did not settle it.
        """
        with self._lock:
            self._check_writable()
            self._write_waiting()
            moved = Rebase(self._context, self._staging, self._log_of)
            try:
                tip = moved.run(self._get_tip(), None if self._is_placement else solver)
            except RebaseFailedError:
                self._staging = moved.staging  # it stands on the last commit that made no conflict
                raise
            # in this order: changes on an old base must never meet a newer tip
            self._staging = moved.staging
            self._tip = tip


def _outside(path: str, coord: tuple[int, ...], view: ArrayView) -> InvalidInputError:
    return InvalidInputError(
        f"the chunk {coord} lies outside the grid {view.grid.chunk_counts} of {path!r}; resize the "
        f"array first"
    )
