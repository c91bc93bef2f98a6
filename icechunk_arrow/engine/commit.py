"""Committing: plan, write, make durable, create the one entry; nothing is visible before that.

Owns the order of effects. What to write is decided by the plan; what to do after a lost race by the caller.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from icechunk_arrow.core.chunk_set import subtract
from icechunk_arrow.core.chunks import concat_sorted, rows_of_array
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.core.json_values import parse_json
from icechunk_arrow.core.placement import place
from icechunk_arrow.engine.context import new_id, now
from icechunk_arrow.engine.manifest_writer import NOTHING_WRITTEN, ManifestWriter
from icechunk_arrow.engine.plan import ArrayShapes, plan_commit, plan_delta, plan_reading
from icechunk_arrow.engine.presence import present_chunks
from icechunk_arrow.engine.together import together
from icechunk_arrow.errors import InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from icechunk_arrow.core.chunk_set import ChunkSet
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.catalog import Tip
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.manifest_writer import WrittenManifests
    from icechunk_arrow.engine.plan import Changes, CommitPlan, PlannedFile, Reading
    from icechunk_arrow.engine.settling import Gathered

__all__ = [
    "check_message",
    "make_durable",
    "plan",
    "plan_written",
    "publish",
    "write",
    "write_files",
]

_log = logging.getLogger(__name__)
_WRITERS = 8
_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""So far a writer's clock may be from that of the place."""


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
) -> CommitPlan:
    """Write the manifests of a commit, which nothing names yet, and plan the rest."""
    changes = _with_presence(context, base, changes)
    settings, shapes = context.config.chunk_manifests, ArrayShapes(base, changes)
    reading = plan_reading(base, changes, settings, shapes)
    delta = _write_delta(context, base, changes, shapes)
    rewritten, replaced = _rewrite(context, base, reading, shapes)
    return plan_written(
        context,
        tip,
        base,
        changes,
        delta=delta,
        rewritten=rewritten,
        replaced=replaced,
        message=message,
        properties=properties,
        started_at=started_at,
    )


def _with_presence(context: Context, base: Snapshot, changes: Changes) -> Changes:
    """Find out which of the deleted chunks are there: no manifest is written again for the others."""
    if not len(changes.chunks.deleted):
        return changes
    present = present_chunks(context.files, base, changes.chunks.deleted)
    return replace(changes, chunks=replace(changes.chunks, present=present))


def plan_written(
    context: Context,
    tip: Tip,
    base: Snapshot,
    changes: Changes,
    *,
    delta: WrittenManifests,
    rewritten: WrittenManifests,
    replaced: frozenset[str],
    message: str,
    properties: Mapping[str, Any],
    started_at: datetime,
) -> CommitPlan:
    """Plan a commit whose manifests are written."""
    written_at = max(now(), base.facts.written_at + timedelta(microseconds=1))
    return plan_commit(
        base,
        changes,
        delta=delta,
        rewritten=rewritten,
        replaced=replaced,
        new_ids=_fresh(),
        started_at=min(started_at, written_at),
        written_at=written_at,
        message=message,
        properties=properties,
        branch=tip.branch,
        sequence=context.catalog.next_sequence(tip),
        inline_attributes_bytes=context.config.inline_attributes_threshold_bytes,
        synced=context.storage.syncs,
    )


def _write_delta(
    context: Context, base: Snapshot, changes: Changes, shapes: ArrayShapes
) -> WrittenManifests:
    with ManifestWriter(context.storage, new_id, hold_one=True) as writer:
        for table in plan_delta(base, changes, context.config.chunk_manifests, shapes):
            writer.write(table, shapes.ranks(table), within=shapes.bounds(table))
        return writer.finish()


def _rewrite(
    context: Context, base: Snapshot, reading: Reading, shapes: ArrayShapes
) -> tuple[WrittenManifests, frozenset[str]]:
    """Write live manifests again as a reading says, one unit at a time; tell which are replaced."""
    if not reading.units:
        return NOTHING_WRITTEN, reading.dropped
    replaced = set(reading.dropped)
    with ManifestWriter(context.storage, new_id) as writer:
        for unit in reading.units:
            before = [context.files.read_manifest(name, coded=True) for name in unit]
            going = _with_sparse(context, base, reading, unit)
            after = [subtract(table, going, reading.removed) for table in before]
            if len(unit) == 1 and after[0].num_rows == before[0].num_rows:
                continue
            replaced.update(unit)
            if len(unit) == 1:  # what loses rows stays as large as its set allows
                if after[0].num_rows:
                    within = base.extents_in(unit[0])
                    ndims = {array_id: len(extent) for array_id, extent in within.items()}
                    writer.write(after[0], ndims, within=within)
                continue
            for table in place(concat_sorted(after), context.config.chunk_manifests, shapes):
                writer.write(table, shapes.ranks(table), within=shapes.bounds(table))
        return writer.finish(), frozenset(replaced)


def _with_sparse(
    context: Context, base: Snapshot, reading: Reading, unit: tuple[str, ...]
) -> dict[int, ChunkSet]:
    """Read the session's manifests that must be read to know what goes from a unit."""
    going = dict(reading.going)
    for node_id, names in reading.sparse_manifests(base, unit).items():
        tables = [context.files.read_manifest(name) for name in names]
        columns = [one_array(rows_of_array(table, node_id)["coord"]) for table in tables]
        going[node_id] = going[node_id].with_coordinates(columns)
    return going


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


def write(
    context: Context, tip: Tip, planned: CommitPlan, gathered: Gathered | None = None
) -> None:
    """Write a commit planned on a tip and make it durable, with all that it refers to; nothing is visible yet.

    Chunk files that are still being written are waited for.
    """
    together(
        context.storage,
        lambda: write_files(context, planned.files),
        lambda: context.catalog.confirm(tip),
    )
    _check_clock(context, planned.files[-1].key)
    if gathered is not None:
        gathered.finish()
    make_durable(context, planned)


def make_durable(context: Context, planned: CommitPlan) -> None:
    """Sync what was written here; and what others left, where a commit that this one stands on says so."""
    if planned.base_synced:
        context.storage.sync()
    else:
        context.storage.sync_everything()


def publish(context: Context, tip: Tip, planned: CommitPlan) -> Tip:
    """Try to make a written commit the branch's next; ``ConflictError`` where it lost."""
    new_tip = context.catalog.advance(tip, planned.snapshot.facts.info)
    context.files.hold_snapshot(planned.snapshot, len(planned.files[-1].data))
    _log.info("committed %s on %s: %d files", planned.snapshot.id, tip.branch, len(planned.files))
    return new_tip


def _check_clock(context: Context, key: str) -> None:
    """Refuse to date a snapshot by a clock that the place contradicts: all later ones would have to be later."""
    there, here = context.storage.time_of_put(key), now()
    if there is not None and abs(there - here) > _CLOCK_DIFFERENCE:
        raise StorageError(
            f"this machine's clock says {here:%Y-%m-%d %H:%M:%S} UTC, and {context.storage.url} says "
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
