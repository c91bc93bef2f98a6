"""Commits in which a sync is missing: what the tracer must find.

Run as ``python -m tests.durability.planted FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from icechunk_arrow import Repository, StorageSettings
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.disk import Unsynced
from tests.durability.ways import commit, make

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLANTS"]


def _not(name: str) -> Callable[[str], None]:
    """Sync all folders but those of one name."""
    sync = disk.sync_folder

    def some(path: str) -> None:
        if not path.endswith(name):
            sync(path)

    return some


def no_sync_of_files(root: Path) -> None:
    """Chunk files, manifests and the rest are left to themselves."""
    repo = make(root)
    with patch.object(Unsynced, "sync", lambda _: None):
        commit(repo)


def no_sync_of_a_folder(root: Path) -> None:
    """The files are safe, their names are not."""
    repo = make(root)
    with patch.object(disk, "sync_folder", _not("/c")):
        commit(repo)


def no_sync_of_the_entry(root: Path) -> None:
    """The entry's own name is not safe when the commit returns."""
    repo = make(root)
    with patch.object(disk, "sync_folder", _not("/branch.main")):
        commit(repo)


def no_sync_above(root: Path) -> None:
    """The folder of the branch is a new one."""
    with patch.object(disk, "sync_folder", _not("/refs")):
        make(root)


def sync_after_the_entry(root: Path) -> None:
    """Everything is synced, too late."""
    repo = make(root)
    sync = Unsynced.sync
    waiting: list[Any] = []

    def wait(unsynced: Unsynced) -> None:
        waiting.append(unsynced)

    with patch.object(Unsynced, "sync", wait):
        commit(repo)
    for each in waiting:
        sync(each)


def not_durable(root: Path) -> None:
    """Nobody asked for it."""
    make(root)
    repo = Repository.open(root, storage_settings=StorageSettings(durable=False))
    commit(repo)


PLANTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no_sync_of_files": (no_sync_of_files, "its content"),
    "no_sync_of_a_folder": (no_sync_of_a_folder, "the name"),
    "no_sync_of_the_entry": (no_sync_of_the_entry, "the name"),
    "no_sync_above": (no_sync_above, "the name"),
    "sync_after_the_entry": (sync_after_the_entry, "its content"),
    "not_durable": (not_durable, "its content"),
}


if __name__ == "__main__":
    for name, (plant, _) in PLANTS.items():
        plant(Path(sys.argv[1]) / name)
