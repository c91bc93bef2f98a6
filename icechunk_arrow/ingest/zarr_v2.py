"""Documents of Zarr v2 arrays, said again as Zarr v3 documents that read the same bytes.

Owns the translation, and what cannot be said. Pure. zarr-python has one of its own, for stores that it migrates in
place; it knows neither filters of bytes, nor texts, nor the names of dimensions that xarray writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.dtype import parse_dtype

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.array_documents import (
    STRING_CODECS,
    array_document,
    bytes_codec,
    data_type_of,
    fill_value_of,
    quiet,
    xarray_fill_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        given = _ARRAY_FILTERS[name]
        if given is not None and each.get(given) is not None:
            stored = np.dtype(each[given])
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
