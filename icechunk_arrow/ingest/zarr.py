"""Zarr stores of version 2 and 3: their documents, consolidated or one by one, and listings of their chunks.

Owns what the documents of both versions say, those in kerchunk files included, and how the listing of a large
array is cut into parts.

A v2 array becomes a v3 document that reads the same bytes, or it is said what cannot be. zarr-python has a
translation of its own, for stores that it migrates in place; it knows neither filters of bytes, nor texts, nor the
names of dimensions that xarray writes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from zarr.dtype import parse_dtype

from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.core.documents import check_document
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.core.keys import ChunkKeys, chunk_keys_of
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError, NotFoundError
from icechunk_arrow.ingest.array_documents import (
    STRING_CODECS,
    array_document,
    bytes_codec,
    data_type_of,
    fill_value_of,
    quiet,
    xarray_fill_value,
)
from icechunk_arrow.ingest.source import (
    BATCH_ROWS,
    TIME,
    Hierarchy,
    decode_names,
    incomparable,
    references_batch,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icechunk_arrow.storage.source_files import Listing, SourceFiles


_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Where xarray keeps the names of dimensions in Zarr v2."""

_ARRAY_FILTERS = {
    "astype": "encode_dtype",
    "bitround": None,
    "delta": "astype",
    "fixedscaleoffset": "astype",
    "quantize": "astype",
}
"""Filters of arrays, and which of their settings names the type of what they give."""
_BYTES_FILTERS = frozenset(
    {
        "adler32",
        "blosc",
        "bz2",
        "crc32",
        "crc32c",
        "fletcher32",
        "gzip",
        "jenkins_lookup3",
        "lz4",
        "lzma",
        "shuffle",
        "zlib",
        "zstd",
    }
)
_OBJECTS = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_AUTOMATIC = -1
METADATA_NAMES = ("zarr.json", ".zgroup", ".zarray", ".zattrs")
_CONSOLIDATED = ".zmetadata"
_INLINE = "consolidated_metadata"
_PART_CHUNKS = 1 << 17
"""About so many chunks are listed at once, where the store's folders allow it."""
_FOLDER_CHUNKS = 1 << 8
"""Folders with fewer are not worth a request each."""


