"""Defects of a local place that storms of bad calls and bad places have to find."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow.engine import catalog
from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage import disk, local

if TYPE_CHECKING:
    from collections.abc import Iterator

    Patch = pytest.MonkeyPatch

__all__ = ["DEFECTS", "plant"]


def _unchecked_short_write(patch: Patch) -> None:
    """What the system did not take at once is forgotten."""

    def write_once(file: disk.Descriptor, waiting: list[Any]) -> None:
        if waiting:
            vars(disk)["os"].writev(file.own(), waiting)

    patch.setattr(disk, "_write_all", write_once)


def _forgotten_failure(patch: Patch) -> None:
    """A failed sync is an error once, and the next one finds nothing to do."""

    def fail(self: Any, error: OSError) -> StorageError:
        self._saving = []
        return StorageError(f"could not be made durable ({disk.told(error)}): open the place anew")

    patch.setattr(disk.Unsynced, "fail", fail)


def _believed(patch: Patch) -> None:
    """An entry that can be read is taken to be durable."""

    class Unsyncing:
        def __init__(self, storage: Any) -> None:
            self._storage = storage

        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "sync" else getattr(self._storage, name)

    create_entry: Any = catalog.create_entry
    patch.setattr(
        catalog,
        "create_entry",
        lambda storage, key, entry: create_entry(Unsyncing(storage), key, entry),
    )


def _raw_errors(patch: Patch) -> None:
    """What the system says of reading comes out as it is."""

    told = local.LocalStorage._read_error

    def read_error(self: Any, error: OSError, key: str) -> BaseException:
        return told(self, error, key) if isinstance(error, FileNotFoundError) else error

    patch.setattr(local.LocalStorage, "_read_error", read_error)


def _no_unlinking(patch: Patch) -> None:
    """Unfinished files are left where they are, and so is what crashes left."""
    from icechunk_arrow.storage import scratch

    patch.setattr(scratch, "_remove", lambda folder, name: None)
    patch.setattr(scratch.ScratchFolder, "tidy", lambda self: None)


DEFECTS = {
    "unchecked short write": _unchecked_short_write,
    "forgotten failure": _forgotten_failure,
    "believed": _believed,
    "raw errors": _raw_errors,
    "no unlinking": _no_unlinking,
}


@contextlib.contextmanager
def plant(name: str) -> Iterator[None]:
    """Plant a defect for a while; none, if it has no name."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            DEFECTS[name](patch)
        yield
