"""Where the repositories of the conformance tests lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow import Repository, StorageSettings
from icechunk_arrow.engine.config import RepositoryConfig

if TYPE_CHECKING:
    from icechunk_arrow import Session

__all__ = ["Place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A URL and what is needed to reach it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, **settings: Any) -> Repository:
        """Make the repository."""
        config = RepositoryConfig(storage=StorageSettings(durable=False), **settings)
        return Repository.create(self.url, self.options, config=config)

    def open(self) -> Repository:
        """Open the repository as another process would: nothing of an earlier handle is used."""
        return Repository.open(self.url, self.options)

    def session(self) -> Session:
        """Open it, to write to main."""
        return self.open().writable_session("main")
