"""Where the repositories of the conformance tests lie, and what stores show."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import cpu
from zarr.core.sync import sync

from icechunk_arrow import Repository
from icechunk_arrow.engine.config import RepositoryConfig
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from icechunk_arrow import Session

__all__ = ["Place", "document_of", "keys_of", "settled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A URL and what is needed to reach it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, **settings: Any) -> Repository:
        """Make the repository."""
        config = RepositoryConfig(**settings)
        return Repository.create(
            self.url,
            self.options,
            config=config,
            storage_settings=UNSYNCED,
            pickle_secrets=True,
        )

    def open(self) -> Repository:
        """Open the repository as another process would: nothing of an earlier handle is used."""
        return Repository.open(
            self.url, self.options, storage_settings=UNSYNCED, pickle_secrets=True
        )

    def session(self) -> Session:
        """Open it, to write to main."""
        return self.open().writable_session("main")


def settled(place: Place, session: Session, *, committed: bool) -> Session:
    """Give a session that sees the same: the same one, or one opened after a commit."""
    if not committed or not session.has_uncommitted_changes:
        return session
    session.commit("a step")
    return place.session()


def keys_of(store: Store, prefix: str = "") -> list[str]:
    """Give the keys that begin with a prefix, sorted."""

    async def gathered() -> list[str]:
        return sorted([key async for key in store.list_prefix(prefix)])

    return sync(gathered())


def document_of(store: Store, path: str) -> dict[str, Any]:
    """Give a node's document."""
    buffer = sync(store.get(f"{path}/zarr.json".lstrip("/"), cpu.buffer_prototype))
    assert buffer is not None
    found: dict[str, Any] = json.loads(buffer.to_bytes())
    return found
