"""Reference files of kerchunk, as JSON (versions 0 and 1) and as Parquet, in rows of chunks.

Owns what such a file may say. Each class is sent to executors; none knows Spark sessions or repositories.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.columns import from_numpy, from_values, to_numpy, validity
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.core.keys import split_key
from icechunk_arrow.errors import CorruptFileError, IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.chunk_names import decode_names, index_lists
from icechunk_arrow.ingest.chunk_rows import CHUNK_ROWS
from icechunk_arrow.ingest.hierarchy import METADATA_NAMES, hierarchy_of
from icechunk_arrow.ingest.nodes import join_paths
from icechunk_arrow.spark.writing.tasks import telling_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.ingest.hierarchy import SourceArray
    from icechunk_arrow.storage.source_files import SourceFile, SourceFiles

__all__ = ["KERCHUNK_ROWS", "Locations", "ReadJson", "ReadRecords", "RecordArray", "is_kerchunk"]

KERCHUNK_ROWS = pa.schema(
    [
        ("source", pa.int64()),
        ("key", pa.string()),
        ("reason", pa.string()),
        *((each.name, each.type) for each in CHUNK_ROWS),
    ]
)
"""A row is a document, which has a key and data; a failure, which has a reason; or a chunk."""
_INLINE = b"base64:"
_BATCH_ROWS = 1 << 16
_VERSION = 1


def is_kerchunk(source: Mapping[Any, Any]) -> bool:
    """Whether a mapping is what a kerchunk file holds."""
    return "refs" in source or any(
        isinstance(key, str) and key.rpartition("/")[2] in METADATA_NAMES for key in source
    )


@dataclass(frozen=True, kw_only=True)
class Locations:
    """Makes absolute URLs of what reference files say, and looks at files that are meant whole."""

    files: SourceFiles
    base: str | None
    """What stands before locations that are not absolute."""
    _whole: dict[str, SourceFile] = field(default_factory=dict)

    def absolute(self, location: str) -> str:
        """Write a location as a virtual chunk has it."""
        if "://" in location:
            return location
        if location.startswith("/"):
            return f"file://{location}"
        if self.base is None:
            raise InvalidInputError(
                f"the location {location!r} is not absolute; say with base= what it begins with, such as "
                f"base='s3://' or base='file:///data/'"
            )
        return self.base + location if self.base.endswith("/") else f"{self.base}/{location}"

    def whole(self, url: str) -> SourceFile:
        """Look at a whole file, once."""
        if url not in self._whole:
            self._whole[url] = self.files.facts(url)
        return self._whole[url]


@dataclass(slots=True)
class _Columns:
    """Chunks of one array, as they are found."""

    names: list[str] = field(default_factory=list)
    locations: list[str | None] = field(default_factory=list)
    offsets: list[int | None] = field(default_factory=list)
    lengths: list[int | None] = field(default_factory=list)
    etags: list[str | None] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    data: list[bytes | None] = field(default_factory=list)

    def add(self, name: str, value: Any, template: _Templates, locations: Locations) -> None:
        """Add a chunk as JSON says it."""
        url = data = offset = length = file = None
        if isinstance(value, str):
            data = _inline(value)
        else:
            url = locations.absolute(template.filled(value[0]))
            if len(value) > 1:
                offset, length = value[1], value[2]
            else:
                file = locations.whole(url)
                offset, length = 0, file.size_bytes
        self.names.append(name)
        self.locations.append(url)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.etags.append(file.etag if file is not None else None)
        self.times.append(file.last_modified if file is not None else None)
        self.data.append(data)


@dataclass(frozen=True, slots=True)
class _Templates:
    """Names that stand for the beginnings of URLs in version 1."""

    values: Mapping[str, str]

    def filled(self, text: str) -> str:
        """Put values in their places."""
        if "{{" not in text:
            return text
        for name, value in self.values.items():
            text = text.replace(f"{{{{{name}}}}}", value)
        if "{{" in text:
            raise InvalidInputError(
                f"the location {text!r} has a template that is no plain name; expand it with the library that "
                f"wrote it"
            )
        return text


@dataclass(frozen=True, kw_only=True)
class ReadJson:
    """Reads reference files: batches of ``source`` and ``location`` in, ``KERCHUNK_ROWS`` out.

    A JSON file can be read only as a whole, and each of its entries is a Python value once it is: this is the one
    place where chunks are gone through one by one, on an executor.
    """

    files: SourceFiles
    base: str | None
    groups: Mapping[int, str]
    """Where each source comes to stand."""
    drop: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read some files."""
        with telling_errors():
            for batch in batches:
                for row in batch.to_pylist():
                    yield from self._read(row["source"], row["location"])

    def _read(self, source: int, url: str) -> Iterator[pa.RecordBatch]:
        try:
            try:
                content = json.loads(self.files.read(url))
            except ValueError as error:
                raise CorruptFileError(f"{url} is not JSON: {error}") from error
            found = list(self.rows(source, content))
        except IcechunkArrowError as error:
            reason = error.message if url in error.message else f"{url}: {error.message}"
            yield _batch({"source": [source], "reason": [reason]}, 1)
            return
        yield from found

    def rows(self, source: int, content: Any) -> Iterator[pa.RecordBatch]:
        """Give the rows of what a file holds."""
        entries, template = _entries_of(content)
        documents = {
            key: _document(value)
            for key, value in entries.items()
            if key.rpartition("/")[2] in METADATA_NAMES
        }
        arrays = hierarchy_of(documents, self.drop).arrays
        locations = Locations(files=self.files, base=self.base)
        columns: dict[str, _Columns] = {path: _Columns() for path in arrays}
        for key, value in entries.items():
            place = split_key(key, columns.__contains__) if key not in documents else None
            if place is not None and place[0] in columns:
                _check_entry(key, value)
                columns[place[0]].add(place[1], value, template, locations)
        yield _batch(
            {
                "source": [source] * len(documents),
                "key": list(documents),
                "data": list(documents.values()),
            },
            len(documents),
        )
        for path, found in columns.items():
            target = join_paths(self.groups[source], path)
            yield from _chunk_batches(source, target, arrays[path], found)


