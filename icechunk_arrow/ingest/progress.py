"""How far an ingest has come, and what came of it: for Spark's pages, for a callback, and for the caller.

Owns what is said while Spark works. Counts come from what is known beforehand and the share of tasks that are done.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.engine.context import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Amount", "Failure", "Ingested", "Progress", "Reporter"]

_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many of each; None where it is not known before the end."""

    files: int | None = None
    chunks: int | None = None
    bytes: int | None = None

    def share(self, part: float) -> Amount:
        """Give a part of it."""
        return Amount(
            files=None if self.files is None else int(self.files * part),
            chunks=None if self.chunks is None else int(self.chunks * part),
            bytes=None if self.bytes is None else int(self.bytes * part),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one stage of an ingest has come."""

    stage: str
    """What is being done, in words."""
    done: Amount
    total: Amount
    elapsed_seconds: float
    share: float
    """Between 0 and 1: of Spark's tasks."""

    @property
    def seconds_left(self) -> float | None:
        """How long the stage will take from now, if it goes on like this; None before anything is done."""
        return self.elapsed_seconds * (1 - self.share) / self.share if self.share else None

    @property
    def bytes_per_second(self) -> float | None:
        """How fast it goes; None where bytes are not counted."""
        if self.done.bytes is None or not self.elapsed_seconds:
            return None
        return self.done.bytes / self.elapsed_seconds

    def __str__(self) -> str:
        parts = [f"{self.stage}: {self.share:.0%}"]
        for name, done, total in (
            ("files", self.done.files, self.total.files),
            ("chunks", self.done.chunks, self.total.chunks),
            ("bytes", self.done.bytes, self.total.bytes),
        ):
            if total is not None:
                parts.append(f"{done} of {total} {name}")
        if self.bytes_per_second is not None:
            parts.append(f"{self.bytes_per_second / 1e6:.1f} MB/s")
        if self.seconds_left is not None:
            parts.append(f"{self.seconds_left:.0f} s left")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A source that could not be taken."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What an ingest brought."""

    snapshot_id: str | None
    """The commit; None where the target is a session, which its owner commits."""
    arrays: tuple[str, ...]
    """Paths in the repository."""
    file_count: int
    chunk_count: int
    """Chunks written or referred to."""
    failures: tuple[Failure, ...] = ()
    """Sources that were left out, as ``failures="report"`` allows."""


class Reporter:
    """Says what Spark is doing.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    title
        What the whole is, as it stands in descriptions of jobs.
    on_progress
        Called from another thread, now and then and at the end of every stage.
    """

    def __init__(
        self, spark: Any, title: str, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._spark = spark
        self.title = title
        self._call = on_progress

    def description(self, stage: str) -> str:
        """Name a stage for Spark's pages."""
        return f"{self.title}: {stage}"

    @contextmanager
    def stage(self, stage: str, total: Amount) -> Iterator[None]:
        """Describe the jobs of a block, and report on them."""
        start = time.monotonic()
        most = 0.0

        def report(share: float) -> None:
            nonlocal most
            most = share = max(most, share)  # a job may turn out to have more stages
            if self._call is not None:
                done = total if share >= 1 else total.share(share)
                elapsed = time.monotonic() - start
                self._call(
                    Progress(
                        stage=stage, done=done, total=total, elapsed_seconds=elapsed, share=share
                    )
                )

        watch = _on_connect if _is_remote(self._spark) else _on_classic
        with watch(self._spark, self.description(stage), report if self._call else None):
            yield
        report(1.0)


def _is_remote(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def _on_classic(
    spark: Any, description: str, report: Callable[[float], None] | None
) -> Iterator[None]:
    context = spark.sparkContext
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    group = f"icechunk-{new_id()}"
    context.setJobGroup(group, description)
    ended = threading.Event()
    watcher = None
    if report is not None:
        watcher = threading.Thread(
            target=_poll, args=(context.statusTracker(), group, report, ended), daemon=True
        )
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)


def _poll(
    tracker: Any, group: str, report: Callable[[float], None], ended: threading.Event
) -> None:
    while not ended.wait(_EVERY_SECONDS):
        jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
        stages = filter(None, (tracker.getStageInfo(i) for job in jobs for i in job.stageIds))
        share = _share((stage.numCompletedTasks, stage.numTasks) for stage in stages)
        if share < 1:
            report(share)


def _share(stages: Iterable[tuple[int, int]]) -> float:
    """Give the part of all tasks that is done."""
    pairs = list(stages)
    total = sum(count for _, count in pairs)
    return sum(done for done, _ in pairs) / total if total else 0.0


@contextmanager
def _on_connect(
    spark: Any, description: str, report: Callable[[float], None] | None
) -> Iterator[None]:
    tag = description.replace(",", ";")

    def handle(stages: Iterable[Any] | None, *_: Any, **__: Any) -> None:
        share = _share((each.num_completed_tasks, each.num_tasks) for each in stages or ())
        if report is not None and 0 < share < 1:
            report(share)

    spark.addTag(tag)
    if report is not None:
        spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        if report is not None:
            spark.removeProgressHandler(handle)
        spark.removeTag(tag)