def array_of_v2(zarray: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Write the v3 document of an array.

    Parameters
    ----------
    zarray
        What ``.zarray`` holds.
    attributes
        What ``.zattrs`` holds. Where xarray named the dimensions, the names become the document's, and the fill
        value, which means a missing value to xarray in v2 only, is said as ``_FillValue`` as well.

    Raises
    ------
    InvalidInputError
        The array has a type or a filter that Zarr v3 does not know.
    """
    try:
        shape, chunks = list(zarray["shape"]), list(zarray["chunks"])
        raw_type, fill = zarray["dtype"], zarray.get("fill_value")
        filters, compressor = list(zarray.get("filters") or ()), zarray.get("compressor")
        order = zarray.get("order", "C")
    except (KeyError, TypeError) as error:
        raise InvalidInputError(f"its .zarray is not one of Zarr v2: {error!r}") from error
    own = dict(attributes)
    names = own.pop(_DIMENSIONS, None)
    if raw_type == "|O":
        data_type, codecs, dtype = _objects(filters)
        fill_value = _object_fill(fill, data_type)
    else:
        dtype = _dtype(raw_type)
        data_type = data_type_of(dtype)
        value = _scalar(fill, raw_type, dtype)
        fill_value = fill_value_of(value, dtype)
        codecs = _array_codecs(filters, dtype)
    if order == "F" and len(shape) > 1:
        reverse = list(range(len(shape)))[::-1]
        codecs.insert(0, {"name": "transpose", "configuration": {"order": reverse}})
    if compressor is not None:
        codecs.append(_compressor(compressor, dtype))
    if names is not None:
        own |= _missing_value(own, fill, fill_value, dtype, data_type)
    return array_document(
        shape=shape,
        chunks=[max(1, edge) for edge in chunks],
        data_type=data_type,
        fill_value=fill_value,
        codecs=codecs,
        dimension_names=names,
        attributes=own,
    )


def _dtype(raw: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype([tuple(each) for each in raw] if isinstance(raw, list) else raw)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"its type {raw!r} is not one of Zarr v2") from error
    if dtype.names is not None and dtype != dtype.newbyteorder("<"):
        raise InvalidInputError(
            f"its type {raw!r} has fields whose bytes stand in the other order, which Zarr v3 cannot say"
        )
    return dtype


def _scalar(fill: Any, raw_type: Any, dtype: np.dtype[Any]) -> Any:
    """Read a fill value; without one, chunks that are not there read as zeros."""
    with quiet():
        kind = parse_dtype({"name": raw_type, "object_codec_id": None}, zarr_format=2)
        if fill is None or (dtype.kind == "U" and fill == 0):
            return kind.default_scalar()
        try:
            return kind.from_json_scalar(fill, zarr_format=2)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"its fill value {fill!r} is none of the type {raw_type!r}"
            ) from error


def _array_codecs(filters: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> list[Any]:
    """Say filters, with the step from values to bytes in its place among them."""
    arrays: list[Any] = []
    rest: list[Any] = []
    stored = dtype
    for each in filters:
        name = each["id"]
        if name in _BYTES_FILTERS:
            rest.append(_numcodec(each))
            continue
        if name not in _ARRAY_FILTERS or rest:
            raise InvalidInputError(
                f"Zarr v3 has no codec for its filter {name!r}"
                + (" behind one of bytes" if name in _ARRAY_FILTERS else "")
            )
        option = _ARRAY_FILTERS[name]
        if option is not None and each.get(option) is not None:
            stored = np.dtype(each[option])
        arrays.append(_numcodec(each))
    return [*arrays, bytes_codec(stored), *rest]


def _objects(filters: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any], None]:
    name = filters[0]["id"] if filters else None
    if name not in _OBJECTS:
        raise InvalidInputError(
            f"its values are Python objects, written by {name!r}, which Zarr v3 does not know"
        )
    codecs = [STRING_CODECS[0] if name == "vlen-utf8" else {"name": "vlen-bytes"}]
    for each in filters[1:]:
        if each["id"] not in _BYTES_FILTERS:
            raise InvalidInputError(f"Zarr v3 has no codec for its filter {each['id']!r}")
        codecs.append(_numcodec(each))
    return _OBJECTS[name], codecs, None


def _object_fill(fill: Any, data_type: str) -> Any:
    if fill in (None, 0):
        return ""
    if not isinstance(fill, str):
        raise InvalidInputError(f"its fill value {fill!r} is no {data_type}")
    return fill


def _compressor(config: Mapping[str, Any], dtype: np.dtype[Any] | None) -> dict[str, Any]:
    """Say a compressor, by the name that Zarr v3 has for it if it has one."""
    item_bytes = dtype.itemsize if dtype is not None else 1
    match config["id"]:
        case "blosc":
            shuffle = config.get("shuffle", 1)
            if shuffle == _AUTOMATIC:
                shuffle = 2 if item_bytes == 1 else 1
            return {
                "name": "blosc",
                "configuration": {
                    "typesize": max(1, item_bytes),
                    "cname": config.get("cname", "lz4"),
                    "clevel": config.get("clevel", 5),
                    "shuffle": _SHUFFLES[shuffle],
                    "blocksize": config.get("blocksize", 0),
                },
            }
        case "zstd":
            checksum = bool(config.get("checksum", False))
            return _codec("zstd", level=config.get("level", 0), checksum=checksum)
        case "gzip":
            return _codec("gzip", level=max(0, config.get("level", 1)))
        case name if name in _BYTES_FILTERS:
            return _numcodec(config)
        case name:
            raise InvalidInputError(f"Zarr v3 has no codec for its compressor {name!r}")


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _numcodec(config: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in config.items() if name != "id"}
    return _codec(f"numcodecs.{config['id']}", **rest)


def _missing_value(
    attributes: Mapping[str, Any],
    fill: Any,
    fill_value: Any,
    dtype: np.dtype[Any] | None,
    data_type: Any,
) -> dict[str, Any]:
    """Give the attribute by which xarray finds missing values in Zarr v3."""
    value = fill if fill is not None else attributes.get("_FillValue")
    if value is None or data_type == "variable_length_bytes":
        return {}
    if dtype is None:
        return {"_FillValue": fill_value if fill is not None else str(value)}
    if dtype.kind not in "biufcS":
        return {}
    read = _scalar(fill, dtype.str, dtype) if fill is not None else None
    scalar = np.asarray(value).astype(dtype)[()] if read is None else read
    return {"_FillValue": xarray_fill_value(scalar, dtype)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrStore:
    """A Zarr store, of which listings say what chunks there are: a ``Source``."""

    files: SourceFiles
    location: str
    hierarchy: Hierarchy
    keys: Mapping[str, ChunkKeys]
    """How each array names its chunks."""
    detects: bool
    """Whether references say what their files are now."""

    @classmethod
    def open(
        cls,
        files: SourceFiles,
        location: str,
        *,
        drop: Sequence[str] = (),
        consolidated: bool | None = None,
        detects: bool = True,
    ) -> ZarrStore:
        """Read the documents of a store; ``consolidated`` as in ``read_documents``."""
        documents = read_documents(files, location, consolidated=consolidated)
        hierarchy, keys = hierarchy_of(documents, drop)
        return cls(files=files, location=location, hierarchy=hierarchy, keys=keys, detects=detects)

    def parts(self, path: str) -> list[str]:
        """Name folders to list, below the array: itself, or those of the first dimension where they are many."""
        counts = grid_of(self.hierarchy.arrays[path]).chunk_counts
        inner = math.prod(counts[1:])
        cut = (
            self.keys[path].separator == "/"
            and len(counts) > 1
            and inner >= _FOLDER_CHUNKS
            and inner * counts[0] > _PART_CHUNKS
        )
        if not cut:
            return [""]
        lead = "c/" if self.keys[path].name == "default" else ""
        return [f"{lead}{first}" for first in range(counts[0])]

    def references(self, path: str, part: str) -> Iterator[pa.RecordBatch]:
        """List the chunks in a folder of an array."""
        base = f"{self.location}{path}".rstrip("/")
        base = f"{base}/{part}".rstrip("/")
        listing = self.files.below(base)
        lead = f"{part}/" if part else ""
        names = from_values([lead + name for name in listing.names], pa.string())
        counts = grid_of(self.hierarchy.arrays[path]).chunk_counts
        rows, index = decode_names(names, self.keys[path], counts)
        for start in range(0, len(rows), BATCH_ROWS):
            some = rows[start : start + BATCH_ROWS].tolist()
            if self.detects:
                _check_comparable(base, listing, some)
            urls = [f"{base}/{listing.names[row]}" for row in some]
            sizes = [listing.sizes[row] for row in some]
            yield references_batch(
                index[start : start + BATCH_ROWS],
                from_values(urls, pa.string()),
                from_numpy(np.zeros(len(some)), pa.int64()),
                from_values(sizes, pa.int64()),
                etag=from_values([listing.etags[row] for row in some], pa.string())
                if self.detects
                else None,
                last_modified=from_values([listing.times[row] for row in some], TIME)
                if self.detects
                else None,
            )


def _check_comparable(base: str, listing: Listing, rows: list[int]) -> None:
    """Refuse files that have neither an ETag nor a time."""
    wrong = [
        incomparable(f"{base}/{listing.names[row]}")
        for row in rows
        if listing.etags[row] is None and listing.times[row] is None
    ]
    if wrong:
        raise refusal(wrong, len(wrong), len(rows))


def hierarchy_of(
    documents: Mapping[str, Any], drop: Iterable[str] = ()
) -> tuple[Hierarchy, dict[str, ChunkKeys]]:
    """Read documents; give what they say, and how each array names its chunks.

    Parameters
    ----------
    documents
        By key, such as ``a/zarr.json`` or ``.zgroup``: parsed, or as JSON.
    drop
        Paths of nodes to leave out, with all below them.
    """
    left_out = tuple("/" + path.strip("/") for path in drop)
    by_path: dict[str, dict[str, Any]] = {}
    for key, document in documents.items():
        above, _, name = key.rpartition("/")
        path = "/" + above
        if name in METADATA_NAMES and not _is_below(path, left_out):
            by_path.setdefault(path, {})[name] = _parsed(key, document)
    if not by_path:
        raise InvalidInputError("there is no document of a Zarr group or array")
    groups: dict[str, dict[str, Any]] = {}
    arrays: dict[str, dict[str, Any]] = {}
    keys: dict[str, ChunkKeys] = {}
    for path, by_name in sorted(by_path.items()):
        try:
            if (document := by_name.get("zarr.json")) is not None:
                own = {name: value for name, value in document.items() if name != _INLINE}
                check_document(own, path=path)
                if own["node_type"] == "array":
                    arrays[path], keys[path] = own, chunk_keys_of(own)
                else:
                    groups[path] = own.get("attributes", {})
            elif ".zarray" in by_name:
                array = array_of_v2(by_name[".zarray"], by_name.get(".zattrs", {}))
                check_document(array, path=path)
                separator = by_name[".zarray"].get("dimension_separator", ".")
                arrays[path] = array
                keys[path] = ChunkKeys(name="v2", separator=separator, ndim=len(array["shape"]))
            elif ".zgroup" in by_name or path == "/":
                groups[path] = by_name.get(".zattrs", {})
        except IcechunkArrowError as error:
            raise InvalidInputError(
                f"{path!r} cannot be taken: {error.message}. Leave it out with drop=[{path!r}]",
                path=path,
            ) from error
    return Hierarchy(groups=groups, arrays=arrays), keys


def _is_below(path: str, left_out: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in left_out)


def _parsed(key: str, document: Any) -> dict[str, Any]:
    if isinstance(document, str | bytes):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise InvalidInputError(f"{key!r} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{key!r} is no JSON object")
    return document


def read_documents(files: SourceFiles, url: str, *, consolidated: bool | None) -> dict[str, Any]:
    """Read the documents of a store, by key.

    Parameters
    ----------
    files
        Reaches the store.
    url
        Its folder.
    consolidated
        Take the documents that stand together in one place: True, and nothing else; False, never; None, where
        there is such a place.
    """
    root = url.rstrip("/")
    names = ("zarr.json", _CONSOLIDATED, ".zgroup", ".zarray", ".zattrs")
    stored = dict(zip(names, files.find_many([f"{root}/{name}" for name in names]), strict=True))
    together = None if consolidated is False else _together(stored)
    if together is not None:
        return together
    if consolidated:
        raise InvalidInputError(f"{url} has no consolidated metadata; read it without", url=url)
    del stored[_CONSOLIDATED]
    documents = {name: data for name, data in stored.items() if data is not None}
    if not documents:
        raise NotFoundError(f"there is no Zarr group or array at {url}", url=url)
    version_3 = "zarr.json" in documents
    wanted = ("zarr.json",) if version_3 else (".zgroup", ".zarray", ".zattrs")
    open_groups = [] if _is_array(documents, "") else [""]
    while open_groups:
        inner = [
            f"{above}{name}/"
            for above in open_groups
            for name in files.folders_in(f"{root}/{above}")
        ]
        keys = [f"{folder}{name}" for folder in inner for name in wanted]
        contents = files.find_many([f"{root}/{key}" for key in keys])
        level = {key: data for key, data in zip(keys, contents, strict=True) if data is not None}
        documents |= level
        nodes = {key.rpartition("/")[0] + "/" for key in level}
        open_groups = [
            folder for folder in inner if folder in nodes and not _is_array(level, folder)
        ]
    return documents


def _is_array(documents: Mapping[str, Any], folder: str) -> bool:
    if f"{folder}.zarray" in documents:
        return True
    document = documents.get(f"{folder}zarr.json")
    return document is not None and _parsed(folder, document).get("node_type") == "array"


def _together(found: Mapping[str, bytes | None]) -> dict[str, Any] | None:
    """Take consolidated metadata, of either version."""
    if (data := found["zarr.json"]) is not None:
        root = _parsed("zarr.json", data)
        inline = root.get(_INLINE)
        if not inline:
            return None
        return {"zarr.json": root} | {
            f"{path}/zarr.json": document for path, document in inline["metadata"].items()
        }
    if (data := found[_CONSOLIDATED]) is not None:
        documents: dict[str, Any] = _parsed(_CONSOLIDATED, data)["metadata"]
        return documents
    return None
