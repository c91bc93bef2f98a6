"""Tables over a history: its snapshots, what their commits did, and where branches and tags point.

Owns how a history is walked in as few steps as there are: a snapshot names its nearest ancestors, so their files
are fetched together where requests are slow.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import (
    conform,
    empty_table,
    from_numpy,
    from_values,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.coords import decode_lists
from icechunk_arrow.core.json_values import encode_json
from icechunk_arrow.engine.history import check_parent
from icechunk_arrow.errors import (
    CorruptFileError,
    ObjectNotFoundError,
    RetiredSnapshotError,
    SnapshotNotFoundError,
)
from icechunk_arrow.formats import envelope, structure, transaction
from icechunk_arrow.formats.budget import Budget
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.tables.columns import extents, int64, repeated, table_of
from icechunk_arrow.tables.schemas import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icechunk_arrow.core.snapshot import SnapshotFacts
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.files import Files
    from icechunk_arrow.storage.port import Storage

__all__ = ["operation_table", "ref_table", "snapshot_table"]

_TAIL_BYTES = 1 << 16
_SINGLES = ("write_chunk", "delete_chunk")
_AT_ONCE = 16

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """One snapshot of a history."""

    facts: SnapshotFacts
    chunk_count: int
    stored_bytes: int | None
    manifest_count: int
    manifest_bytes: int


def _all(storage: Storage, ask: Callable[[A], B], questions: Iterable[A]) -> list[B]:
    """Ask many things, together where that is slow."""
    waiting = list(questions)
    if storage.capabilities.fast or len(waiting) < 2:
        return [ask(each) for each in waiting]
    with ThreadPoolExecutor(min(_AT_ONCE, len(waiting))) as pool:
        return list(pool.map(ask, waiting))


def _walk(files: Files, snapshot_id: str) -> Iterator[_Past]:
    """Give a snapshot and all before it, newest first."""
    storage, limit_bytes = files.storage, files.decode_limit_bytes
    newest = _read(storage, snapshot_id, limit_bytes)
    yield newest
    while newest.facts.history:
        before = [info.id for info in newest.facts.history]
        older = _all(storage, lambda each: _read(storage, each, limit_bytes), before)
        for child, parent in pairwise([newest, *older]):
            check_parent(child.facts, parent.facts)
        yield from older
        newest = older[-1]


def _read(storage: Storage, snapshot_id: str, limit_bytes: int) -> _Past:
    """Read what the footer of a structure file says."""
    key = key_of(FileKind.STRUCTURE, snapshot_id)
    length = _TAIL_BYTES
    while True:
        try:
            tail, size_bytes = storage.get_tail(key, length)
        except ObjectNotFoundError as error:
            raise SnapshotNotFoundError(
                f"there is no snapshot {snapshot_id}: {key} does not exist. It may have been expired; a "
                f"table of its history cannot be made.",
                snapshot=snapshot_id,
            ) from error
        needs = envelope.seal_needs(tail, size_bytes, key)
        if needs <= len(tail):
            break
        Budget(key, limit_bytes).check(needs)
        length = needs
    sealed = envelope.open_seal(tail, size_bytes, FileKind.STRUCTURE, snapshot_id, limit_bytes)
    facts, numbers = structure.decode_footer(sealed)
    stored_bytes = sum(numbers.stored_bytes.tolist())
    return _Past(
        facts=facts,
        chunk_count=int(numbers.row_counts.sum()),
        stored_bytes=stored_bytes if stored_bytes < 1 << 63 else None,
        manifest_count=len(numbers.size_bytes),
        manifest_bytes=int(numbers.size_bytes.sum()),
    )


def snapshot_table(context: Context, snapshot_id: str) -> pa.Table:
    """Make the table of a snapshot and all before it, newest first."""
    past = list(_walk(context.files, snapshot_id))
    every = [each.facts for each in past]
    moments = [(facts.written_at - _EPOCH) // _MICROSECOND for facts in every]
    columns = [
        _texts(facts.id for facts in every),
        _texts(facts.parent_id for facts in every),
        from_values(moments, pa.timestamp("us", "UTC")),
        _texts(facts.message for facts in every),
        _texts(encode_json(dict(facts.properties)).decode() for facts in every),
        _texts(facts.branch for facts in every),
        _numbers(facts.sequence for facts in every),
        _numbers(each.chunk_count for each in past),
        _numbers(each.stored_bytes for each in past),
        _numbers(each.manifest_count for each in past),
        _numbers(each.manifest_bytes for each in past),
    ]
    return table_of(METADATA_TABLES["snapshots"], columns)


def _texts(values: Iterable[str | None]) -> pa.Array:
    return from_values(list(values), pa.string())


def _numbers(values: Iterable[int | None]) -> pa.Array:
    return from_values(list(values), pa.int64())


def ref_table(context: Context) -> pa.Table:
    """Make the table of all branches and tags, as they stand now."""
    catalog, storage = context.catalog, context.storage
    branches = sorted(catalog.list_branches())
    tags = sorted(catalog.list_tags())
    tips = [tip for tip in _all(storage, catalog.find_tip, branches) if tip is not None]
    tagged = zip(tags, _all(storage, catalog.find_tag, tags), strict=True)
    pointed = [(name, snapshot) for name, snapshot in tagged if snapshot is not None]
    named = {snapshot: f"the tag {name!r}" for name, snapshot in pointed}
    _check_there(
        context.files, named | {tip.snapshot_id: f"the branch {tip.branch!r}" for tip in tips}
    )
    columns = [
        _texts(chain(["branch"] * len(tips), ["tag"] * len(pointed))),
        _texts(chain((tip.branch for tip in tips), (name for name, _ in pointed))),
        _texts(chain((tip.snapshot_id for tip in tips), (snapshot for _, snapshot in pointed))),
        _numbers(
            chain(
                (None if catalog.next_sequence(tip) is None else tip.position for tip in tips),
                [None] * len(pointed),
            )
        ),
    ]
    return table_of(METADATA_TABLES["refs"], columns)


def _check_there(files: Files, named: Mapping[str, str]) -> None:
    """Refuse a reference to nothing that the ledger knows: nothing seals the few bytes that name a snapshot."""
    storage = files.storage
    keys = [key_of(FileKind.STRUCTURE, snapshot) for snapshot in named]
    for key, (snapshot, name), there in zip(
        keys, named.items(), _all(storage, storage.exists, keys), strict=True
    ):
        if there:
            continue
        try:
            files.read_facts(snapshot)
        except RetiredSnapshotError:
            continue
        except SnapshotNotFoundError as error:
            raise CorruptFileError(
                f"{name} points to a snapshot of which there is no {key}: what says so is damaged, or that "
                f"file is gone. Restore it from a copy.",
                key=key,
            ) from error


def operation_table(context: Context, snapshot_id: str) -> pa.Table:
    """Make the table of what the commits of a snapshot and all before it did, newest first."""
    past = [each.facts for each in _walk(context.files, snapshot_id)]
    logged = [facts.id for facts in past if facts.parent_id is not None]
    parts = _all(context.storage, lambda each: _operations_of(context.files, each), logged)
    return pa.concat_tables([empty_table(METADATA_TABLES["operations"]), *parts])


def _operations_of(files: Files, snapshot_id: str) -> pa.Table:
    key = key_of(FileKind.TRANSACTION, snapshot_id)
    try:
        data = files.storage.get(key, limit_bytes=files.decode_limit_bytes)
    except ObjectNotFoundError as error:
        raise CorruptFileError(
            f"the transaction log {key} of the snapshot {snapshot_id} is missing. Restore it from a "
            f"copy.",
            key=key,
        ) from error
    _, table = transaction.read_rows(data, snapshot_id, files.decode_limit_bytes)
    transaction.check_rows(key, table)
    try:
        return _operations(table, snapshot_id)
    except (KeyError, TypeError, AssertionError, pa.ArrowInvalid) as error:
        raise CorruptFileError(f"{key} is no sound log: {error}", key=key) from error


def _of_one_chunk(operations: pa.Array, coord: pa.Array) -> pa.Array:
    """Keep the coordinates of operations that are about one chunk: in rows of others they mean nothing."""
    writes, deletes = (
        to_numpy(pc.equal(operations, word)) for word in from_values([*_SINGLES], pa.string())
    )
    others = ~(writes | deletes) & validity(coord)
    if not others.any():
        return coord
    kept = np.where(others, -1, np.arange(len(coord)))
    return coord.take(from_numpy(np.maximum(kept, 0), pa.int64(), kept >= 0))


def _operations(table: pa.Table, snapshot_id: str) -> pa.Table:
    """Bring the rows of a log behind the first, which repeats the snapshot's facts, into their columns."""
    table = table.slice(1)
    raw = {name: one_array(table[name]) for name in table.column_names}
    files = pc.replace_substring(raw["manifest"], ".parquet", "")
    columns = [
        repeated(snapshot_id, table.num_rows),
        int64(raw["id"]),
        raw["operation"],
        raw["effect"],
        raw["path"],
        raw["from_path"],
        int64(raw["node_id"]),
        raw["node_type"],
        decode_lists(_of_one_chunk(raw["operation"], raw["coord"])),
        raw["coord"],
        files,
        extents(raw["extent"]),
        int64(raw["chunk_count"]),
        raw["keys"],
        *(conform(raw[name], pa.list_(pa.int64())) for name in ("shape_before", "shape_after")),
    ]
    return table_of(METADATA_TABLES["operations"], columns)
