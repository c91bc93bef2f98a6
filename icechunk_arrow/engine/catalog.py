"""Where branches and tags stand: one interface, and the catalog of branch sequence files.

Specification: schemas/README.md#references

A branch is a sequence of files; creating the next one is the commit, and nothing else decides. Resetting or
deleting a branch is one more entry. Sessions do not know which catalog they have.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from icechunk_arrow.engine.sequences import FileSequence
from icechunk_arrow.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    RepositoryNotFoundError,
    StorageError,
)
from icechunk_arrow.formats import hint, refs
from icechunk_arrow.formats.layout import (
    MAIN,
    REFS_FOLDER,
    branch_folder,
    branch_key,
    check_ref_name,
    hint_key,
    parse_folder,
    tag_deleted_key,
    tag_key,
)
from icechunk_arrow.formats.refs import RefEntry
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from icechunk_arrow.core.snapshot import SnapshotFacts, SnapshotInfo
    from icechunk_arrow.storage.port import Storage

__all__ = [
    "Catalog",
    "Fate",
    "SequenceCatalog",
    "Tip",
    "branch_not_found",
    "create_entry",
    "read_entry",
    "refuse_main",
    "replaced",
]


HINT_EVERY = 16
"""Entries whose numbers this divides leave a hint."""


class Tip(Struct, frozen=True, kw_only=True):
    """Where a branch stands: what a commit on it is compared with."""

    branch: str
    snapshot_id: str
    position: int
    """Sequence number, or generation of the state file."""
    by_commit: bool = False
    """Whether a commit put the branch there, so that the snapshot says so too."""
    named_by: int = -1
    """Number of the entry that names the snapshot: behind it there are none, or foreign ones."""
    newest: RefEntry | None = None
    """What stands at the position, where branches have entries."""

    def check(self, facts: SnapshotFacts) -> None:
        """Compare an entry with the snapshot that it names, which knows where it was committed."""
        if self.by_commit and facts.sequence is not None:
            made_for = facts.branch, facts.sequence
            if made_for != (self.branch, self.named_by):
                key = branch_key(self.branch, self.named_by)
                raise CorruptFileError(
                    f"{key} is damaged: it names the snapshot {facts.id}, which was committed as "
                    f"entry {facts.sequence} of the branch {facts.branch!r}. Restore it from a copy.",
                    key=key,
                )


class Fate(NamedTuple):
    """What became of commits that were tried on a tip, as far as it can be seen."""

    made: str | None
    """The snapshot that was committed; at most one can be."""
    is_open: bool
    """Whether one of them may still be, by a request that is under way."""


class Catalog(ABC):
    """Branches and tags of one repository."""

    @abstractmethod
    def find_tip(self, branch: str) -> Tip | None:
        """Find where a branch stands now."""

    @abstractmethod
    def tip_before(self, tip: Tip) -> Tip:
        """Step back from an entry that names another repository's snapshot: it is foreign, its number used up.

        ``RepositoryNotFoundError`` where it is the repository at the place that is another one by now.
        """

    @abstractmethod
    def check_identity(self) -> None:
        """Look again whether the place is still that of the repository."""

    @abstractmethod
    def confirm(self, tip: Tip) -> None:
        """Look again whether the place is still that of the repository whose branch stood at a tip."""

    def last_seen(self, branch: str) -> str | None:  # noqa: ARG002 -- a catalog may remember nothing
        """Give the snapshot at which a branch stood when this catalog last looked, if it knows."""
        return None

    @abstractmethod
    def advance(self, tip: Tip, snapshot: SnapshotInfo) -> Tip:
        """Commit: move a branch that still stands at ``tip``, or raise ``ConflictError``."""

    @abstractmethod
    def fate_of(self, snapshots: Collection[str], tip: Tip) -> Fate:
        """Tell what became of commits on a tip whose :meth:`advance` did not return."""

    @abstractmethod
    def create_branch(self, name: str, snapshot: SnapshotInfo) -> None:
        """Begin a branch, or ``AlreadyExistsError``."""

    @abstractmethod
    def reset_branch(self, name: str, snapshot: SnapshotInfo, expected: str | None) -> None:
        """Point a branch elsewhere; ``ConflictError`` where it does not stand at ``expected``."""

    @abstractmethod
    def delete_branch(self, name: str) -> None:
        """End a branch."""

    @abstractmethod
    def list_branches(self) -> set[str]:
        """Names of all branches."""

    @abstractmethod
    def create_tag(self, name: str, snapshot: SnapshotInfo) -> None:
        """Make a tag, or ``AlreadyExistsError``, also where its name was withdrawn."""

    @abstractmethod
    def find_tag(self, name: str) -> str | None:
        """Find the snapshot of a tag."""

    @abstractmethod
    def delete_tag(self, name: str) -> None:
        """Withdraw a tag; its name stays reserved."""

    @abstractmethod
    def list_tags(self) -> set[str]:
        """Names of all tags that are not withdrawn."""

    def next_sequence(self, tip: Tip) -> int | None:  # noqa: ARG002 -- not every catalog numbers
        """Give the number of the entry that a commit on a tip would create, where there are such."""
        return None

    def get_tip(self, branch: str) -> Tip:
        """Give where a branch stands."""
        tip = self.find_tip(branch)
        if tip is None:
            raise branch_not_found(branch)
        return tip

    def get_tag(self, name: str) -> str:
        """Give the snapshot of a tag."""
        snapshot = self.find_tag(name)
        if snapshot is None:
            raise RefNotFoundError(f"there is no tag {name!r}; list_tags() names those there are")
        return snapshot


def _tip(branch: str, number: int, entry: RefEntry) -> Tip:
    """Say where a branch stands whose newest entry this is."""
    return Tip(
        branch=branch,
        snapshot_id=entry.snapshot,
        position=number,
        by_commit=entry.is_commit,
        named_by=number,
        newest=entry,
    )


def branch_not_found(name: str) -> RefNotFoundError:
    """Say that there is no such branch."""
    return RefNotFoundError(f"there is no branch {name!r}; list_branches() names those there are")


def refuse_main(name: str) -> None:
    """The branch ``main`` is how a repository is recognised."""
    if name == MAIN:
        raise InvalidInputError("the branch 'main' cannot be deleted; reset_branch can move it")


def conflict(branch: str, expected: str, actual: str | None) -> ConflictError:
    """Say that a branch has moved."""
    state = f"it is at {actual} now" if actual else "it was deleted"
    return ConflictError(
        f"the branch {branch!r} has moved since this session began at {expected}: {state}. The "
        f"session keeps its changes: session.rebase(ConflictDetector()) and commit again, or "
        f"commit(..., rebase_with=...).",
        expected_parent=expected,
        actual_parent=actual,
    )


def replaced(url: str) -> RepositoryNotFoundError:
    """Say that another repository stands where this one was."""
    return RepositoryNotFoundError(
        f"the repository that was opened at {url} is not there any more: it was deleted, and perhaps "
        f"another one was made in its place. Open the place anew; what was not committed belongs to the "
        f"old one."
    )


def read_entry(storage: Storage, key: str) -> RefEntry:
    """Read an entry, or raise ``ObjectNotFoundError``."""
    return refs.decode(storage.get(key, limit_bytes=refs.MOST_BYTES), key)


def create_entry(storage: Storage, key: str, entry: RefEntry) -> bool:
    """Create an entry; True also when it turns out to be there by our own hand, and stays."""
    if not entry.is_commit:
        entry = replace(entry, key=key)
    try:
        storage.create(key, refs.encode(entry))
    except AlreadyExistsError:
        stored = read_entry(storage, key)
    except StorageError as error:
        # the answer may have been lost behind a success
        try:
            stored = read_entry(storage, key)
        except ObjectNotFoundError:
            raise error from error.__cause__
    else:
        return True
    if stored == entry:
        storage.sync()  # that it is there does not say that it stays
    return stored == entry


class SequenceCatalog(Catalog):
    """Branch sequence files and tag files, in the repository's own storage."""

    def __init__(self, storage: Storage, repository: str, new_id: Callable[[], str]) -> None:
        self._storage = storage
        self._repository = repository
        self._new_id = new_id
        self._seen: dict[str, tuple[int, RefEntry]] = {}
        self._made: dict[str, int] = {}
        """By branch: the newest entry that was made through this handle."""
        self._lock = threading.Lock()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_storage": self._storage,
            "_repository": self._repository,
            "_new_id": self._new_id,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state.values())  # type: ignore[misc]

    def next_sequence(self, tip: Tip) -> int | None:
        return tip.position + 1

    def _read(self, key: str) -> RefEntry:
        return read_entry(self._storage, key)

    def _find_newest(self, branch: str) -> tuple[int, RefEntry] | None:
        """Find the last entry of a branch, deleted or not."""
        seen = self._seen.get(branch)
        entries = FileSequence(
            storage=self._storage,
            folder=branch_folder(branch),
            key_of=partial(branch_key, branch),
        )
        try:
            number = entries.newest(
                seen=None if seen is None else seen[0], hint=lambda: self._hinted(branch)
            )
        except CorruptFileError:
            self.check_identity()
            raise
        if number is None:
            return None
        if seen is not None and seen[0] == number:
            return seen
        try:
            newest = number, self._read(branch_key(branch, number))
        except (
            ObjectNotFoundError
        ):  # a listing of the time before the place was made anew, if it is ours
            self.check_identity()
            number = entries.asked()
            if number is None:
                return None
            newest = number, self._read(branch_key(branch, number))
        self._remember(branch, newest)
        return newest

    def _hinted(self, branch: str) -> int | None:
        """Read the number of an entry that was the newest not long ago."""
        try:
            data = self._storage.get(hint_key(branch), limit_bytes=hint.MOST_BYTES)
            hinted = hint.decode(data)
        except IcechunkArrowError:  # it decides nothing: a reader that cannot read it goes without
            return None
        return None if hinted is None else hinted.sequence

    def _leave_hint(self, branch: str, number: int, snapshot_id: str) -> None:
        """Tell readers that cannot list where to begin, now and then; no caller waits for it."""
        if number % HINT_EVERY:
            return
        data = hint.encode(hint.Hint(number, snapshot_id))

        def leave() -> None:
            with suppress(IcechunkArrowError):
                self._storage.overwrite(hint_key(branch), data)

        if self._storage.capabilities.fast:
            leave()
        else:
            threading.Thread(target=leave, name="icechunk-arrow hint", daemon=True).start()

    def look_ahead(self, branch: str) -> None:
        """Find where a branch stands, for the caller that asks next; it will meet the error, if there is one."""
        with suppress(IcechunkArrowError):
            self._find_newest(branch)

    def of(self, repository: str) -> SequenceCatalog:
        """Say whose catalog this is, once that is known."""
        self._repository = repository
        return self

    def _remember(self, branch: str, newest: tuple[int, RefEntry]) -> None:
        with self._lock:
            known = self._seen.get(branch)
            if known is None or known[0] < newest[0]:
                self._seen[branch] = newest

    def last_seen(self, branch: str) -> str | None:
        seen = self._seen.get(branch)
        return None if seen is None or seen[1].deleted else seen[1].snapshot

    def check_identity(self) -> None:
        try:
            first = self._read(branch_key(MAIN, 0))
        except ObjectNotFoundError:
            raise replaced(self._storage.url) from None
        if first.snapshot != self._repository:
            raise replaced(self._storage.url)

    def tip_before(self, tip: Tip) -> Tip:
        self.check_identity()
        number = tip.named_by - 1
        if number < 0:
            key = branch_key(tip.branch, 0)
            raise CorruptFileError(
                f"{key} names a snapshot of another repository, and so do all entries behind it",
                key=key,
            )
        entry = self._read(branch_key(tip.branch, number))
        if entry.deleted:
            raise branch_not_found(tip.branch)
        return replace(tip, snapshot_id=entry.snapshot, named_by=number, by_commit=entry.is_commit)

    def confirm(self, tip: Tip) -> None:
        try:
            newest = self._read(branch_key(tip.branch, tip.position))
        except ObjectNotFoundError:
            newest = None
        if newest != tip.newest:
            with self._lock:
                self._seen.pop(tip.branch, None)
            raise replaced(self._storage.url)
        if self._made.get(tip.branch) == tip.position:  # late, it may stand in another repository
            self.check_identity()

    def find_tip(self, branch: str) -> Tip | None:
        newest = self._find_newest(check_ref_name(branch))
        if newest is None or newest[1].deleted:
            return None
        return _tip(branch, *newest)

    def _create(self, key: str, entry: RefEntry) -> bool:
        return create_entry(self._storage, key, entry)

    def advance(self, tip: Tip, snapshot: SnapshotInfo) -> Tip:
        number = tip.position + 1
        entry = RefEntry(snapshot=snapshot.id)
        if self._create(branch_key(tip.branch, number), entry):
            self._remember(tip.branch, (number, entry))
            self._made[tip.branch] = number
            self._leave_hint(tip.branch, number, snapshot.id)
            self._storage.tidy()
            return _tip(tip.branch, number, entry)
        now = self.find_tip(tip.branch)
        raise conflict(tip.branch, tip.snapshot_id, now.snapshot_id if now else None)

    def fate_of(self, snapshots: Collection[str], tip: Tip) -> Fate:
        try:
            entry = self._read(branch_key(tip.branch, tip.position + 1))
        except ObjectNotFoundError:
            return Fate(made=None, is_open=True)
        ours = entry.is_commit and entry.snapshot in snapshots
        if ours:
            self._storage.sync()  # whoever is told of it must be able to rely on it
        return Fate(made=entry.snapshot if ours else None, is_open=False)

    def create_branch(self, name: str, snapshot: SnapshotInfo) -> None:
        newest = self._find_newest(check_ref_name(name))
        self.check_identity()
        taken = AlreadyExistsError(
            f"there is a branch {name!r} already; reset_branch moves it, delete_branch ends it"
        )
        if newest is not None and not newest[1].deleted:
            raise taken
        entry = RefEntry(snapshot=snapshot.id, write_id=self._new_id())
        number = newest[0] + 1 if newest else 0
        if not self._create(branch_key(name, number), entry):
            raise taken
        self._made[name] = number

    def reset_branch(self, name: str, snapshot: SnapshotInfo, expected: str | None) -> None:
        self._append(name, snapshot.id, expected=expected, deleted=False)

    def delete_branch(self, name: str) -> None:
        refuse_main(name)
        self._append(name, None, expected=None, deleted=True)

    def _append(
        self, name: str, snapshot_id: str | None, *, expected: str | None, deleted: bool
    ) -> None:
        """Add an entry behind the newest, however often another writer is faster."""
        self.check_identity()
        while True:
            tip = self.get_tip(name)
            if expected is not None and tip.snapshot_id != expected:
                raise conflict(name, expected, tip.snapshot_id)
            entry = RefEntry(
                snapshot=snapshot_id or tip.snapshot_id, write_id=self._new_id(), deleted=deleted
            )
            if self._create(branch_key(name, tip.position + 1), entry):
                self._made[name] = tip.position + 1
                self._leave_hint(name, tip.position + 1, entry.snapshot)
                return

    def list_branches(self) -> set[str]:
        return {name for name in self._folders("branch") if self.find_tip(name) is not None}

    def _folders(self, kind: str) -> list[str]:
        parsed = map(parse_folder, self._storage.list_folders(REFS_FOLDER))
        return [folder[1] for folder in parsed if folder is not None and folder[0] == kind]

    def create_tag(self, name: str, snapshot: SnapshotInfo) -> None:
        check_ref_name(name, "tag")
        self.check_identity()
        entry = RefEntry(snapshot=snapshot.id, write_id=self._new_id())
        if not self._create(tag_key(name), entry):
            withdrawn = self._storage.exists(tag_deleted_key(name))
            raise AlreadyExistsError(
                f"the tag {name!r} was withdrawn, and its name stays reserved; choose another"
                if withdrawn
                else f"there is a tag {name!r} already, and tags do not move; choose another name"
            )

    def find_tag(self, name: str) -> str | None:
        check_ref_name(name, "tag")
        try:
            entry = self._read(tag_key(name))
        except ObjectNotFoundError:
            return None
        if entry.is_commit:
            key = tag_key(name)
            raise CorruptFileError(f"{key} is damaged: a tag has a 'write_id' and a 'key'", key=key)
        if entry.deleted:
            key = tag_key(name)
            raise CorruptFileError(
                f"{key} is damaged: 'deleted' stands in deleted.json alone", key=key
            )
        return None if self._storage.exists(tag_deleted_key(name)) else entry.snapshot

    def delete_tag(self, name: str) -> None:
        self.check_identity()
        mark = RefEntry(snapshot=self.get_tag(name), write_id=self._new_id(), deleted=True)
        self._create(tag_deleted_key(name), mark)

    def list_tags(self) -> set[str]:
        return {name for name in self._folders("tag") if self.find_tag(name) is not None}
