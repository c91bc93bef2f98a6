"""Carrying out the plan of a commit: read, write, make durable, create the one entry, which makes it visible.

Owns the order of effects. What to write is decided by the plan; what to do after a lost race by the caller.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from icechunk_arrow.core.chunks import rows_of_array
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.json_values import parse_json
from icechunk_arrow.engine.context import new_id, now
from icechunk_arrow.engine.lookup import present_chunks
from icechunk_arrow.engine.manifest_writer import ManifestWriter
from icechunk_arrow.engine.plan import NOTHING_WRITTEN, last_files, plan_commit, rewritten
from icechunk_arrow.engine.segments import check_live
from icechunk_arrow.engine.sequences import together
from icechunk_arrow.errors import InvalidInputError, StorageError
from icechunk_arrow.formats.times import is_moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.changes import Changes, PendingFiles
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.plan import (
        CommitPlan,
        FileToWrite,
        FinishedCommit,
        WrittenManifests,
    )
    from icechunk_arrow.storage.port import Storage

__all__ = [
    "check_clock",
    "check_message",
    "check_year",
    "fresh_ids",
    "plan",
    "publish",
    "write",
    "write_unseen",
]

_log = logging.getLogger(__name__)
_WRITERS = 8
_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""So far a writer's clock may be from that of the place."""


def fresh_ids() -> Iterator[str]:
    """Give fresh random ids."""
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
    rearranged: tuple[frozenset[str], WrittenManifests] | None = None,
) -> CommitPlan:
    """Plan a commit; read before what the plan has to know, and write nothing."""
    if len(changes.chunks.deleted):  # no manifest is written again for chunks that are not there
        present = present_chunks(context.files, base, changes.chunks.deleted)
        changes = replace(changes, chunks=replace(changes.chunks, present=present))
    written_at = check_year(max(now(), base.facts.written_at + timedelta(microseconds=1)))
    return plan_commit(
        base,
        changes,
        settings=context.config.chunk_manifests,
        new_ids=fresh_ids(),
        started_at=min(started_at, written_at) if is_moment(started_at) else written_at,
        written_at=written_at,
        message=message,
        properties=properties,
        branch=tip.branch,
        sequence=context.catalog.next_sequence(tip),
        inline_attributes_bytes=context.config.inline_attributes_threshold_bytes,
        synced=context.storage.syncs,
        rearranged=rearranged,
    )


def write(
    context: Context, tip: Tip, planned: CommitPlan, pending: PendingFiles | None = None
) -> FinishedCommit:
    """Write a commit planned on a tip and make it durable, with all that it refers to; nothing is visible yet.

    Chunk files that are still being written are waited for.
    """
    finished = _finish(context, planned)
    together(
        context.storage,
        lambda: _write_files(context, finished.files),
        lambda: context.catalog.confirm(tip),
    )
    check_clock(context.storage, finished.files[-1].key)
    if pending is not None:
        pending.finish()
    _make_durable(context, planned)
    return finished


def write_unseen(context: Context, planned: CommitPlan) -> str:
    """Write a commit as a snapshot that no branch names, and give its id."""
    _write_files(context, _finish(context, planned).files)
    _make_durable(
        context, planned
    )  # like any other: a caller that is told of it may begin a branch there
    return planned.facts.id


def _finish(context: Context, planned: CommitPlan) -> FinishedCommit:
    """Write a plan's manifests, which nothing names yet, and make the last files."""
    with ManifestWriter(context.storage, new_id, hold_one=True) as writer:
        for manifest in planned.delta:
            writer.write_planned(manifest)
            context.files.hold_rows(manifest.name, manifest.rows)
        delta = writer.finish()
    again, replaced = _rewrite(context, planned)
    return last_files(planned, delta, again, replaced)


def _rewrite(context: Context, planned: CommitPlan) -> tuple[WrittenManifests, frozenset[str]]:
    """Write live manifests again, some at a time; tell which are replaced."""
    if not planned.rewrites:
        return NOTHING_WRITTEN, planned.dropped
    replaced = set(planned.dropped)
    new_ids = fresh_ids()
    with ManifestWriter(context.storage, new_id) as writer:
        for rewrite in planned.rewrites:
            read = context.files.read_manifest
            tables = [
                check_live(read(name, coded=True), name, planned.base) for name in rewrite.manifests
            ]
            sparse = {
                node_id: [one_array(rows_of_array(read(name), node_id)["coord"]) for name in names]
                for node_id, names in rewrite.sparse.items()
            }
            manifests = rewritten(planned, rewrite, tables, sparse, new_ids)
            if manifests is None:
                continue
            replaced.update(rewrite.manifests)
            for manifest in manifests:
                writer.write_planned(manifest)
                context.files.hold_rows(manifest.name, manifest.rows)
        return writer.finish(), frozenset(replaced)


def _write_files(context: Context, files: tuple[FileToWrite, ...]) -> None:
    """Put files; any order is right, since nothing refers to them yet."""
    storage = context.storage

    def put(file: FileToWrite) -> None:
        storage.put(file.key, file.data, file.metadata)

    if storage.capabilities.fast or len(files) == 1:
        for file in files:
            put(file)
        return
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(put, files))


def _make_durable(context: Context, planned: CommitPlan) -> None:
    """Sync what was written here; and what others left, where a commit that this one stands on says so."""
    if planned.base_synced:
        context.storage.sync()
    else:
        context.storage.sync_everything()


def publish(context: Context, tip: Tip, finished: FinishedCommit) -> Tip:
    """Try to make a written commit the branch's next; ``ConflictError`` where it lost."""
    new_tip = context.catalog.advance(tip, finished.snapshot.facts.info)
    context.files.hold_snapshot(finished.snapshot, len(finished.files[-1].data))
    _log.info("committed %s on %s: %d files", finished.snapshot.id, tip.branch, len(finished.files))
    return new_tip


def check_year(moment: datetime) -> datetime:
    """Refuse to date a snapshot by a year that no reader takes for one."""
    if not is_moment(moment):
        raise StorageError(
            f"this machine's clock, or the newest snapshot, says {moment:%Y-%m-%d %H:%M:%S} UTC, and no snapshot "
            f"can be dated so: set the clock right, or reset the branch to a snapshot that is dated rightly"
        )
    return moment


def check_clock(storage: Storage, key: str) -> None:
    """Refuse to date a snapshot by a clock that the place contradicts: all later ones would have to be later."""
    there, here = storage.time_of_put(key), now()
    if there is not None and abs(there - here) > _CLOCK_DIFFERENCE:
        raise StorageError(
            f"this machine's clock says {here:%Y-%m-%d %H:%M:%S} UTC, and {storage.url} says "
            f"{there:%Y-%m-%d %H:%M:%S}: a commit dated so would spoil the history. Set the clock right, "
            f"and commit again."
        )


def check_message(message: str, metadata: Mapping[str, Any] | None) -> None:
    """Refuse what cannot stand in a snapshot."""
    if not isinstance(message, str):
        raise InvalidInputError(f"a commit's message must be text, not {message!r}")
    try:
        parse_json(json.dumps(dict(metadata or {}), allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the metadata of a commit must be JSON: {error}") from error
