"""Committing: plan, write, make durable, create the one entry; nothing is visible before that.

Owns the order of effects. What to write is decided by the plan; what to do after a lost race by the caller.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

from icechunk_arrow.engine.context import new_id, now
from icechunk_arrow.engine.plan import plan_commit, plan_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.plan import Changes, CommitPlan, PlannedFile, Reading

__all__ = ["commit_once", "plan", "write_files"]

_log = logging.getLogger(__name__)
_WRITERS = 8


def _fresh() -> Iterator[str]:
    while True:
        yield new_id()


def plan(
    context: Context,
    tip: Tip,
    base: Snapshot,
    changes: Changes,
    *,
    message: str,
    properties: Mapping[str, Any],
    started_at: datetime,
) -> tuple[Reading, CommitPlan]:
    """Read what a plan needs, and plan."""
    reading = plan_reading(base, changes)
    names = [name for unit in reading.units for name in unit]
    tables = {name: context.files.read_manifest(name) for name in names}
    written_at = max(now(), base.facts.written_at + timedelta(microseconds=1))
    planned = plan_commit(
        base,
        changes,
        reading=reading,
        tables=tables,
        new_ids=_fresh(),
        started_at=min(started_at, written_at),
        written_at=written_at,
        message=message,
        properties=properties,
        branch=tip.branch,
        sequence=context.catalog.next_sequence(tip),
        inline_attributes_bytes=context.config.inline_attributes_threshold_bytes,
    )
    return reading, planned


def write_files(context: Context, files: tuple[PlannedFile, ...]) -> None:
    """Put the files of a plan; any order is right, since nothing refers to them yet."""
    storage = context.storage

    def put(file: PlannedFile) -> None:
        storage.put(file.key, file.data, file.metadata)

    if storage.capabilities.fast or len(files) == 1:
        for file in files:
            put(file)
        return
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(put, files))


def commit_once(context: Context, tip: Tip, planned: CommitPlan) -> Tip:
    """Write a planned commit and try to make it the branch's next; ``ConflictError`` where it lost."""
    write_files(context, planned.files)
    context.storage.sync()
    new_tip = context.catalog.advance(tip, planned.snapshot.facts.info)
    context.files.hold_snapshot(planned.snapshot, len(planned.files[-1].data))
    _log.info("committed %s on %s: %d files", planned.snapshot.id, tip.branch, len(planned.files))
    return new_tip
