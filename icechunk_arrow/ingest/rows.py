"""``ingest.dataframe`` and ``ingest.delta``: rows of a Spark frame, and of a Delta table, into arrays.

Owns which rows of a table are taken, all or only what came since the last time, and how it is remembered: the
table's version stands among the snapshot's properties as the last batch of a stream does, once for each array, and
every later commit carries it forward. So a run that is repeated does nothing, and one that was interrupted begins
again. A table is known by Delta's id: one that was made anew is another one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icechunk_arrow.core.stream_marks import Advance, last_batches
from icechunk_arrow.delta.tables import DeltaTable, delta_table
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.options import check_choice
from icechunk_arrow.ingest.progress import Amount, Ingested, Reporter
from icechunk_arrow.ingest.spark import SparkExecutor
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.quoting import identifier
from icechunk_arrow.spark.writing.rows import row_targets, write_rows
from icechunk_arrow.spark.writing.streams import commit_batch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from icechunk_arrow.ingest.progress import Progress
    from icechunk_arrow.spark.writing.rows import RowTargets
    from icechunk_arrow.spark.writing.targets import Target

    Arrays = str | Sequence[str] | Mapping[str, str | Mapping[str, Any]] | None

_ORDER = "_icechunk_order"
_OF_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
_FILES_AT_ONCE = 1 << 30
_CHANGED = "rows were changed or deleted; use take='changes', or take='all'"
_FORGOTTEN = "Delta has forgotten some of the versions since; take='all' takes all rows once more"
_REASONS = {
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": _CHANGED,
    "DELTA_SOURCE_IGNORE_DELETE": _CHANGED,
    "DELTA_MISSING_CHANGE_DATA": (
        "no change feed was kept, as it is from when delta.enableChangeDataFeed is set; take='all' takes all rows "
        "once more"
    ),
    "DELTA_VERSION_NOT_FOUND": _FORGOTTEN,
    "DELTA_LOG_FILE_NOT_FOUND": _FORGOTTEN,
    "DELTA_TRUNCATED_TRANSACTION_LOG": _FORGOTTEN,
}
"""Delta's names of errors, and what they come to."""


