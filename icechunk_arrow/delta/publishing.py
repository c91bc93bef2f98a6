"""A Delta table of chunk inventories: brought up to date, and asked which snapshot a version shows.

Owns the order of steps, and what happens when two processes take them at once. What commits say of themselves is
worked out in ``notes``.

Which rows change from one snapshot to another follows from two structure files alone: manifests never change, and
every chunk stands in exactly one live manifest, so the rows of a manifest come and go together.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from icechunk_arrow.delta import notes
from icechunk_arrow.delta.notes import Note, app_id, encode, placed, shown_after
from icechunk_arrow.delta.tables import delta_table, lost_race
from icechunk_arrow.engine.context import new_id, now
from icechunk_arrow.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SnapshotNotFoundError,
)
from icechunk_arrow.spark.quoting import identifier, text
from icechunk_arrow.spark.views.attaching import check_place, naming_gone_files, reading_chunks
from icechunk_arrow.spark.writing.tasks import job_description
from icechunk_arrow.tables.attaching import contexts_of
from icechunk_arrow.tables.node_changes import own_manifests
from icechunk_arrow.tables.queries import root_uri
from icechunk_arrow.tables.schemas import REPOSITORY, TABLES, with_repository
from icechunk_arrow.tables.selection import Selection, Which

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.delta.notes import Commit, Shown
    from icechunk_arrow.delta.tables import DeltaTable
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.tables.attaching import Place

__all__ = [
    "Publication",
    "Replacement",
    "everything",
    "publish",
    "published",
    "replacement",
    "snapshot_of",
    "version_of",
]

_log = logging.getLogger(__name__)
_TRIES = 20
_MOST_NAMED = 5_000
"""So many manifests a condition may name; it stands in the table's log. Beyond, all rows are replaced."""
_ROWS_A_FILE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Rows of these manifests go, and rows of those come; a manifest in both has other rows than before."""

    gone: frozenset[str]
    new: frozenset[str]
    row_count: int
    """Rows that come."""
    whole: bool = False
    """Whether all rows of the repository go, whatever manifests they are of."""


def everything(after: Snapshot) -> Replacement:
    """Put all rows of a snapshot in place of whatever is there."""
    new = frozenset(after.manifest_sizes)
    return Replacement(gone=frozenset(), new=new, row_count=_row_count(after, new), whole=True)


def replacement(before: Snapshot, after: Snapshot) -> Replacement:
    """Tell what has to be done to rows of one snapshot for them to be those of another.

    The two may stand anywhere in the repository's history.
    """
    renamed = _renamed(before, after)
    gone = frozenset(own_manifests(before, after)) | renamed
    new = frozenset(own_manifests(after, before)) | renamed
    return Replacement(gone=gone, new=new, row_count=_row_count(after, new))


def _renamed(before: Snapshot, after: Snapshot) -> frozenset[str]:
    """Find manifests that both have, with chunks of arrays whose paths differ."""
    moved = [
        node_id
        for node_id, row in before.rows_by_id.items()
        if node_id in after.rows_by_id
        and before.paths[row] != after.paths[after.rows_by_id[node_id]]
    ]
    if not moved:
        return frozenset()
    entries = after.entries
    rows = [after.rows_by_id[node_id] for node_id in moved]
    codes = np.unique(entries.codes[np.isin(entries.owners, rows)])
    names = (entries.manifests[code] for code in codes.tolist())
    return frozenset(name for name in names if name in before.manifest_sizes)


def _row_count(snapshot: Snapshot, manifests: frozenset[str]) -> int:
    entries = snapshot.entries
    return int(entries.row_counts[entries.of_manifests(manifests)].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What came of publishing one repository."""

    repository: str
    snapshot_id: str
    """What the table shows now."""
    version: int
    """The table's version that began to show it."""
    changed: bool
    """Whether this call made it; False where it was there already."""
    whole: bool = False
    """Whether all rows of the repository were written, not only what differed."""
    rows_written: int = 0
    manifests_added: int = 0
    manifests_removed: int = 0


