"""Reference files of kerchunk, as JSON (versions 0 and 1) and as folders of Parquet.

Owns what such files may say. Their documents are those of Zarr stores.
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
from icechunk_arrow.errors import CorruptFileError, InvalidInputError
from icechunk_arrow.ingest.source import (
    BATCH_ROWS,
    TIME,
    Hierarchy,
    decode_names,
    index_of_rows,
    references_batch,
)
from icechunk_arrow.ingest.zarr import METADATA_NAMES, hierarchy_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.keys import ChunkKeys
    from icechunk_arrow.storage.source_files import SourceFile, SourceFiles

_INLINE = b"base64:"
_VERSION = 1
_Chunk = tuple[str, str | None, int | None, int | None, str | None, int | None, bytes | None]
"""Its name, location, offset, length, ETag, time, and data."""


def is_kerchunk(source: Mapping[Any, Any]) -> bool:
    """Whether a mapping is what a kerchunk file holds."""
    return "refs" in source or any(
        isinstance(key, str) and key.rpartition("/")[2] in METADATA_NAMES for key in source
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KerchunkJson:
    """What a JSON file holds: a ``Source``.

    Such a file can be read only as a whole, and each of its entries is a Python value once it is: this is the one
    place where chunks are gone through one by one, and it is best done by an executor.
    """

    hierarchy: Hierarchy
    keys: Mapping[str, ChunkKeys]
    """How each array names its chunks."""
    chunks: Mapping[str, list[_Chunk]]
    """By path of their array."""

    @classmethod
    def open(
        cls, files: SourceFiles, location: str, *, drop: Sequence[str] = (), base: str | None = None
    ) -> KerchunkJson:
        """Read a file."""
        try:
            content = json.loads(files.read(location))
        except ValueError as error:
            raise CorruptFileError(f"{location} is not JSON: {error}") from error
        return cls.of(files, content, drop=drop, base=base)

    @classmethod
    def of(
        cls, files: SourceFiles, content: Any, *, drop: Sequence[str] = (), base: str | None = None
    ) -> KerchunkJson:
        """Take what a file holds.

        Parameters
        ----------
        files
            Reaches files that references mean whole.
        content
            Of the file.
        drop
            Nodes to leave out, with all below them.
        base
            What stands before locations that are not absolute.
        """
        entries, template = _entries_of(content)
        documents = {
            key: _document(value)
            for key, value in entries.items()
            if key.rpartition("/")[2] in METADATA_NAMES
        }
        hierarchy, keys = hierarchy_of(documents, drop)
        locations = _Locations(files=files, base=base)
        chunks: dict[str, list[_Chunk]] = {path: [] for path in hierarchy.arrays}
        for key, value in entries.items():
            place = split_key(key, chunks.__contains__) if key not in documents else None
            if place is not None and place[0] in chunks:
                _check_entry(key, value)
                chunks[place[0]].append((place[1], *_reference(value, template, locations)))
        return cls(hierarchy=hierarchy, keys=keys, chunks=chunks)

    def parts(self, path: str) -> list[None]:  # noqa: ARG002 -- of any array
        """Name the only part."""
        return [None]

    def references(self, path: str, part: None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Give the chunks of an array."""
        chunks = self.chunks[path]
        counts = grid_of(self.hierarchy.arrays[path]).chunk_counts
        names = from_values([chunk[0] for chunk in chunks], pa.string())
        rows, index = decode_names(names, self.keys[path], counts)
        for start in range(0, len(rows), BATCH_ROWS):
            some = [chunks[row] for row in rows[start : start + BATCH_ROWS].tolist()]
            _, location, offset, length, etag, moment, data = zip(*some, strict=True)
            yield references_batch(
                index[start : start + BATCH_ROWS],
                from_values(location, pa.string()),
                from_values(offset, pa.int64()),
                from_values(length, pa.int64()),
                etag=from_values(etag, pa.string()),
                last_modified=from_values(moment, TIME),
                data=from_values(data, pa.binary()),
            )


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
class _Locations:
    """Makes absolute URLs of what reference files say, and looks at files that are meant whole."""

    files: SourceFiles
    base: str | None
    """What stands before locations that are not absolute."""
    known: dict[str, SourceFile] = field(default_factory=dict)

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
        if url not in self.known:
            self.known[url] = self.files.facts(url)
        return self.known[url]


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


