"""What a session has changed so far and not committed: nodes and chunks over a base snapshot.

Owns the picture of "base plus changes" that a session reads through, in memory; does no reading or writing. Not
safe for threads by itself: the session holds the lock. What is staged of one array's chunks is the business of
``engine.segments``.

What one session has staged is committed by one process, once: the one that opened it. So a copy of a writable
session in a forked child reads what was there at the fork, and changes nothing. Where a thread was just
changing or committing the session, it is not known what the copy holds, and it does not even read. That thread may
be the one that forked: then it goes on in the child too, where it may not come to the step that decides.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import compress, islice, takewhile
from typing import TYPE_CHECKING

from msgspec.structs import replace

from icechunk_arrow.core.documents import join_document, same_json, split_document
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.core.snapshot import NODE_IDS_END, Node
from icechunk_arrow.engine.segments import StagedChunks
from icechunk_arrow.errors import InvalidInputError, ReadOnlyError, StorageError
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from icechunk_arrow.core.documents import ArrayColumns
    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.engine.payloads import PayloadWriter


__all__ = ["OfOneProcess", "Staging", "check_node_id"]


def check_node_id(node_id: int, path: str) -> None:
    """Refuse to create a node when the last id was given out."""
    if node_id >= NODE_IDS_END:
        raise InvalidInputError(
            f"{path!r} cannot be created: every id that a node can have was given out in this history"
        )


class Staging:
    """Nodes and chunks as a session sees them."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.overlay: dict[str, Node | None] = {}
        self._parents: set[str] = set()
        self._kinds: dict[ArrayColumns, ArrayColumns] = {}
        """Arrays that are alike share what is known of them."""
        self.arrays: dict[int, StagedChunks] = {}
        """By id: arrays of which chunks are staged."""
        self.next_node_id = base.facts.next_node_id
        self.views: dict[str, ArrayView | None] = {}
        """Arrays that were looked for, as they stand now; kept here, so that they never outlive what they show."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not self.overlay and not self.arrays

    def copy(self) -> Staging:
        """Give the same changes, to go back to."""
        copied = Staging(self.base)
        copied.overlay, copied._parents = dict(self.overlay), set(self._parents)
        copied.arrays = {node_id: staged.copy() for node_id, staged in self.arrays.items()}
        copied.next_node_id = self.next_node_id
        return copied

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
        unchanged = [path for path in self.base.rows_by_path if path not in self.overlay]
        return sorted(
            [*unchanged, *(path for path, node in self.overlay.items() if node is not None)]
        )

    def nodes(self) -> Iterator[Node]:
        """All nodes as they stand now, by path."""
        for path in self.paths():
            node = self.find_node(path)
            assert node is not None
            yield node

    def chunks_of(self, node_id: int) -> StagedChunks:
        """Uncommitted chunks of an array, to be changed."""
        staged = self.arrays.get(node_id)
        if staged is None:
            staged = self.arrays[node_id] = StagedChunks()
        return staged

    def waiting(self, writer: PayloadWriter) -> dict[int, StagedChunks]:
        """Give all bytes among the newest single writes that wait to be gathered into chunk files."""
        waiting = {}
        for node_id, staged in self.arrays.items():
            waits = writer.waiting(staged.singles.values())
            if any(waits):
                waiting[node_id] = StagedChunks(
                    singles=dict(compress(staged.singles.items(), waits))
                )
        return waiting

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
            check_node_id(self.next_node_id, path)
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
        attributes = {}
        for node in self.overlay.values():
            before = None if node is None else self.base.find_node_by_id(node.id)
            if before is not None and before.attributes_ref is not None:
                attributes[before.id] = attributes_of(before)
        return attributes

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
            self.chunks_of(node.id).shrink(grid.chunk_counts)

    def delete_node(self, path: str) -> None:
        """Remove a node, with all its chunks; what is below it stays."""
        node = self.find_node(path)
        if node is None:
            return
        self.arrays.pop(node.id, None)
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


class OfOneProcess:
    """The part of a session that knows in which process it is."""

    _is_copy = False
    _is_lost = False
    """Whether it is not known what this copy holds."""
    _staging: Staging
    _preload: threading.Thread | None = None

    @property
    def _is_writer(self) -> bool:
        """Whether there is anything that a copy must not do again; sends no request."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Become a copy in another process."""
        is_whole = _nobody_holds(self._lock)
        self._lock = threading.RLock()
        self._preload = None
        if self._is_writer:
            self._is_copy = True
            self._is_lost = not is_whole
            if self._is_lost:
                self._staging = _UnknownStaging()  # type: ignore[assignment]

    def _refuse_copy(self) -> None:
        if self._is_copy:
            raise ReadOnlyError(
                "this session was opened in another process, of which this one is a fork: its changes are "
                "made and committed there, once. Open a session here, by repo.writable_session(branch), or "
                "give each process a fork of the session, by session.fork()"
            )


class _UnknownStaging:
    """In place of what a session has staged."""

    def __getattr__(self, name: str) -> NoReturn:
        raise StorageError(
            "this process was forked while this session was changed or committed, so that its copy here is "
            "of no use; open a session here"
        )


def _nobody_holds(lock: threading.RLock) -> bool:
    """Whether neither a thread that was not forked holds a lock, nor this one, which was at something itself."""
    try:
        lock.release()  # its owner alone can
    except RuntimeError:
        return lock.acquire(blocking=False)
    lock.acquire()
    return False