def publish(
    spark: Any,
    repository: Place | Mapping[str, Place],
    table: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **which: Unpack[Which],
) -> dict[str, Publication]:
    """Bring a Delta table up to date, so that it shows the chunks of a snapshot.

    The table has the columns of the table ``chunks`` after a column ``repository``, by which it is partitioned. It
    is made if it is not there. Only rows of manifests that the snapshot published before has not are written, and
    only rows of manifests that are live no more are removed; a row's column ``snapshot`` says with which published
    snapshot it came. Each repository is one commit of the table, or none if nothing is to be done: a publishing
    that is repeated, or was interrupted anywhere, does no harm.

    Parameters
    ----------
    spark
        A Spark session that knows Delta Lake, classic or of Spark Connect.
    repository
        A path, URL or open repository, which the table calls by its URL; or several, by names of their own.
    table
        A name in a catalog, or a path (with a slash in it).
    branch, tag, snapshot_id, as_of
        Which snapshot; ``main``'s newest if none is named.
    storage_options
        What the file system of a repository's URL takes. Spark is told nothing of it.

    Returns
    -------
    dict
        What came of each repository, by its name.

    Raises
    ------
    ConflictError
        Others kept publishing the same repository, and were faster each time.
    InvalidInputError
        The table is there and is something else, or the session has no Delta Lake.
    """
    contexts, _ = contexts_of(repository, storage_options)
    selection = Selection(**which)
    for context in contexts.values():
        check_place(context.storage.url)
    target = delta_table(spark, table)
    return {
        name: _publish_one(spark, target, name, context, selection)
        for name, context in contexts.items()
    }


def published(
    spark: Any, table: str | os.PathLike[str], version: int | None = None
) -> dict[str, str]:
    """Give the snapshot of each repository that a version of a table shows; the newest if none is named.

    A repository is missing where it cannot be told, since others wrote to the table, or Delta has forgotten the
    commits (``delta.logRetentionDuration``).
    """
    target = delta_table(spark, table)
    commits = target.commits()
    if version is not None:
        if not any(each.version == version for each in commits):
            raise NotFoundError(
                f"the log of the table {target.label} has no version {version}; it has "
                f"{commits[0].version} to {commits[-1].version}"
            )
        commits = [each for each in commits if each.version <= version]
    return {name: each.snapshot for name, each in sorted(shown_after(commits).items())}


def snapshot_of(
    spark: Any,
    table: str | os.PathLike[str],
    version: int | None = None,
    *,
    repository: str | None = None,
) -> str:
    """Give the snapshot that a version of a table shows; of one repository, if it has several."""
    snapshots = published(spark, table, version)
    which = "now" if version is None else f"in version {version}"
    if repository is None and len(snapshots) > 1:
        raise InvalidInputError(
            f"the table {table} shows several repositories {which}; name one of {', '.join(snapshots)}"
        )
    name = next(iter(snapshots), None) if repository is None else repository
    if name is None or name not in snapshots:
        shown = f"it shows {', '.join(snapshots)}" if snapshots else "it shows none that is known"
        raise NotFoundError(
            f"it is not known which snapshot of {repository or 'a repository'} the table {table} shows {which}; "
            f"{shown}"
        )
    return snapshots[name]


def version_of(
    spark: Any,
    table: str | os.PathLike[str],
    snapshot_id: str,
    *,
    repository: str | None = None,
) -> int:
    """Give the version of a table that began to show a snapshot; the last one, if it did so repeatedly."""
    commits = delta_table(spark, table).commits()
    for place in range(len(commits), 0, -1):
        note = commits[place - 1].note
        if note is None or note.snapshot != snapshot_id:
            continue
        if repository in {None, note.repository}:
            shown = shown_after(commits[:place]).get(note.repository)
            if shown is not None and shown.snapshot == snapshot_id:
                return shown.version
    for name, each in shown_after(commits).items():  # of a commit that Delta has forgotten
        if each.snapshot == snapshot_id and repository in {None, name}:
            return each.version
    raise SnapshotNotFoundError(
        f"no version of the table {table} is known to show the snapshot {snapshot_id}; "
        f"delta.published says what it shows now"
    )


# -- one repository