def _reference(value: Any, template: _Templates, locations: _Locations) -> tuple[Any, ...]:
    """Read a chunk as JSON says it: all of a ``_Chunk`` but the name."""
    if isinstance(value, str):
        return None, None, None, None, None, _inline(value)
    url = locations.absolute(template.filled(value[0]))
    if len(value) > 1:
        return url, value[1], value[2], None, None, None
    file = locations.whole(url)
    return url, 0, file.size_bytes, file.etag, file.last_modified, None


def _check_entry(key: str, value: Any) -> None:
    match value:
        case str() | [str()]:
            return
        case [str(), int(offset), int(length)] if offset >= 0 and length >= 0:
            return
    raise InvalidInputError(f"the reference of {key!r} is {value!r}: neither text nor a range")


@dataclass(frozen=True, kw_only=True)
class KerchunkParquet:
    """A folder of Parquet files, of which each has as many references of one array: a ``Source``."""

    location: str
    hierarchy: Hierarchy
    record_size: int
    """References in each file."""
    locations: _Locations

    @classmethod
    def find(
        cls, files: SourceFiles, location: str, *, drop: Sequence[str] = (), base: str | None = None
    ) -> KerchunkParquet | None:
        """Read what arrays a folder has; None where there is no such folder."""
        data = files.find(f"{location}/.zmetadata")
        if data is None:
            return None
        try:
            content = json.loads(data)
        except ValueError as error:
            raise InvalidInputError(
                f"{location}/.zmetadata is not JSON: {error}", url=location
            ) from error
        match content:
            case {"record_size": int(size), "metadata": dict(documents)} if size > 0:
                hierarchy, _ = hierarchy_of(documents, drop)
                locations = _Locations(files=files, base=base)
                return cls(
                    location=location, hierarchy=hierarchy, record_size=size, locations=locations
                )
        raise InvalidInputError(
            f"{location} is no folder of kerchunk's: its .zmetadata has no record_size; a Zarr store is taken "
            f"by ingest.zarr",
            url=location,
        )

    def parts(self, path: str) -> range:
        """Number the files of an array; some may not be there."""
        counts = grid_of(self.hierarchy.arrays[path]).chunk_counts
        return range(-(-math.prod(counts) // self.record_size))

    def references(self, path: str, part: int) -> Iterator[pa.RecordBatch]:
        """Read a file."""
        folder = f"{self.location}{path}".rstrip("/")
        url = f"{folder}/refs.{part}.parq"
        data = self.locations.files.find(url)
        if data is None:  # nothing of these chunks was ever written
            return
        try:
            table = pq.read_table(io.BytesIO(data))
        except pa.ArrowException as error:
            raise CorruptFileError(f"{url} is no Parquet file: {error}") from error
        counts = grid_of(self.hierarchy.arrays[path]).chunk_counts
        first = part * self.record_size
        table = table.slice(0, min(table.num_rows, math.prod(counts) - first))
        records = pa.Table.from_batches([_records(table, first, counts, self.locations, url)])
        yield from records.to_batches(BATCH_ROWS)


def _records(
    table: pa.Table, first: int, counts: Sequence[int], locations: _Locations, url: str
) -> pa.RecordBatch:
    """Say rows of a Parquet file as references: a row's place says which chunk it is of."""
    count = table.num_rows
    paths = _absolute(_column(table, "path", pa.string()), locations)
    raw = _column(table, "raw", pa.binary())
    offset = _numbers(table, "offset", url)
    length = _numbers(table, "size", url)
    inline = validity(raw)
    there = validity(paths) & ~inline
    rows = np.flatnonzero(there | inline)
    files: list[SourceFile | None] = [None] * count
    for row in np.flatnonzero(there & (offset == 0) & (length == 0)).tolist():
        files[row] = file = locations.whole(paths[row].as_py())
        length[row] = file.size_bytes
    facts = [files[row] for row in rows.tolist()]
    chosen = from_numpy(rows, pa.int64())
    return references_batch(
        index_of_rows(rows + first, counts),
        paths.take(from_numpy(np.arange(count), pa.int64(), there)).take(chosen),
        from_numpy(offset[rows], pa.int64(), there[rows]),
        from_numpy(length[rows], pa.int64(), there[rows]),
        etag=from_values([None if file is None else file.etag for file in facts], pa.string()),
        last_modified=from_values(
            [None if file is None else file.last_modified for file in facts], TIME
        ),
        data=raw.take(chosen),
    )


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


def _absolute(paths: pa.Array, locations: _Locations) -> pa.Array:
    """Make locations absolute, each distinct one once."""
    coded = paths.dictionary_encode()
    words = [
        None if not text else locations.absolute(text) for text in coded.dictionary.to_pylist()
    ]
    return from_values(words, pa.string()).take(coded.indices.cast(pa.int64()))
