"""How far an ingest has come, and what came of it.

Owns what the caller is told. Counts come from what is known beforehand and the share of the work that is done.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_arrow.storage import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.ingest.executor import Executor


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
    """Between 0 and 1: of the tasks, or parts, of the stage."""

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
    """Tells what an executor is doing.

    Parameters
    ----------
    executor
        Does the work.
    title
        What the whole is, as it stands in descriptions of jobs.
    on_progress
        Called, maybe from another thread, now and then and at the end of every stage.
    """

    def __init__(
        self, executor: Executor, title: str, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._executor = executor
        self._title = title
        self._call = on_progress

    @contextmanager
    def stage(self, stage: str, total: Amount) -> Iterator[None]:
        """Describe the work of a block, and report on it."""
        start = clock.seconds()
        most = 0.0

        def report(share: float) -> None:
            nonlocal most
            most = share = max(most, share)  # a job may turn out to have more stages
            if self._call is not None:
                done = total if share >= 1 else total.share(share)
                elapsed = clock.seconds() - start
                self._call(
                    Progress(
                        stage=stage, done=done, total=total, elapsed_seconds=elapsed, share=share
                    )
                )

        watch = report if self._call else None
        with self._executor.watched(f"{self._title}: {stage}", watch):
            yield
        report(1.0)