def _entries_of(content: Any) -> tuple[Mapping[str, Any], _Templates]:
    """Give the references of either version."""
    if not isinstance(content, dict):
        raise InvalidInputError("references are a JSON object")
    if "refs" not in content:
        return content, _Templates({})
    version = content.get("version", _VERSION)
    if version != _VERSION:
        raise InvalidInputError(f"references of version {version!r}; known are 0 and 1")
    if content.get("gen"):
        raise InvalidInputError(
            "references are generated by 'gen'; expand them with the library that wrote them"
        )
    templates = content.get("templates") or {}
    if any("{{" in value for value in templates.values()):
        raise InvalidInputError(
            "a template is made of others; expand it with the library that wrote it"
        )
    return content["refs"], _Templates(templates)


def _document(value: Any) -> bytes:
    return _inline(value) if isinstance(value, str) else json.dumps(value).encode()


def _inline(text: str) -> bytes:
    data = text.encode()
    if not data.startswith(_INLINE):
        return data
    try:
        return base64.b64decode(data[len(_INLINE) :], validate=True)
    except binascii.Error as error:
        raise InvalidInputError(f"data begins with 'base64:' and is not: {error}") from error


def _check_entry(key: str, value: Any) -> None:
    match value:
        case str() | [str()]:
            return
        case [str(), int(offset), int(length)] if offset >= 0 and length >= 0:
            return
    raise InvalidInputError(f"the reference of {key!r} is {value!r}: neither text nor a range")


def _chunk_batches(
    source: int, path: str, array: SourceArray, found: _Columns
) -> Iterator[pa.RecordBatch]:
    counts = grid_of(array.document).chunk_counts
    rows, index = decode_names(from_values(found.names, pa.string()), array.keys, counts)
    for start in range(0, len(rows), _BATCH_ROWS):
        chosen = rows[start : start + _BATCH_ROWS].tolist()
        values = {
            name: [column[row] for row in chosen]
            for name, column in (
                ("location", found.locations),
                ("offset", found.offsets),
                ("length", found.lengths),
                ("etag", found.etags),
                ("data", found.data),
            )
        }
        times = from_values([found.times[row] for row in chosen], pa.int64())
        values |= {"source": [source] * len(chosen), "path": [path] * len(chosen)}
        yield _batch(
            values,
            len(chosen),
            index=index_lists(index[start : start + _BATCH_ROWS]),
            last_modified=times.view(pa.timestamp("us", "UTC")),
        )


