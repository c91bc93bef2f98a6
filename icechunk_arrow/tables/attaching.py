"""What people attach to an engine: one repository or several, and what they are told of it.

Owns how a place becomes an open repository, and when there are several. Knows no engine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.engine.context import Context

    Place = str | os.PathLike[str] | Repository

__all__ = ["Attached", "Members", "context_of", "members_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What a name shows now."""

    name: str
    """The schema, or what the views' names begin with."""
    snapshots: Mapping[str, str]
    """The snapshot of each repository, by its name; of a single one by its URL."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """The repositories that are attached by one name."""

    contexts: Mapping[str, Context]
    """By their names, in order; a single one by its URL."""
    united: bool
    """Whether they came by names, so that tables have the column ``repository``."""


def context_of(place: Any, storage_options: Mapping[str, Any] | None) -> Context:
    """Open a repository, or take one that is open."""
    if isinstance(place, Repository):
        if storage_options is not None:
            raise InvalidInputError("storage_options go with a URL; a repository is open already")
        return place._context  # noqa: SLF001  (the engine's parts are no matter for those who use it)
    return Repository.open(place, storage_options)._context  # noqa: SLF001


def members_of(
    repository: Place | Mapping[str, Place], storage_options: Mapping[str, Any] | None
) -> Members:
    """Open what is to be attached."""
    if isinstance(repository, str | os.PathLike | Repository) or not hasattr(repository, "keys"):
        context = context_of(repository, storage_options)
        return Members(contexts={context.storage.url: context}, united=False)
    if not repository:
        raise InvalidInputError("there is no repository to attach; name at least one")
    for label in repository:
        if not isinstance(label, str):
            raise InvalidInputError(f"{label!r} cannot name a repository; give some text")
    contexts = {
        label: context_of(place, storage_options) for label, place in dict(repository).items()
    }
    return Members(contexts=contexts, united=True)
