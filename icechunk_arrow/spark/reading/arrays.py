"""Arrays as DataFrames: what is read is settled on the driver, and read by executors as Arrow.

Owns what crosses from one to the other: a description of a few hundred bytes and the number of a part. Every
executor works out the rest from the same snapshot.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.keys import node_path
from icechunk_arrow.core.predicates import parse_predicate
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import Session
from icechunk_arrow.spark.reading.chunk_layout import ChunkRows
from icechunk_arrow.spark.reading.grids import ArrayQuery, GridRows
from icechunk_arrow.storage.secrets import secrets_kept
from icechunk_arrow.tables.selection import Selection

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from icechunk_arrow.engine.opening import Allowed

    Place = str | os.PathLike[str] | Repository | Session

__all__ = [
    "LAYOUTS",
    "PART_BYTES",
    "ArrayRead",
    "frame_of",
    "plan_read",
    "read_array",
    "session_to_read",
]

LAYOUTS = ("rows", "chunks")
PART_BYTES = 64 << 20
"""What a partition gives, more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRead:
    """What is read: the same for every task, and compared by value."""

    session: bytes
    """A read-only session, pickled: its snapshot is the one that is read, whatever is committed later."""
    query: ArrayQuery
    layout: str = "rows"
    part_bytes: int = PART_BYTES

    def opened(self) -> GridRows | ChunkRows:
        """Open the arrays; of late ones they are open still."""
        return _opened(self)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow."""
        return self.opened().schema

    def parts(self) -> range:
        """Number the parts."""
        return range(self.opened().part_count(self.part_bytes))

    def read_part(self, part: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of one part."""
        return self.opened().read_part(part, self.part_bytes)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows of the parts that the rows of batches number."""
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from self.read_part(part)


@lru_cache(maxsize=2)
def _opened(read: ArrayRead) -> GridRows | ChunkRows:
    session: Session = pickle.loads(read.session)  # noqa: S301 -- made by plan_read, sent by Spark
    layout = GridRows if read.layout == "rows" else ChunkRows
    return layout(session, read.query)


def session_to_read(
    place: Place,
    selection: Selection,
    storage_options: Mapping[str, Any] | None = None,
    authorize_virtual_chunk_access: Allowed = None,
) -> Session:
    """Open a read-only session of a URL, a repository, or such a session itself."""
    if isinstance(place, Session):
        if selection != Selection():
            raise InvalidInputError(
                "a session has its snapshot; name no other one, or give the repository"
            )
        if not place.read_only:
            raise InvalidInputError(
                "executors do not see what a writable session has changed; commit, and read the "
                "repository, or give a read-only session"
            )
        session = place
    else:
        repository = place
        if not isinstance(repository, Repository):
            repository = Repository.open(
                repository,
                storage_options,
                authorize_virtual_chunk_access=authorize_virtual_chunk_access,
            )
        context = repository._context  # noqa: SLF001 -- Selection resolves for all surfaces alike
        session = Session(context, selection.resolve(context))
    if session.storage_url.startswith("memory:"):
        raise InvalidInputError(
            f"{session.storage_url} is in the memory of this process, where executors cannot read it"
        )
    return session


def plan_read(
    session: Session,
    paths: str | Sequence[str],
    *,
    layout: str = "rows",
    where: str | None = None,
    nulls: bool = False,
    columns: Sequence[str] | None = None,
    part_bytes: int = PART_BYTES,
) -> ArrayRead:
    """Describe a read, after everything about it is known to be good."""
    if layout not in LAYOUTS:
        raise InvalidInputError(f"layout is one of {' and '.join(LAYOUTS)}, not {layout!r}")
    if part_bytes < 1:
        raise InvalidInputError(f"a partition has at least one byte, not {part_bytes}")
    listed = [paths] if isinstance(paths, str) else list(paths)
    chosen = tuple(dict.fromkeys(map(node_path, listed)))
    if not chosen:
        raise InvalidInputError("there is no array to read; name at least one")
    with secrets_kept():  # the tasks of the caller's own cluster read there
        pickled = pickle.dumps(session)
    query = ArrayQuery(
        paths=chosen,
        where=None if where is None else parse_predicate(where),
        nulls=nulls,
        columns=None if columns is None else tuple(columns),
    )
    read = ArrayRead(session=pickled, query=query, layout=layout, part_bytes=part_bytes)
    read.opened()
    return read


def read_array(
    spark: Any,
    repository: Place,
    paths: str | Sequence[str],
    *,
    where: str | None = None,
    layout: str = "rows",
    columns: Sequence[str] | None = None,
    nulls: bool = False,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    partition_bytes: int = PART_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    authorize_virtual_chunk_access: Allowed = None,
) -> Any:
    """Give arrays as a DataFrame, pinned to one snapshot: what is committed later does not show in it.

    With ``layout="rows"`` there is a row for each element: a column for each dimension, and one for each array,
    named as it, or by its path where that name is taken. A dimension's column has the values of its coordinate,
    the array of one dimension with its name in the same group or the nearest above; or numbers from 0. CF times
    (``days since 1900-01-01``) become timestamps; those of calendars other than the standard ones, and in months
    or years, stay the numbers that are stored. Arrays read together share shape and dimensions; their chunks may
    differ.

    With ``layout="chunks"`` there is a row for each chunk that is stored: ``path``, ``index``, ``origin``,
    ``shape`` (cut off at the array's end) and ``values``, a list in C order.

    Unsigned numbers come in the next wider type, ``uint64`` as ``decimal(20,0)``, ``float16`` as ``float``, complex
    numbers as a struct of ``real`` and ``imag``, spans of time as intervals.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    repository
        A path, URL, open repository or read-only session.
    paths
        The array, or several.
    where
        A condition on dimensions: comparisons, ``between``, ``in`` and ``and``. Chunks without any element that
        it selects are not read. Rows are filtered exactly; chunks come whole. Times without a zone are in UTC.
    layout
        ``"rows"`` or ``"chunks"``.
    columns
        Which columns, in which order; arrays that are not among them are not read. ``_snapshot``, which only
        comes if it is named, is the snapshot that a row is read from.
    nulls
        Whether elements that are equal to the array's fill value are null.
    branch, tag, snapshot_id, as_of
        Which snapshot; ``main``'s newest if nothing is named.
    partition_bytes
        What the rows of a partition take, more or less; no less than those of a chunk.
    storage_options
        What the file system of a URL takes.
    authorize_virtual_chunk_access
        URL prefixes from which virtual chunks may be read, as :meth:`Repository.open` takes them.

    Raises
    ------
    InvalidInputError
        The arrays share no rows, have elements that Spark cannot hold, or the condition is wrong.
    NodeNotFoundError
        There is no such array.
    """
    selection = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    session = session_to_read(
        repository, selection, storage_options, authorize_virtual_chunk_access
    )
    read = plan_read(
        session,
        paths,
        layout=layout,
        where=where,
        nulls=nulls,
        columns=columns,
        part_bytes=partition_bytes,
    )
    return frame_of(spark, read)


def frame_of(spark: Any, read: ArrayRead) -> Any:
    """Make the DataFrame of a read: a row for each part, which its task turns into the part's rows."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (an extra, slow to import)

    schema = from_arrow_schema(read.schema)
    count = len(read.parts())
    parts = spark.range(0, count, 1, max(count, 1))
    return parts.mapInArrow(read, schema)
