"""Frames of references and of encoded chunks, written by executors and committed at once.

Owns the two functions and what their rows mean; forks of the session write the manifests on executors.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from icechunk_arrow.engine.encoded import encoded_chunks
from icechunk_arrow.engine.references import REFERENCES
from icechunk_arrow.spark.writing.arrays_to_make import make_arrays
from icechunk_arrow.spark.writing.packing import packed_by_grid, unpacked
from icechunk_arrow.spark.writing.partitioning import by_grid
from icechunk_arrow.spark.writing.targets import check_mode, mode_check, writing
from icechunk_arrow.spark.writing.tasks import RecentRows, described, run_tasks, uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from icechunk_arrow.session import ForkSession
    from icechunk_arrow.spark.writing.arrays_to_make import ArraySpec
    from icechunk_arrow.spark.writing.targets import Target, WriteResult

__all__ = ["StageRows", "write_chunks", "write_references"]

Duplicates = Literal["error", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The work of one task: rows of references or of encoded chunks, in any order, staged in a fork."""

    kind: str
    """references, or chunks."""
    array_path: str | None
    duplicates: str = "error"
    is_packed: bool = False
    """Whether rows come as ``packed_by_grid`` sends them."""

    def __call__(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> None:
        """Stage rows of one partition."""
        rows = RecentRows(unpacked(batches) if self.is_packed else batches)
        values = REFERENCES if self.kind == "references" else encoded_chunks(fork.payload_writer)
        fork.stage_rows(
            self.array_path,
            rows.reader(),
            values,
            duplicates=self.duplicates,
            name_row=rows.name,
        )


def write_references(
    df: Any,
    target: Target,
    array_path: str | None = None,
    *,
    arrays: Mapping[str, ArraySpec] | None = None,
    mode: str = "append",
    duplicates: Duplicates = "error",
    shuffle: bool = True,
    branch: str = "main",
    message: str = "write references",
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write a frame of virtual references: byte ranges of files that exist already.

    Parameters
    ----------
    df
        Columns ``index`` (a list of integers; or ``index_0``, ``index_1``, … or the names of the dimensions),
        ``location``, ``offset``, ``length``, and if wanted ``etag`` and ``last_modified``; ``path`` where
        ``array_path`` is not given.
    target
        A URL, a repository, or a writable session. A session is not committed: several writes into one become
        one commit.
    array_path
        The array, if all rows are of one.
    arrays
        Arrays that are made where they are not there yet: path to a Zarr v3 document, or to the arguments of
        ``zarr.create_array``.
    mode
        ``append`` writes over what is there, chunk by chunk; ``overwrite`` first removes all chunks of the arrays
        that rows are for; ``error`` and ``ignore`` refuse, or do nothing, if one of these has chunks.
    duplicates
        ``error`` refuses a chunk that comes twice; ``last`` takes the last of its rows, in the frame's order.
    shuffle
        Bring neighbouring chunks together first. Without it the frame's own partitions are the tasks: right in
        any case, and best if each holds a range of the array.
    branch, message, metadata
        Of the commit.
    storage_options
        For a URL, as ``Repository.open`` takes them.
    """
    return _write(
        df,
        target,
        StageRows(kind="references", array_path=array_path, duplicates=duplicates),
        arrays=arrays,
        mode=mode,
        shuffle=shuffle,
        branch=branch,
        message=message,
        metadata=metadata,
        storage_options=storage_options,
    )


def write_chunks(
    df: Any,
    target: Target,
    array_path: str | None = None,
    *,
    arrays: Mapping[str, ArraySpec] | None = None,
    mode: str = "append",
    duplicates: Duplicates = "error",
    shuffle: bool = True,
    branch: str = "main",
    message: str = "write chunks",
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write a frame of chunks that are encoded already, as the codecs of their arrays make them.

    The columns are ``index`` (or one per dimension), ``data`` with the bytes, and ``path`` where ``array_path`` is
    not given. Everything else is as in :func:`write_references`.
    """
    return _write(
        df,
        target,
        StageRows(kind="chunks", array_path=array_path, duplicates=duplicates),
        arrays=arrays,
        mode=mode,
        shuffle=shuffle,
        branch=branch,
        message=message,
        metadata=metadata,
        storage_options=storage_options,
    )


def _write(
    df: Any,
    target: Target,
    work: StageRows,
    *,
    arrays: Mapping[str, ArraySpec] | None,
    mode: str,
    shuffle: bool,
    branch: str,
    message: str,
    metadata: Mapping[str, Any] | None,
    storage_options: Mapping[str, Any] | None,
) -> WriteResult:
    check_mode(mode)
    with writing(
        target, branch=branch, message=message, metadata=metadata, storage_options=storage_options
    ) as under_way:
        session = under_way.session
        make_arrays(session, arrays or {})
        paths = session.array_paths() if work.array_path is None else [work.array_path]
        placed = df
        if shuffle and work.kind == "references":
            placed = packed_by_grid(
                df,
                session,
                paths,
                work.array_path,
                known=REFERENCES.known,
                keeps_order=work.duplicates == "last",
            )
            work = replace(work, is_packed=True)
        elif shuffle:
            placed = by_grid(df, session, paths, work.array_path)
        spark = df.sparkSession
        with (
            described(spark, f"icechunk_arrow: {work.kind} to {session.storage_url}"),
            uncounted(spark) if work.is_packed else nullcontext(),
        ):
            under_way.totals = run_tasks(
                placed,
                session,
                work,
                duplicates=work.duplicates,
                before_merge=mode_check(mode, session),
            )
    return under_way.result