def dataframe(
    spark: Any,
    df: Any,
    target: Target,
    arrays: Arrays = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Ingested:
    """Bring the rows of a frame into arrays, as one commit.

    This is :func:`icechunk_arrow.spark.write_rows`, with progress and an answer like those of the other ingests.

    Parameters
    ----------
    spark
        The session that the frame is of.
    df
        A column of coordinates for each dimension, and a column of values for each array.
    target
        A repository, its path or URL, or a writable session, which is then not committed here.
    arrays, options
        What ``write_rows`` takes: ``dimensions``, ``coordinates``, ``duplicates``, ``outside``, ``branch``, ….
    on_progress
        Called now and then with how far it has come.
    """
    title = "icechunk_arrow: rows of a frame"
    with Reporter(SparkExecutor(spark), title, on_progress).stage("rows", Amount()):
        done = write_rows(df, target, arrays, **options)
    return Ingested(
        snapshot_id=done.snapshot_id,
        arrays=tuple(sorted(done.totals.paths)),
        file_count=0,
        chunk_count=done.totals.chunk_count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedTable(Ingested):
    """What an ingest of a Delta table brought."""

    since_version: int | None
    """The version that was there before; None if all rows were taken."""
    version: int
    """The table's version that is there now."""


def delta(
    spark: Any,
    table: str | os.PathLike[str],
    target: str | os.PathLike[str] | Repository | Session,
    arrays: Arrays = None,
    *,
    take: Literal["appends", "changes", "all"] = "appends",
    version: int | None = None,
    name: str | None = None,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> IngestedTable:
    """Bring rows of a Delta table into arrays, as one commit; the next time only what has come since.

    The first time all rows of the table are taken. The commit's properties say up to which version, and so do those
    of all commits after it; another run takes what later versions brought, and does nothing if there are none.

    Parameters
    ----------
    spark
        A Spark session that knows Delta Lake.
    table
        A name in a catalog, or a path (with a slash in it).
    target
        A repository, its path or URL; with ``take="all"`` also a writable session, which is not committed here.
    arrays, options
        What :func:`icechunk_arrow.spark.write_rows` takes: ``dimensions``, ``coordinates``, ``duplicates``, ….
    take
        ``appends`` takes rows that were added since, and refuses a table in which others were changed or deleted
        (a classic Spark session only: it is a stream of Delta's). ``changes`` takes the table's Change Data Feed:
        rows that were inserted or updated are written, the latest for each cell; the cells of deleted rows become
        what null becomes in ``write_rows``. ``all`` takes all rows again whenever there is a new
        version; cells of rows that are gone stay as they are.
    version
        Up to which version of the table; the newest if none is named. Not with ``appends``.
    name
        What the snapshot's properties call this ingest. Each array remembers for itself up to which version of
        which table it was filled, so that a table may go into several groups, and an array that is new takes all
        rows. Under another name, all rows are taken once more.
    branch, message, metadata
        Of the commit.
    storage_options
        For a URL, as ``Repository.open`` takes them.
    on_progress
        Called now and then with how far it has come.

    Raises
    ------
    InvalidInputError
        The table's log does not tell what was asked for: rows were changed, no change feed was kept, or Delta has
        forgotten the versions in between; nothing is changed.
    """
    check_choice("take", take, ("appends", "changes", "all"))
    check_message(message or "", metadata)
    if take == "appends" and version is not None:
        raise InvalidInputError(
            "a version cannot be named with take='appends': Delta gives all that was added; name one with "
            "take='changes' or take='all'"
        )
    if take == "changes":
        options = _checked_for_changes(options)
    source = delta_table(spark, table)
    run = _Run(
        source=source,
        arrays=arrays,
        take=take,
        options=options,
        reporter=Reporter(
            SparkExecutor(spark), f"icechunk_arrow: rows of {source.label}", on_progress
        ),
    )
    if isinstance(target, Session):
        return _into_session(run, target, version, storage_options)
    repository = target
    if not isinstance(repository, Repository):
        repository = Repository.open(repository, storage_options)
    elif storage_options is not None:
        raise InvalidInputError("storage_options go with a URL; a repository has its own")
    session = repository.writable_session(branch)
    table_id = source.id()
    targets = run.targets(session)
    prefix = f"delta:{table_id}" if name is None else f"delta:{name}:{table_id}"
    queries = {path: f"{prefix}:{path}" for path in targets.paths.values()}
    last = last_batches(repository.lookup_snapshot(session.snapshot_id).metadata)
    since = {
        path: None if session.find_array(path) is None else last.get(query)  # none that is gone
        for path, query in queries.items()
    }
    until = _until(source, version, since)
    reached = run.advance(session, targets, since, until)
    known = [number for number in since.values() if number is not None]
    oldest = min(known) if len(known) == len(since) else None
    if not reached:
        return run.ingested(None, oldest, min(known))
    advance = Advance(
        since={queries[path]: last.get(queries[path]) for path in reached},
        reached={queries[path]: number for path, number in reached.items()},
    )
    newest = max(reached.values())
    message = message or f"rows of {source.label} up to version {newest}"
    snapshot_id = commit_batch(repository, session, advance, message, metadata or {})
    return run.ingested(snapshot_id, oldest, newest)


def _into_session(
    run: _Run,
    session: Session,
    version: int | None,
    storage_options: Mapping[str, Any] | None,
) -> IngestedTable:
    if storage_options is not None:
        raise InvalidInputError("storage_options go with a URL; a session has its own")
    if run.take != "all":
        raise InvalidInputError(
            "what has been taken is remembered in a commit, and the session's owner makes that; give the URL or "
            "the repository, or take='all'"
        )
    until = run.source.newest_version() if version is None else version
    return run.ingested(None, None, run.write(session, None, until))


def _until(source: DeltaTable, version: int | None, since: Mapping[str, int | None]) -> int:
    """Tell up to which version to take; never back to one before what is there."""
    if version is None:
        return source.newest_version()
    for path, number in since.items():
        if number is not None and number > version:
            raise InvalidInputError(
                f"{path!r} has version {number} of the table already, and version={version} is older: reset the "
                f"branch to a commit from before, or take it under another name="
            )
    return version


def _checked_for_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    for word, only in (("duplicates", "last"), ("nulls", "fill"), ("mode", "append")):
        if options.get(word, only) != only:
            raise InvalidInputError(
                f"{word}={options[word]!r} does not go with take='changes', where the latest change of a cell "
                f"counts, and a deletion is one"
            )
    if "order_by" in options:
        raise InvalidInputError(
            "order_by does not go with take='changes': the table's versions are the order"
        )
    return dict(options)


@dataclass(slots=True, kw_only=True)
class _Run:
    """One ingest that is under way."""

    source: DeltaTable
    arrays: Arrays
    take: str
    options: Mapping[str, Any]
    reporter: Reporter
    paths: set[str] = field(default_factory=set)
    chunk_count: int = 0

    def ingested(self, snapshot_id: str | None, since: int | None, version: int) -> IngestedTable:
        """Say what came of it."""
        return IngestedTable(
            snapshot_id=snapshot_id,
            arrays=tuple(sorted(self.paths)),
            file_count=0,
            chunk_count=self.chunk_count,
            since_version=None if self.take == "all" else since,
            version=version,
        )

    def targets(self, session: Session) -> RowTargets:
        """Say which columns of the table go to which arrays."""
        return row_targets(self.source.frame(), session, self.arrays, **self.options)

    def advance(
        self,
        session: Session,
        targets: RowTargets,
        since: Mapping[str, int | None],
        until: int,
    ) -> dict[str, int]:
        """Bring arrays to a version, each from where it stands; tell which came further, and to which.

        Usually all stand at the same version; an array that is new takes all rows while the others take new ones.
        """
        groups: dict[int | None, list[str]] = {}
        for column, path in targets.paths.items():
            groups.setdefault(since[path], []).append(column)
        reached: dict[str, int] = {}
        for start, columns in groups.items():
            if start is not None and start >= until:
                continue
            part = self if len(groups) == 1 else self._part(columns, targets)
            version = part.write(session, start, until)
            self.paths |= part.paths
            self.chunk_count = (
                self.chunk_count if part is self else self.chunk_count + part.chunk_count
            )
            if start is None or version > start:
                reached |= dict.fromkeys((targets.paths[column] for column in columns), version)
        return reached

    def _part(self, columns: Sequence[str], targets: RowTargets) -> _Run:
        """Give a run of some of the columns of values."""
        specs = self.arrays if isinstance(self.arrays, Mapping) else {}
        arrays: dict[str, Any] = {}
        for column in columns:
            own = specs.get(column, {})
            arrays[column] = (dict(own) if isinstance(own, Mapping) else {}) | {
                "path": targets.paths[column]
            }
        options = {**self.options, "dimensions": list(targets.dimensions)}
        return replace(self, arrays=arrays, options=options, paths=set(), chunk_count=0)

    def write(self, session: Session, since: int | None, until: int) -> int:
        """Write the rows of versions after one, up to another; tell which version that came to."""
        with self.reporter.stage("rows", Amount()):
            if since is None or self.take == "all":
                rows = self.source.frame(versionAsOf=until)
                more = {"duplicates": "last"} if self.take == "changes" else {}
                self._rows(session, rows, **more)
                return until
            if self.take == "changes":
                with self._explained(since):
                    rows = self._changes(since, until)
                    self._rows(session, rows, duplicates="last", order_by=_ORDER)
                return until
            with self._explained(since):
                return self._appended(session, since)

    @contextmanager
    def _explained(self, since: int) -> Iterator[None]:
        """Say in our words why Delta cannot tell what came after a version."""
        try:
            yield
        except IcechunkArrowError:
            raise
        except Exception as error:
            reason = next((text for word, text in _REASONS.items() if word in str(error)), None)
            if reason is None:
                raise
            raise InvalidInputError(
                f"it cannot be told what came into the table {self.source.label} after version {since}: {reason}. "
                f"Nothing was changed."
            ) from error

    def _rows(self, session: Session, rows: Any, **more: Any) -> None:
        done = write_rows(rows, session, self.arrays, **{**self.options, **more})
        self.paths |= done.totals.paths
        self.chunk_count += done.totals.chunk_count

    def _changes(self, since: int, until: int) -> Any:
        """Read the change feed as rows: a deletion is a row without values, before what its commit wrote."""
        from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

        feed = self.source.frame(
            readChangeFeed="true", startingVersion=since + 1, endingVersion=until
        )
        columns = [each for each in feed.columns if each not in _OF_FEED]
        values = self._value_columns(columns)
        written = sf.col("_change_type").isin("insert", "update_postimage")
        selected = [
            sf.when(written, sf.col(identifier(each))).alias(each)
            if each in values
            else sf.col(identifier(each))
            for each in columns
        ]
        order = sf.col("_commit_version") * 2 + written.cast("long")
        return feed.select(*selected, order.alias(_ORDER))

    def _value_columns(self, columns: Iterable[str]) -> set[str]:
        """Say which columns a deletion takes the values of."""
        if isinstance(self.arrays, str):
            return {self.arrays}
        if self.arrays is not None:
            return set(self.arrays)
        dimensions = self.options.get("dimensions") or self.options.get("coordinates")
        if not dimensions:
            raise InvalidInputError(
                "take='changes' has to know which columns hold values: name them in arrays, or the others in "
                "dimensions"
            )
        return set(columns) - ({dimensions} if isinstance(dimensions, str) else set(dimensions))

    def _appended(self, session: Session, since: int) -> int:
        """Write what was added after a version; a stream that ends is how Delta reads that, and no more."""
        if type(self.source.spark).__module__.startswith("pyspark.sql.connect"):
            raise InvalidInputError(
                "take='appends' reads a stream in the driver, which Spark Connect has not; use take='changes' or "
                "take='all' there"
            )
        failed: list[Exception] = []

        def write(rows: Any, _: int) -> None:
            try:
                self._rows(session, rows)
            except Exception as error:
                failed.append(error)
                raise

        folder = tempfile.mkdtemp(prefix="icechunk_arrow-")
        try:
            rows = self.source.stream(startingVersion=since + 1, maxFilesPerTrigger=_FILES_AT_ONCE)
            query = (
                rows.writeStream.foreachBatch(write)
                .option("checkpointLocation", Path(folder).as_uri())
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        except Exception as error:
            if failed:
                raise failed[0] from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return max([since, *(_reached(each) for each in query.recentProgress)])


def _reached(progress: Any) -> int:
    """Read off a stream's progress up to which version of the table it has come."""
    end = json.loads(progress["sources"][0]["endOffset"] or "{}") if progress["sources"] else {}
    if isinstance(end, str):
        end = json.loads(end)
    # a position before the first file of a version says that the one before is done
    return int(end["reservoirVersion"]) - (int(end["index"]) < 0) if end else -1
