"""What the parts of an open repository share: places, settings, permissions, a clock and fresh ids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.ids import ID_BYTES, encode_id
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.files import Files

if TYPE_CHECKING:
    from icechunk_arrow.engine.catalog import Catalog
    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.virtual import VirtualAccess
    from icechunk_arrow.storage.port import Storage

__all__ = ["Context", "new_id", "now"]


def new_id() -> str:
    """Make a fresh random id."""
    return encode_id(os.urandom(ID_BYTES))


def now() -> datetime:
    """Tell the time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """An open repository's parts; pickles where its storage does, without what the cache holds."""

    storage: Storage
    catalog: Catalog
    config: RepositoryConfig
    access: VirtualAccess
    files: Files

    def __getstate__(self) -> dict[str, Any]:
        return {
            "storage": self.storage,
            "catalog": self.catalog,
            "config": self.config,
            "access": self.access,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = Files(state["storage"], ByteCache(state["config"].cache_bytes))
        self.__dict__.update(state, files=files)
