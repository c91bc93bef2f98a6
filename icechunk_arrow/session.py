"""The sessions that callers hold: the engine's, with their store, their forks and their pictures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.columns import one_array, to_numpy
from icechunk_arrow.core.html import html_of
from icechunk_arrow.core.lazy import lazy
from icechunk_arrow.engine.branch_session import BranchSession
from icechunk_arrow.engine.encoded import encoded_chunks
from icechunk_arrow.engine.forks import (
    WrittenChunks,
    arrays_of,
    combine,
    refuse_deleted,
    require_synced,
    uncommitted_snapshot,
    write_out,
)
from icechunk_arrow.engine.session import BaseSession
from icechunk_arrow.errors import InvalidInputError, ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    import pyarrow as pa

    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.zarr import IcechunkStore

__all__ = ["ForkSession", "OpenSession", "Session"]


ENGINE_WORDS = frozenset(
    {
        *(
            "allows",
            "attributes_of",
            "delete_chunk",
            "document",
            "find_array",
            "find_chunk",
            "find_node",
        ),
        *("get_array", "layout_of", "part_to_fetch", "payload_writer", "place_only", "read_chunk"),
        *(
            "renew_after_fork",
            "set_chunk_ref",
            "set_document",
            "stage",
            "stage_rows",
            "write_chunk",
        ),
    }
)
"""What other parts of the package ask of a session, and callers do not: completion leaves it out."""


class OpenSession(BaseSession):
    """What callers find on every session."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ENGINE_WORDS]

    @lazy
    def store(self) -> IcechunkStore:
        """The Zarr store: what ``zarr.open_group`` and ``xarray.open_zarr`` take."""
        from icechunk_arrow.zarr import IcechunkStore  # noqa: PLC0415  (tables do not need zarr)

        return IcechunkStore(self, read_only=self.read_only)

    def table(self, name: str, *, since: str | None = None) -> pa.Table:
        """Give a table about the snapshot that this session began on; :meth:`Repository.tables` names them.

        Changes that are not committed are in none.
        """
        from icechunk_arrow.tables.reading import read_table  # noqa: PLC0415

        return read_table(self._context, name, self.snapshot_id, since)

    def array_paths(self) -> list[str]:
        """Paths of all arrays, sorted."""
        with self._lock:
            return [node.path for node in self._staging.nodes() if node.is_array]

    def has_chunks(self, array_path: Any) -> bool:
        """Whether an array has any chunk."""
        return any(len(batch) for batch in self.chunk_coordinates(array_path))

    # -- many chunks at once

    def set_encoded_chunks(
        self, array_path: Any, chunks: Any, *, duplicates: str = "error"
    ) -> None:
        """Write many chunks whose bytes are encoded already as their arrays' codecs say.

        As :meth:`set_references`, but with a column ``data`` that holds the bytes, in place of ``location``,
        ``offset`` and ``length``. Whether they can be decoded is seen by the sessions that read them.
        """
        values = encoded_chunks(self.payload_writer)
        self.stage_rows(array_path, chunks, values, duplicates=duplicates)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo everything that changed in this session since the block began, if the block fails.

        That is also what other threads changed meanwhile.
        """
        with self._lock:
            self._check_writable()
            self._write_waiting()  # so that what is staged names files, and nothing waits in memory
            before, self._staging = self._staging, self._staging.copy()
        try:
            yield
        except BaseException:
            with self._lock:
                self._staging = before
            raise

    # -- work done by others

    def merge(self, *forks: ForkSession, duplicates: str = "error") -> None:
        """Take over what forks of this session wrote.

        Parameters
        ----------
        forks
            In the order in which they count.
        duplicates
            ``"error"`` refuses a chunk that two of them wrote, or that one wrote and another one deleted;
            ``"last"`` keeps what the later one did.

        Raises
        ------
        InvalidInputError
            Two forks wrote one chunk, or meanwhile an array was replaced or made smaller, or this session was
            rebased; nothing is changed.
        NotDurableError
            A fork did its work without syncing it, where this session is durable; nothing is changed.
        """
        self.merge_written([fork.finish() for fork in forks], duplicates=duplicates)

    def merge_written(self, parts: Sequence[WrittenChunks], *, duplicates: str = "error") -> None:
        """Take over what forks said on :meth:`ForkSession.finish`; as :meth:`merge`."""
        if duplicates not in {"error", "last"}:
            raise InvalidInputError(f"duplicates must be 'error' or 'last', not {duplicates!r}")
        with self._lock:
            self._check_writable()
            require_synced(self._context.storage, parts)
            views = arrays_of(parts, self._staging.base.id, self.get_array)
            last_wins = duplicates == "last"
            before, self._staging = self._staging, self._staging.copy()
            try:
                if last_wins and any(part.deleted.num_rows for part in parts):
                    for part in parts:  # one after the other, as a later deletion wins too
                        self._lay([part], views, last_wins=True)
                else:
                    refuse_deleted(self._context, parts, views)
                    self._lay(parts, views, last_wins=last_wins)
            except BaseException:
                self._staging = before
                raise

    def _lay(
        self, parts: Sequence[WrittenChunks], views: Mapping[int, ArrayView], *, last_wins: bool
    ) -> None:
        staged = list(combine(self._context, parts, views, self.layout_of, last_wins=last_wins))
        for part in parts:
            ids = to_numpy(part.deleted["array_id"]).tolist()
            gone = one_array(part.deleted["coord"]).to_pylist()
            for node_id, coord in zip(ids, gone, strict=True):
                self._staging.chunks_of(node_id).singles[coord] = None
        self.stage(staged)

    def _repr_html_(self) -> str:
        return html_of(
            "Session",
            {
                "repository": self._context.storage.url,
                "branch": self.branch or "(read-only)",
                "snapshot": self.snapshot_id,
                "uncommitted changes": str(self.status()) if not self.read_only else "",
            },
        )


class Session(OpenSession, BranchSession):
    """Reads one snapshot; on a branch, also gathers changes and commits them.

    Sessions come from :meth:`Repository.readonly_session` and :meth:`Repository.writable_session`. They and
    their stores are safe to use from many threads. A read-only session pickles; for writing from several
    processes there is :meth:`fork`.
    """

    def clear_array(self, path: Any) -> None:
        """Remove all chunks of an array."""
        with self._lock:
            self._check_writable()
            view = self.get_array(path)
            ndim = len(view.grid.chunk_counts)
            if not ndim:
                self.delete_chunk(path, ())
                return
            self._staging.chunks_of(view.node.id).shrink((0,) * ndim)

    def fork(self) -> ForkSession:
        """Give a session for another process: it sees what this one sees, and writes chunks.

        A fork pickles, to the worker with nothing and back with what it wrote; :meth:`merge` takes it. It makes
        no arrays or groups and does not commit: make arrays here, before.
        """
        with self._lock:
            self._check_writable()
            self._write_waiting()
            snapshot_id = self.snapshot_id
            if self.has_uncommitted_changes:
                snapshot_id = uncommitted_snapshot(
                    self._context,
                    self._get_tip(),
                    self._staging.base,
                    self._changes_of(self._staging),
                    self._started_at,
                )
            fork = ForkSession(self._context, snapshot_id)
            fork._forked_at = self._staging.base.id  # noqa: SLF001 -- made here
            return fork


class ForkSession(OpenSession):
    """Writes chunks for another session, in any process: see :meth:`Session.fork`."""

    branch = None
    """A fork is on none: what it wrote is committed by the session that was forked."""
    _forked_at: str
    """The snapshot on which the session stood that was forked."""
    _written: WrittenChunks | None = None

    @property
    def read_only(self) -> bool:
        """Whether this fork has given what it wrote, and takes no more."""
        return self._written is not None

    def renew_after_fork(self) -> None:
        """Go on in a child as a fork that was sent there would."""
        super().renew_after_fork()
        self._is_copy = self._is_lost

    @property
    def _is_writer(self) -> bool:
        return self._written is None

    def __repr__(self) -> str:
        if self._is_copy:
            return f"<Session copied by a fork {self._context.storage.url}>"
        state = "finished" if self.read_only else "writable"
        return f"<ForkSession {state} {self._context.storage.url} at {self.snapshot_id!r}>"

    def finish(self) -> WrittenChunks:
        """Write everything that is still in memory, and tell what there is for the session to take over."""
        with self._lock:
            if self._written is None:
                self._write_waiting()
                self._written = write_out(
                    self._context,
                    self._staging.base,
                    self._changes_of(self._staging),
                    forked_at=self._forked_at,
                )
            return self._written

    def __getstate__(self) -> dict[str, Any]:
        written = self.finish() if self.read_only or self.has_uncommitted_changes else None
        return {
            "context": self._context,
            "snapshot_id": self.snapshot_id,
            "forked_at": self._forked_at,
            "written": written,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["context"], state["snapshot_id"])  # type: ignore[misc]
        self._forked_at = state["forked_at"]
        self._written = state["written"]

    def _check_writable(self) -> None:
        self._refuse_copy()
        if self.read_only:
            raise ReadOnlyError(
                "this fork has given what it wrote; fork the session again to write more"
            )

    def _refuse(self, what: str) -> NoReturn:
        self._check_writable()
        raise InvalidInputError(
            f"a fork writes chunks and cannot {what}; do that in the session that was forked"
        )

    def set_document(self, path: str, data: bytes) -> None:  # noqa: ARG002
        """Refuse: a fork makes no nodes."""
        self._refuse(f"create or change {path!r}")

    def delete_nodes(self, paths: Sequence[Any]) -> None:
        """Refuse: a fork deletes no nodes."""
        self._refuse(f"delete {', '.join(map(repr, paths))}")

    def move(self, from_path: Any, to_path: str) -> None:
        """Refuse: a fork moves no nodes."""
        self._refuse(f"move {from_path!r} to {to_path!r}")

    def clear_array(self, path: Any) -> NoReturn:
        """Refuse: a fork clears no arrays."""
        self._refuse(f"clear {path!r}")

    def commit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the session that was forked commits."""
        self._refuse("commit")

    def rebase(self, *_: Any) -> NoReturn:
        """Refuse: the session that was forked rebases."""
        self._refuse("rebase")

    def fork(self) -> NoReturn:
        """Refuse: the session can be forked again."""
        self._refuse("be forked")
