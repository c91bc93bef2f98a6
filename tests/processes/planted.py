"""Defects that a storm of processes has to find: each undoes something by which the package bears forks.

Owns how they are planted; what they look like, ``test_storm`` knows.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DEFECTS", "plant"]


def _a_lock_that_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """A cache keeps its lock, which a thread may hold that the child does not have."""
    from icechunk_arrow.engine.cache import ByteCache

    patch.setattr(ByteCache, "renew_after_fork", lambda _: None)


def _a_session_that_commits_in_a_child(patch: pytest.MonkeyPatch) -> None:
    """A copy of a writable session does not know that it is one."""
    from icechunk_arrow.engine.staging import OfOneProcess

    patch.setattr(OfOneProcess, "_refuse_copy", lambda _: None)


def _a_connection_of_the_parent(patch: pytest.MonkeyPatch) -> None:
    """A child asks through a connection that it inherited."""
    from icechunk_arrow.storage.fsspec import ConnectedStorage

    patch.setattr(ConnectedStorage, "renew_after_fork", lambda _: None)


class Defect(NamedTuple):
    """What is wrong, and what a storm says of it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    found: str
    far: bool = False
    """Whether it shows only where there are connections."""


DEFECTS = {
    "a lock that is not renewed": Defect(_a_lock_that_is_not_renewed, "engine/cache.py"),
    "a session that commits in a child": Defect(_a_session_that_commits_in_a_child, "in commit"),
    "a connection of the parent": Defect(_a_connection_of_the_parent, "not fork-safe", far=True),
}


@contextmanager
def plant(name: str) -> Iterator[None]:
    """Plant a defect for a while; none, if it has no name."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            DEFECTS[name].plant(patch)
        yield