def _publish_one(
    spark: Any, table: DeltaTable, name: str, context: Context, selection: Selection
) -> Publication:
    problem: BaseException | None = None
    for _ in range(_TRIES):
        wanted = selection.resolve(context)
        try:
            table.create(with_repository(TABLES["chunks"]), REPOSITORY.name)
            commits, shown = _look(table, name)
            here = shown.get(name)
            if here is not None and here.snapshot == wanted and here.place == _place(context):
                return Publication(
                    repository=name, snapshot_id=wanted, version=here.version, changed=False
                )
            note = _note(name, wanted, _place(context), commits, shown)
            change = _change(context, here, wanted)
            _write(spark, table, context, note, change)
        except Exception as error:
            if not lost_race(error):
                raise
            problem = error
            _log.info("another writer of %s was faster; once more", table.label)
            continue
        version = _find(table, note)
        if version is not None:
            _log.info("published %s of %s as version %d", wanted, name, version)
            return Publication(
                repository=name,
                snapshot_id=wanted,
                version=version,
                changed=True,
                whole=change.whole,
                rows_written=change.row_count,
                manifests_added=len(change.new),
                manifests_removed=len(change.gone),
            )
        # the number was used by another writer, and Delta passed over the write
    raise ConflictError(
        f"others changed the table {table.label} {_TRIES} times while {name} was being published; try again"
    ) from problem


def _look(table: DeltaTable, name: str) -> tuple[list[Commit], dict[str, Shown]]:
    """Read as much of a table's history as is needed to know what it shows of a repository."""
    commits: list[Commit] = []
    shown: dict[str, Shown] = {}
    for commits in table.looks():
        shown = shown_after(commits)
        if name in shown:
            break
    return commits, shown


def _note(
    name: str, snapshot_id: str, place: str, commits: list[Commit], shown: dict[str, Shown]
) -> Note:
    here = shown.get(name)
    if here is None:  # all rows are replaced: the number only has to be one that no writer has used
        known = notes.numbers_used(commits, name) or 0
        number = max(known + 1, int(now().timestamp() * 1_000_000))
    else:
        number = here.number + 1
    return Note(
        repository=name,
        snapshot=snapshot_id,
        place=place,
        number=number,
        write_id=new_id(),
        seen=commits[-1].version,
        others={each: known for each, known in shown.items() if each != name},
    )


def _change(context: Context, here: Shown | None, wanted: str) -> Replacement:
    """Work out what is to be written; all of it where what is there cannot be told or is of another place."""
    after = context.files.read_snapshot(wanted)
    if here is None or here.place != _place(context):
        return everything(after)
    try:
        before = context.files.read_snapshot(here.snapshot)
    except SnapshotNotFoundError:  # it has expired, or this is another repository by the same name
        return everything(after)
    change = replacement(before, after)
    named = len(change.gone | change.new) if change.gone else 0
    return everything(after) if named > _MOST_NAMED else change


def _write(
    spark: Any, table: DeltaTable, context: Context, note: Note, change: Replacement
) -> None:
    mine = f"{identifier(REPOSITORY.name)} = {text(note.repository)}"
    where = None
    if change.whole:
        where = mine
    elif change.gone:
        listed = ", ".join(text(each) for each in sorted(change.gone | change.new))
        where = f"{mine} AND manifest IN ({listed})"
    with (
        naming_gone_files(context, note.snapshot),
        _rows(spark, context, note, change) as rows,
        job_description(spark, f"icechunk_arrow: publish {note.repository} to {table.label}"),
    ):
        table.write(
            rows,
            where=where,
            user_metadata=encode(note),
            app_id=app_id(note.repository),
            number=note.number,
        )


@contextmanager
def _rows(spark: Any, context: Context, note: Note, change: Replacement) -> Iterator[Any]:
    """Read the rows that come, in as many tasks as the table is to get files."""
    with reading_chunks(spark, context, note.snapshot, change.new) as chunks:
        rows = chunks.selectExpr(f"{text(note.repository)} AS {REPOSITORY.name}", "*")
        yield rows.coalesce(max(-(-change.row_count // _ROWS_A_FILE), 1))


def _find(table: DeltaTable, note: Note) -> int | None:
    """Find the version that a note became; None if it became none."""
    for commits in table.looks():
        for each in reversed(commits):
            if each.note is not None and each.note.write_id == note.write_id:
                return placed(each.note, each.version).version
            if each.version <= note.seen:
                return None
    return None


def _place(context: Context) -> str:
    return root_uri(context.storage.url)
