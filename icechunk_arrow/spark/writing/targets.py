"""Where a write from Spark goes: a session that commits when all went well, or that its owner commits; its arrays.

Owns the words that all writers have in common: what becomes of arrays that are there, and how those are described
that are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.conflict import ConflictDetector
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.writing.tasks import TaskTotals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = [
    "MODES",
    "ArraySpec",
    "Target",
    "WriteResult",
    "Writing",
    "apply_mode",
    "check_mode",
    "make_arrays",
    "writing",
]

Target = str | os.PathLike[str] | Repository | Session
"""A place, an open repository, or a writable session whose commit is its owner's business."""

ArraySpec = Mapping[str, Any]
"""A Zarr v3 document (it has ``zarr_format``), or what ``zarr.create_array`` takes: shape, chunks, dtype, …."""

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
    """Give a session to write to; commit it when the block ends well, unless it is the caller's.

    A commit that others made meanwhile is no hindrance as long as it changed other chunks. When the block fails,
    the caller's session is as it was before.
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


def apply_mode(mode: str, session: Session, paths: Collection[str]) -> bool:
    """Do what the mode says of arrays that have chunks already; whether they are to be written to."""
    filled = sorted(path for path in paths if session.has_chunks(path))
    if mode == "overwrite":
        for path in filled:
            session.clear_array(path)
    if mode == "error" and filled:
        shown = ", ".join(map(repr, filled[:5]))
        more = f" and {len(filled) - 5} more arrays" if len(filled) > 5 else ""
        raise AlreadyExistsError(
            f"{shown}{more} in {session.storage_url} have chunks already; mode='append' writes over them, "
            f"mode='overwrite' removes them first. Nothing was changed."
        )
    return not (mode == "ignore" and filled)


def make_arrays(session: Session, arrays: Mapping[str, ArraySpec]) -> None:
    """Make arrays that are not there, and the groups above them; those that are there stay as they are."""
    import zarr  # noqa: PLC0415  (slow to import)

    for path, spec in arrays.items():
        if not isinstance(spec, Mapping):
            raise InvalidInputError(
                f"the array {path!r} is described by {spec!r}; give a Zarr v3 document, or a mapping with "
                f"shape, chunks, dtype and whatever else zarr.create_array takes"
            )
        node = session.find_node(path)
        if node is not None:
            if not node.is_array:
                raise InvalidInputError(f"{path!r} is to be an array, and there is a group")
            continue
        _make_groups(session, path)
        if "zarr_format" in spec:
            session.set_document(path, json.dumps(dict(spec)).encode())
            continue
        try:
            zarr.create_array(session.store, name=path.strip("/") or None, **spec)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"the array {path!r} cannot be made as described: {error}"
            ) from error


def _make_groups(session: Session, path: str) -> None:
    above = "/"
    for name in ["", *path.strip("/").split("/")[:-1]]:
        above = f"{above.rstrip('/')}/{name}" if name else "/"
        if session.find_node(above) is None and path != "/":
            session.set_document(
                above, b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
            )
