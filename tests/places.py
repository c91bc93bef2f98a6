"""Repositories for tests, and the few lines that many tests begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icechunk_arrow import StorageSettings

if TYPE_CHECKING:
    from icechunk_arrow import Repository

UNSYNCED = StorageSettings(durable=False)
"""For repositories of which no power cut has to leave anything."""

__all__ = ["UNSYNCED", "make_array", "read_array", "written"]


def make_array(store: Any, name: str = "a", shape: tuple[int, ...] = (8, 8), **more: Any) -> Any:
    """Create an array of small uncompressed chunks."""
    options = {"chunks": tuple(min(2, n) for n in shape), "dtype": "i4", "compressors": None} | more
    return zarr.create_array(store, name=name, shape=shape, fill_value=0, **options)


def written(repo: Repository, value: int = 1, name: str = "a", **more: Any) -> str:
    """Commit a new array full of one value."""
    session = repo.writable_session("main")
    make_array(session.store, name, **more)[...] = value
    return session.commit(f"write {name}")


def read_array(repo: Repository, name: str = "a", **which: Any) -> np.ndarray:
    """Read an array of the newest snapshot, or of the one that is named."""
    session = repo.readonly_session(**(which or {"branch": "main"}))
    return np.asarray(zarr.open_array(session.store, path=name, mode="r")[...])
