"""The first entry of a repository: what decides who made it, which catalog it has, and what tells it from others.

Specification: schemas/README.md#references

Whatever the catalog, entry 0 of ``main`` stands at the data's root and is created once. The snapshot that it names
is the repository's identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.engine.catalog import create_entry, read_entry
from icechunk_arrow.errors import AlreadyExistsError, CorruptFileError, ObjectNotFoundError
from icechunk_arrow.formats.layout import MAIN, STATE_KEY, FileKind, branch_key, parse_key
from icechunk_arrow.formats.refs import STATE_CATALOG, RefEntry

if TYPE_CHECKING:
    from icechunk_arrow.engine.state_catalog import StateCatalog
    from icechunk_arrow.storage.port import Storage

__all__ = ["claim", "find_first_entry", "taken", "unfinished"]

_FIRST = branch_key(MAIN, 0)


def find_first_entry(storage: Storage) -> RefEntry | None:
    """Read how a place says that there is a repository."""
    try:
        entry = read_entry(storage, _FIRST)
    except ObjectNotFoundError:
        return None
    if not entry.is_commit or entry.deleted:
        raise CorruptFileError(f"{_FIRST} is damaged: it names no first snapshot", key=_FIRST)
    return entry


def taken(storage: Storage) -> AlreadyExistsError:
    """Say that there is a repository."""
    return AlreadyExistsError(
        f"there is a repository at {storage.url} already; open it, or choose another place"
    )


def claim(storage: Storage, snapshot_id: str, *, state: bool) -> None:
    """Make a place the repository whose first snapshot this is; of several who try one does."""
    entry = RefEntry(snapshot=snapshot_id, catalog=STATE_CATALOG if state else None)
    if not create_entry(storage, _FIRST, entry):
        raise taken(storage)


def unfinished(storage: Storage, entry: RefEntry, catalog: StateCatalog) -> bool:
    """Whether a repository has no state file because whoever made it was stopped before writing that.

    There must be no log of a commit: a state file that was lost later takes the history with it.
    """
    if entry.catalog != STATE_CATALOG or catalog.exists():
        return False
    listed = (info.key for info in storage.list(f"{FileKind.TRANSACTION.value}/"))
    if any(parse_key(key) is not None for key in listed):
        raise CorruptFileError(
            f"{STATE_KEY}, the catalog of the repository at {storage.url}, is missing, although there were "
            f"commits: restore it from a copy",
            key=STATE_KEY,
        )
    return True
