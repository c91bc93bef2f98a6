"""The words of attaching, which are the same in every engine: what is attached by a name, and what goes wrong.

Owns how a place becomes an open repository, when there are several, and which snapshot of each is meant. Knows no
engine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.selection import find_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.selection import Selection

    Place = str | os.PathLike[str] | Repository

__all__ = ["Attached", "Attachment", "attached_elsewhere", "contexts_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What a name shows now."""

    name: str
    """The schema, or what the views' names begin with."""
    snapshots: Mapping[str, str]
    """The snapshot of each repository, by its name; of a single one by its URL."""


@dataclass(kw_only=True, eq=False)
class Attachment:
    """Repositories that are attached by one name, and what was asked of them."""

    name: str
    contexts: Mapping[str, Context]
    """The repositories by their names, in order; a single one by its URL."""
    united: bool
    """Whether they came by names, so that tables have the column ``repository``."""
    selection: Selection
    since: str | None
    token: str = field(default_factory=new_id)
    """What an engine keeps of it, by which it is found again."""

    @classmethod
    def of(
        cls,
        name: str,
        repository: Place | Mapping[str, Place],
        storage_options: Mapping[str, Any] | None,
        selection: Selection,
        since: str | None = None,
    ) -> Attachment:
        """Open what is to be attached, or put into a script."""
        contexts, united = contexts_of(repository, storage_options)
        return cls(name=name, contexts=contexts, united=united, selection=selection, since=since)

    def resolved(self) -> Iterator[tuple[str, Context, str, str]]:
        """Give each repository by its name, the snapshot that is wanted now, and the one where changes begin."""
        for label, context in self.contexts.items():
            snapshot_id = self.selection.resolve(context)
            yield label, context, snapshot_id, find_earlier(context, snapshot_id, self.since)


def attached_elsewhere(what: str) -> InvalidInputError:
    """Say why something that is there cannot be refreshed."""
    return InvalidInputError(
        f"{what} was attached by another process, which knows where its files are; detach it, and attach it again"
    )


def contexts_of(
    repository: Place | Mapping[str, Place], storage_options: Mapping[str, Any] | None
) -> tuple[Mapping[str, Context], bool]:
    """Open what is to be attached: repositories by their names, and whether they came by names."""
    if isinstance(repository, str | os.PathLike | Repository) or not hasattr(repository, "keys"):
        context = _context_of(repository, storage_options)
        return {context.storage.url: context}, False
    if not repository:
        raise InvalidInputError("there is no repository to attach; name at least one")
    for label in repository:
        if not isinstance(label, str):
            raise InvalidInputError(f"{label!r} cannot name a repository; give some text")
    places = dict(repository).items()
    return {label: _context_of(place, storage_options) for label, place in places}, True


def _context_of(place: Any, storage_options: Mapping[str, Any] | None) -> Context:
    """Open a repository, or take one that is open."""
    if isinstance(place, Repository):
        if storage_options is not None:
            raise InvalidInputError("storage_options go with a URL; a repository is open already")
        return place._context  # noqa: SLF001  (the engine's parts are no matter for its users)
    return Repository.open(place, storage_options)._context  # noqa: SLF001
