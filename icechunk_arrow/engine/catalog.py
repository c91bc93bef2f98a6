"""Where branches and tags stand: one interface, and the catalog of branch sequence files.

Specification: schemas/README.md#references

A branch is a sequence of files; creating the next one is the commit, and nothing else decides. Resetting or
deleting a branch is one more entry. Sessions do not know which catalog they have.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icechunk_arrow.engine.together import together
from icechunk_arrow.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    StorageError,
)
from icechunk_arrow.formats import refs
from icechunk_arrow.formats.layout import (
    MAIN,
    REFS_FOLDER,
    branch_folder,
    branch_key,
    check_ref_name,
    parse_folder,
    parse_key,
    tag_deleted_key,
    tag_key,
)
from icechunk_arrow.formats.refs import RefEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.core.snapshot import SnapshotFacts, SnapshotInfo
    from icechunk_arrow.storage.port import Storage

__all__ = ["Catalog", "SequenceCatalog", "Tip", "branch_not_found", "refuse_main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """Where a branch stands: what a commit on it is compared with."""

    branch: str
    snapshot_id: str
    position: int
    """Sequence number, or generation of the state file."""
    by_commit: bool = False
    """Whether a commit put the branch there, so that the snapshot says so too."""

    def check(self, facts: SnapshotFacts) -> None:
        """Compare an entry with the snapshot that it names, which knows where it was committed."""
        if self.by_commit and facts.sequence is not None:
            made_for = facts.branch, facts.sequence
            if made_for != (self.branch, self.position):
                key = branch_key(self.branch, self.position)
                raise CorruptFileError(
                    f"{key} is damaged: it names the snapshot {facts.id}, which was committed as "
                    f"entry {facts.sequence} of the branch {facts.branch!r}. Restore it from a copy.",
                    key=key,
                )


class Catalog(ABC):
    """Branches and tags of one repository."""

    @abstractmethod
    def initialize(self, snapshot: SnapshotInfo) -> None:
        """Make ``main``; ``AlreadyExistsError`` where there is a repository."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a repository."""

    @abstractmethod
    def find_tip(self, branch: str) -> Tip | None:
        """Find where a branch stands now."""

    def last_seen(self, branch: str) -> str | None:  # noqa: ARG002 -- a catalog may remember nothing
        """Give the snapshot at which a branch stood when this catalog last looked, if it knows."""
        return None

    @abstractmethod
    def advance(self, tip: Tip, snapshot: SnapshotInfo) -> Tip:
        """Commit: move a branch that still stands at ``tip``, or raise ``ConflictError``."""

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


