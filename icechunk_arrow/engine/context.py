"""What the parts of an open repository share: places, settings, a clock, fresh ids; and arrays as views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from icechunk_arrow.core.ids import ID_BYTES, encode_id
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.files import Files
from icechunk_arrow.storage.chance import random_bytes
from icechunk_arrow.storage.clock import now

if TYPE_CHECKING:
    from icechunk_arrow.core.grid import Grid
    from icechunk_arrow.core.keys import ChunkKeys
    from icechunk_arrow.core.snapshot import Node
    from icechunk_arrow.engine.catalog import Catalog
    from icechunk_arrow.engine.config import RepositoryConfig, SavedConfig
    from icechunk_arrow.engine.virtual import VirtualAccess
    from icechunk_arrow.storage.port import Storage
    from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["ArrayView", "Context", "new_id", "now"]


class ArrayView(Struct, frozen=True, kw_only=True, eq=False):
    """A node with what follows from its document, worked out once."""

    node: Node
    grid: Grid
    keys: ChunkKeys


def new_id() -> str:
    """Make a fresh random id."""
    return encode_id(random_bytes(ID_BYTES))


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """An open repository's parts; pickles where its storage does, without what the cache holds."""

    storage: Storage
    catalog: Catalog
    saved_config: SavedConfig
    storage_settings: StorageSettings
    access: VirtualAccess
    files: Files

    @property
    def config(self) -> RepositoryConfig:
        """The settings in force; the first time they may be fetched."""
        return self.saved_config.to_read()

    def __getstate__(self) -> dict[str, Any]:
        parts = {name: value for name, value in self.__dict__.items() if name != "files"}
        limits = (self.files.cache.limit_bytes, self.files.decode_limit_bytes)
        return {**parts, "limits": limits, "repository": self.files.repository}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cache_bytes, decode_limit_bytes = state.pop("limits")
        cache, repository = ByteCache(cache_bytes), state.pop("repository")
        files = Files(state["storage"], cache, decode_limit_bytes, repository)
        self.__dict__.update(state, files=files)
