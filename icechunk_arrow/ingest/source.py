"""What a source of a foreign format gives: the nodes that stand in it, where their chunks are, and their values.

Owns the interface, and the values that go through it. Knows no format and no repository. A source goes in a pickle
to where its references are read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_numpy, from_values, indices, to_numpy
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.executor import Threads, cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.keys import ChunkKeys
    from icechunk_arrow.ingest.executor import Executor
    from icechunk_arrow.storage.source_files import SourceFile, SourceFiles

TIME = pa.timestamp("us", "UTC")
REFERENCES = pa.schema(
    [
        ("index", pa.list_(pa.int64())),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", TIME),
        ("data", pa.binary()),
    ]
)
"""A chunk has a location, or data; with neither, no reference can say it, and its values are to be read."""
BATCH_ROWS = 1 << 16
"""So many references make a batch."""
_TEXT = pa.string()


class Source(Protocol):
    """An opened source whose arrays come as they are: a Zarr store, references of kerchunk, and the like.

    Each format has a class with a class method ``open(files, location, …)``.
    """

    @property
    def hierarchy(self) -> Hierarchy:
        """What stands in it."""

    def parts(self, path: str) -> Sequence[Any]:
        """Name the parts in which the references of an array can be read, each in a place of its own."""

    def references(self, path: str, part: Any) -> Iterator[pa.RecordBatch]:
        """Give the chunks of an array, or of a part of it, as ``REFERENCES`` has them."""


class VariableSource(Protocol):
    """An opened file whose variables may follow those of other files: NetCDF-4, HDF5, and the like."""

    def contents(self) -> FileContents:
        """Look at all that stands in it, its values apart."""

    def references(self, path: str) -> pa.RecordBatch:
        """Give the chunks of a variable; the only one of values that stand in one piece is all of them."""

    def values(self, path: str, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read stored values, with fill values where the file has not been written as far; text as objects."""

    def meaning(self, path: str) -> Meaning:
        """Tell what stored values of a variable mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """What stands in a source, by path."""

    groups: dict[str, dict[str, Any]]
    """Attributes."""
    arrays: dict[str, dict[str, Any]]
    """Documents of Zarr v3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What is looked at in a file."""

    source_group: str = "/"
    drop: frozenset[str] = frozenset()
    """Paths of variables and groups, and of attributes as ``/variable@attribute``."""
    concat_dim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable, and how it is stored."""

    path: str
    """Below the group that was asked for."""
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    """None where the values stand in one piece."""
    dtype: np.dtype[Any] | None
    """None for text of any length."""
    data_type: Any
    fill_value: Any
    codecs: tuple[Any, ...]
    attributes: dict[str, Any]
    dropped: dict[str, Any]
    """Attributes that decide values, and that the caller wants to leave out."""
    decoded: str | None
    """The type that its numbers have once they are decoded; None for what is no number."""
    unreferable: str | None
    """Why no reference can point to its values; None where one can."""
    chunk_count: int
    fingerprint: str | None
    """Of its values, where it does not grow."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its values; of text, of as many pointers."""
        return math.prod(self.shape) * (self.dtype.itemsize if self.dtype is not None else 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """What a file holds."""

    groups: dict[str, dict[str, Any]]
    """Attributes of each group, by path; the one that was asked for is ``/``."""
    variables: dict[str, Variable]

    def lengths(self, concat_dim: str) -> dict[str, int]:
        """Tell for each group with variables along a dimension how long it is."""
        lengths: dict[str, int] = {}
        for each in self.variables.values():
            if concat_dim in each.dims:
                length = each.shape[each.dims.index(concat_dim)]
                group = group_of(each.path)
                if lengths.setdefault(group, length) != length:
                    raise InvalidInputError(
                        f"{each.path!r} has length {length} along {concat_dim!r}, and another variable of "
                        f"the group has {lengths[group]}"
                    )
        return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What stored values of a variable mean, in the types that the file has."""

    packing: dict[str, Any]
    """Attributes by which a number stands for another one, or for none."""
    fill_value: Any
    units: str


def group_of(path: str) -> str:
    """Name the group of a variable."""
    return path.rpartition("/")[0] or "/"


def message_of(location: str, error: IcechunkArrowError) -> str:
    """Say what is wrong with a source, with its name."""
    return error.message if location in error.message else f"{location}: {error.message}"


# -- references, as columns


def references_batch(
    index: npt.NDArray[np.int64],
    location: str | pa.Array | None = None,
    offset: pa.Array | None = None,
    length: pa.Array | None = None,
    *,
    etag: pa.Array | None = None,
    last_modified: pa.Array | None = None,
    data: pa.Array | None = None,
) -> pa.RecordBatch:
    """Put columns together: one location may stand for all rows, and what is not given is null."""
    count = len(index)
    if isinstance(location, str):
        location = repeated(location, count)
    arguments = (index_lists(index), location, offset, length, etag, last_modified, data)
    columns = [
        pa.nulls(count, field.type) if column is None else column
        for field, column in zip(REFERENCES, arguments, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REFERENCES)


def repeated(value: Any, count: int, arrow_type: pa.DataType = _TEXT) -> pa.Array:
    """Make a column that says the same in every row."""
    return from_values([value], arrow_type).take(indices(np.zeros(count, np.int64)))


def index_lists(index: npt.NDArray[np.int64]) -> pa.Array:
    """Write places of chunks as a column of lists."""
    count, ndim = index.shape
    offsets = from_numpy(np.arange(count + 1) * ndim, pa.int32())
    return pa.ListArray.from_arrays(offsets, from_numpy(index.ravel(), pa.int64()))


def index_of_rows(rows: npt.NDArray[np.int64], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Give the places of chunks that are numbered in the order of their grid."""
    if not counts:
        return np.zeros((len(rows), 0), np.int64)
    return np.stack(np.unravel_index(rows, tuple(counts)), axis=1).astype(np.int64)


_NUMBER = r"(0|[1-9][0-9]{0,17})"


def decode_names(
    names: pa.Array, keys: ChunkKeys, chunk_counts: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find which names are of chunks of an array, and of which: all at once, as there are millions.

    Parameters
    ----------
    names
        Names below the array, in any order; those that name nothing are passed over, as Zarr does.
    keys
        How the array names its chunks.
    chunk_counts
        Its grid.

    Returns
    -------
    rows, index
        Which of the names, and for each the chunk's place, as rows × dimensions.
    """
    prefix = "c" if keys.name == "default" else ""
    if keys.ndim == 0:
        wanted = prefix or "0"
        rows = np.flatnonzero(to_numpy(pc.equal(names, wanted)))
        return rows, np.zeros((len(rows), 0), np.int64)
    separator = re.escape(keys.separator)
    lead = prefix + separator if prefix else ""
    pattern = f"^{lead}{separator.join([_NUMBER] * keys.ndim)}$"
    rows = np.flatnonzero(to_numpy(pc.match_substring_regex(names, pattern)))
    chosen = names.take(from_numpy(rows, pa.int64()))
    parts = pc.split_pattern(chosen, keys.separator)
    numbers = parts.flatten()
    width = keys.ndim + bool(prefix)
    if prefix:  # every name begins with the same part
        places = np.arange(len(numbers)).reshape(-1, width)[:, 1:].ravel()
        numbers = numbers.take(from_numpy(places, pa.int64()))
    index = to_numpy(numbers.cast(pa.int64())).reshape(-1, keys.ndim)
    inside = (index < np.array(chunk_counts, np.int64)).all(axis=1)
    return rows[inside], index[inside]


# -- what is recorded of files that are referred to: what each is now, asked once

FILES_NOW = pa.schema(
    [
        ("location", pa.string()),
        ("etag", pa.string()),
        ("last_modified", TIME),
        ("reason", pa.string()),
    ]
)
"""A row is a file; one that cannot be compared later has a reason."""
SHOWN_REASONS = 3
_FEW = 1 << 8
"""So many files are not worth a job."""


def incomparable(url: str) -> str:
    """Say of a file that its place tells nothing by which a change could be noticed."""
    return f"{url} has neither an ETag nor a time"


def refusal(reasons: Sequence[str], failed: int, total: int) -> InvalidInputError:
    """Make the error for files that cannot be asked."""
    more = f" and {failed - SHOWN_REASONS} more" if failed > SHOWN_REASONS else ""
    return InvalidInputError(
        f"{failed} of {total} files that are to be referred to cannot be asked what they are now, so that a "
        f"change would not be noticed later: {'; '.join(reasons[:SHOWN_REASONS])}{more}. Nothing was changed. "
        f"detect_changes=False refers to files without asking."
    )


@dataclass(frozen=True, kw_only=True)
class AskFiles:
    """Asks files what they are now: URLs in, ``FILES_NOW`` out."""

    files: SourceFiles

    def __call__(self, urls: Sequence[str]) -> pa.Table:
        """Ask some, many at once."""
        facts = self.files.facts_of_all(urls)
        reasons = [_reason(url, each) for url, each in zip(urls, facts, strict=True)]
        columns = {
            "location": from_values(urls, pa.string()),
            "etag": from_values([getattr(each, "etag", None) for each in facts], pa.string()),
            "last_modified": from_values(
                [getattr(each, "last_modified", None) for each in facts], TIME
            ),
            "reason": from_values(reasons, pa.string()),
        }
        return pa.Table.from_pydict(columns, schema=FILES_NOW)


def _reason(url: str, found: SourceFile | IcechunkArrowError) -> str | None:
    if isinstance(found, IcechunkArrowError):
        return found.message
    return None if found.can_be_compared else incomparable(url)


def ask_files(executor: Executor, files: SourceFiles, urls: Sequence[str]) -> pa.Table:
    """Give a row of ``FILES_NOW`` for each of some files; those that cannot be asked are an error."""
    is_small = len(urls) <= _FEW
    chosen: Executor = Threads() if is_small else executor
    answers = chosen.map(AskFiles(files=files), [urls] if is_small else cut(urls))
    table = pa.concat_tables([FILES_NOW.empty_table(), *(answer for _, answer in answers)])
    reasons = table["reason"].drop_null().to_pylist()
    if reasons:
        raise refusal(reasons, len(reasons), table.num_rows)
    return table