class SequenceCatalog(Catalog):
    """Branch sequence files and tag files, in the repository's own storage."""

    def __init__(self, storage: Storage, new_id: Callable[[], str]) -> None:
        self._storage = storage
        self._new_id = new_id
        self._seen: dict[str, tuple[int, RefEntry]] = {}
        self._lock = threading.Lock()

    def through(self, storage: Storage) -> SequenceCatalog:
        """Give the same catalog through another handle on its place."""
        other = SequenceCatalog(storage, self._new_id)
        other._seen = dict(self._seen)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"_storage": self._storage, "_new_id": self._new_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_storage"], state["_new_id"])  # type: ignore[misc]

    def next_sequence(self, tip: Tip) -> int | None:
        return tip.position + 1

    def initialize(self, snapshot: SnapshotInfo) -> None:
        entry = RefEntry(snapshot=snapshot.id)
        if not self._create(branch_key(MAIN, 0), entry):
            raise AlreadyExistsError(
                f"there is a repository at {self._storage.url} already; open it, or choose another "
                f"place"
            )

    def exists(self) -> bool:
        return self._find_newest(MAIN) is not None

    def _read(self, key: str) -> RefEntry:
        return refs.decode(self._storage.get(key), key)

    def _find_newest(self, branch: str) -> tuple[int, RefEntry] | None:
        """Find the last entry of a branch, deleted or not."""
        seen = self._seen.get(branch)
        number = self._newest_number(branch, None if seen is None else seen[0])
        if number is None:
            return None
        if seen is not None and seen[0] == number:
            return seen
        newest = number, self._read(branch_key(branch, number))
        self._remember(branch, newest)
        return newest

    def _remember(self, branch: str, newest: tuple[int, RefEntry]) -> None:
        with self._lock:
            known = self._seen.get(branch)
            if known is None or known[0] < newest[0]:
                self._seen[branch] = newest

    def last_seen(self, branch: str) -> str | None:
        seen = self._seen.get(branch)
        return None if seen is None or seen[1].deleted else seen[1].snapshot

    def _newest_number(self, branch: str, seen: int | None) -> int | None:
        if seen is None and self._storage.capabilities.limited_listing:
            for info in self._storage.list(branch_folder(branch), limit=1):
                parsed = parse_key(info.key)
                if parsed is not None and parsed.sequence is not None:
                    return parsed.sequence
                break
            else:
                return None
        return self._gallop(branch, seen)

    def _gallop(self, branch: str, seen: int | None) -> int | None:
        """Double the step until there is no entry, then halve: sequences have no gaps.

        A gap behind the entry found would hide what comes after it, so one more is asked for.
        """

        def there(number: int) -> bool:
            return self._storage.exists(branch_key(branch, number))

        low = -1 if seen is None else seen
        first, second = low + 1, low + 2
        after, behind = together(self._storage, lambda: there(first), lambda: there(second))
        if not after and not behind:
            return low if low >= 0 else None
        if after:
            low = second if behind else first
        step = 1
        while there(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if there(middle) else (low, middle)
        if there(low + 2):
            if there(low + 1):  # somebody is committing just now
                return self._gallop(branch, low + 1)
            raise CorruptFileError(
                f"{branch_key(branch, low + 1)} is missing, although a later entry of the branch is "
                f"there. Restore it from a copy.",
                key=branch_key(branch, low + 1),
            )
        return low if low >= 0 else None

    def find_tip(self, branch: str) -> Tip | None:
        newest = self._find_newest(check_ref_name(branch))
        if newest is None or newest[1].deleted:
            return None
        return Tip(
            branch=branch,
            snapshot_id=newest[1].snapshot,
            position=newest[0],
            by_commit=newest[1].is_commit,
        )

    def _create(self, key: str, entry: RefEntry) -> bool:
        """Create an entry; True also when it turns out to be there by our own hand."""
        if not entry.is_commit:
            entry = replace(entry, key=key)
        data = refs.encode(entry)
        try:
            self._storage.create(key, data)
        except AlreadyExistsError:
            return self._read(key) == entry
        except StorageError:
            # the answer may have been lost behind a success
            try:
                found = self._read(key)
            except ObjectNotFoundError:
                found = None
            if found is None:
                raise
            return found == entry
        return True

    def advance(self, tip: Tip, snapshot: SnapshotInfo) -> Tip:
        number = tip.position + 1
        entry = RefEntry(snapshot=snapshot.id)
        if self._create(branch_key(tip.branch, number), entry):
            self._remember(tip.branch, (number, entry))
            return replace(tip, snapshot_id=snapshot.id, position=number, by_commit=True)
        now = self.find_tip(tip.branch)
        raise conflict(tip.branch, tip.snapshot_id, now.snapshot_id if now else None)

    def create_branch(self, name: str, snapshot: SnapshotInfo) -> None:
        newest = self._find_newest(check_ref_name(name))
        taken = AlreadyExistsError(
            f"there is a branch {name!r} already; reset_branch moves it, delete_branch ends it"
        )
        if newest is not None and not newest[1].deleted:
            raise taken
        entry = RefEntry(snapshot=snapshot.id, write_id=self._new_id())
        if not self._create(branch_key(name, newest[0] + 1 if newest else 0), entry):
            raise taken

    def reset_branch(self, name: str, snapshot: SnapshotInfo, expected: str | None) -> None:
        self._append(name, snapshot.id, expected=expected, deleted=False)

    def delete_branch(self, name: str) -> None:
        refuse_main(name)
        self._append(name, None, expected=None, deleted=True)

    def _append(
        self, name: str, snapshot_id: str | None, *, expected: str | None, deleted: bool
    ) -> None:
        """Add an entry behind the newest, however often somebody else is faster."""
        while True:
            tip = self.get_tip(name)
            if expected is not None and tip.snapshot_id != expected:
                raise conflict(name, expected, tip.snapshot_id)
            entry = RefEntry(
                snapshot=snapshot_id or tip.snapshot_id, write_id=self._new_id(), deleted=deleted
            )
            if self._create(branch_key(name, tip.position + 1), entry):
                return

    def list_branches(self) -> set[str]:
        return {name for name in self._folders("branch") if self.find_tip(name) is not None}

    def _folders(self, kind: str) -> list[str]:
        parsed = map(parse_folder, self._storage.list_folders(REFS_FOLDER))
        return [found[1] for found in parsed if found is not None and found[0] == kind]

    def create_tag(self, name: str, snapshot: SnapshotInfo) -> None:
        check_ref_name(name, "tag")
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
        return None if self._storage.exists(tag_deleted_key(name)) else entry.snapshot

    def delete_tag(self, name: str) -> None:
        mark = RefEntry(snapshot=self.get_tag(name), write_id=self._new_id(), deleted=True)
        self._create(tag_deleted_key(name), mark)

    def list_tags(self) -> set[str]:
        return {name for name in self._folders("tag") if self.find_tag(name) is not None}