def _batch(values: Mapping[str, Sequence[Any]], count: int, **made: pa.Array) -> pa.RecordBatch:
    """Put columns together; those that are not given are null."""
    columns = [
        made[each.name]
        if each.name in made
        else from_values(values[each.name], each.type)
        if each.name in values
        else pa.nulls(count, each.type)
        for each in KERCHUNK_ROWS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KERCHUNK_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordArray:
    """An array whose references stand in Parquet files."""

    path: str
    """In the repository."""
    folder: str
    """Where the files are."""
    record_size: int
    """References in each file."""
    chunk_counts: tuple[int, ...]

    @property
    def file_count(self) -> int:
        """How many files there may be."""
        return -(-math.prod(self.chunk_counts) // self.record_size)


@dataclass(frozen=True, kw_only=True)
class ReadRecords:
    """Reads Parquet files: batches of ``source``, ``array`` and ``record`` in, ``KERCHUNK_ROWS`` out."""

    files: SourceFiles
    base: str | None
    arrays: Mapping[str, RecordArray]
    """By path in the repository."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read some files."""
        locations = Locations(files=self.files, base=self.base)
        with telling_errors():
            for batch in batches:
                for row in batch.to_pylist():
                    array = self.arrays[row["array"]]
                    found = self._read(row["source"], array, row["record"], locations)
                    if found is not None:
                        yield from found.to_batches(_BATCH_ROWS)

    def _read(
        self, source: int, array: RecordArray, record: int, locations: Locations
    ) -> pa.Table | None:
        url = f"{array.folder}/refs.{record}.parq"
        data = self.files.find(url)
        if data is None:  # nothing of these chunks was ever written
            return None
        try:
            table = pq.read_table(io.BytesIO(data))
        except pa.ArrowException as error:
            raise CorruptFileError(f"{url} is no Parquet file: {error}") from error
        first = record * array.record_size
        count = min(table.num_rows, math.prod(array.chunk_counts) - first)
        return _records_table(source, array, first, table.slice(0, count), locations, url)


def _records_table(
    source: int,
    array: RecordArray,
    first: int,
    table: pa.Table,
    locations: Locations,
    url: str,
) -> pa.Table:
    """Say rows of a Parquet file as rows of chunks: a row's place says which chunk it is of."""
    count = table.num_rows
    paths, whole = _paths(_column(table, "path", pa.string()), locations)
    raw = _column(table, "raw", pa.binary())
    offset = _numbers(table, "offset", url)
    length = _numbers(table, "size", url)
    inline = validity(raw)
    there = validity(paths) & ~inline
    rows = np.flatnonzero(there | inline)
    files: list[SourceFile | None] = [None] * count
    for row in np.flatnonzero(there & (offset == 0) & (length == 0)).tolist():
        files[row] = file = whole(row)
        length[row] = file.size_bytes
    said = [files[row] for row in rows.tolist()]
    times = [None if file is None else file.last_modified for file in said]
    numbers = np.arange(first, first + count)[rows]
    places = np.unravel_index(numbers, array.chunk_counts) if array.chunk_counts else ()
    index = np.stack(places, axis=1) if places else np.zeros((len(rows), 0), np.int64)
    chosen = from_numpy(rows, pa.int64())
    made = {
        "source": from_numpy(np.full(len(rows), source), pa.int64()),
        "path": from_values([array.path], pa.string()).take(
            from_numpy(np.zeros(len(rows)), pa.int64())
        ),
        "index": index_lists(index.astype(np.int64)),
        "location": paths.take(from_numpy(np.arange(count), pa.int64(), there)).take(chosen),
        "offset": from_numpy(offset[rows], pa.int64(), there[rows]),
        "length": from_numpy(length[rows], pa.int64(), there[rows]),
        "etag": from_values([None if file is None else file.etag for file in said], pa.string()),
        "last_modified": from_values(times, pa.int64()).view(pa.timestamp("us", "UTC")),
        "data": raw.take(chosen),
    }
    columns = [made.get(each.name, pa.nulls(len(rows), each.type)) for each in KERCHUNK_ROWS]
    return pa.Table.from_arrays(columns, schema=KERCHUNK_ROWS)


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(kind)


def _numbers(table: pa.Table, name: str, url: str) -> npt.NDArray[np.int64]:
    """Read offsets or sizes; rows that have none mean 0, as they do where a file is meant whole."""
    column = _column(table, name, pa.int64())
    values = np.where(validity(column), to_numpy(column), 0)
    if (values < 0).any():
        raise CorruptFileError(f"{url} has a negative {name}")
    return values


def _paths(paths: pa.Array, locations: Locations) -> tuple[pa.Array, Any]:
    """Make locations absolute, each distinct one once; and give what looks at a row's file."""
    coded = paths.dictionary_encode()
    words = [
        None if not text else locations.absolute(text) for text in coded.dictionary.to_pylist()
    ]
    absolute = from_values(words, pa.string()).take(coded.indices.cast(pa.int64()))
    return absolute, lambda row: locations.whole(absolute[row].as_py())
