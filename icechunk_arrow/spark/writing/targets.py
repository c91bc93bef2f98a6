"""Where a write from Spark goes: a session that commits when all went well, or one that somebody else commits.

Owns the words that all writers have in common.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.conflict import ConflictDetector
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.writing.tasks import TaskTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["MODES", "Target", "WriteResult", "Writing", "check_mode", "mode_check", "writing"]

Target = str | os.PathLike[str] | Repository | Session
"""A place, an open repository, or a writable session whose commit is its owner's business."""

MODES = ("append", "overwrite", "error", "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What a write from Spark did."""

    snapshot_id: str | None
    """The commit; None where nothing was to be written, or where the session's owner commits."""
    totals: TaskTotals = field(default_factory=TaskTotals)


@dataclass(slots=True, kw_only=True)
class Writing:
    """A write that is under way."""

    session: Session
    snapshot_id: str | None = None
    totals: TaskTotals = field(default_factory=TaskTotals)

    @property
    def result(self) -> WriteResult:
        """What came of it, after its block has ended."""
        return WriteResult(snapshot_id=self.snapshot_id, totals=self.totals)


@contextmanager
def writing(
    target: Target,
    *,
    branch: str = "main",
    message: str,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Writing]:
    """Give a session to write to; commit it when the block ends well, unless it was somebody else's.

    A commit that others made meanwhile is no hindrance as long as it changed other chunks. When the block fails,
    somebody else's session is as it was before.
    """
    if isinstance(target, Session):
        if storage_options is not None:
            raise InvalidInputError("storage_options go with a URL; a session has its own")
        with target.all_or_nothing():
            yield Writing(session=target)
        return
    if isinstance(target, Repository):
        if storage_options is not None:
            raise InvalidInputError("storage_options go with a URL; a repository has its own")
        repository = target
    else:
        repository = Repository.open(target, storage_options)
    session = repository.writable_session(branch)
    under_way = Writing(session=session)
    yield under_way
    if session.has_uncommitted_changes:
        under_way.snapshot_id = session.commit(message, metadata, rebase_with=ConflictDetector())


def check_mode(mode: str) -> None:
    """Refuse a word that is no mode."""
    if mode not in MODES:
        raise InvalidInputError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")


def mode_check(mode: str, session: Session) -> Callable[[TaskTotals], bool]:
    """Say what becomes of arrays that have chunks already, once it is known which are written to."""

    def check(totals: TaskTotals) -> bool:
        filled = sorted(path for path in totals.paths if session.has_chunks(path))
        if mode == "overwrite":
            for path in filled:
                session.clear_array(path)
        if mode == "error" and filled:
            raise AlreadyExistsError(
                f"{_listed(filled)} in {session.storage_url} have chunks already; mode='append' writes over "
                f"them, mode='overwrite' removes them first. Nothing was changed."
            )
        return not (mode == "ignore" and filled)

    return check


def _listed(paths: Iterable[str]) -> str:
    shown = list(paths)
    more = f" and {len(shown) - 5} more arrays" if len(shown) > 5 else ""
    return ", ".join(map(repr, shown[:5])) + more
