"""Documents of arrays that other formats have: their data types, fill values and codecs in the words of Zarr v3.

Owns the translation alone: which arrays there are, and how their bytes are encoded, each format knows.
"""

from __future__ import annotations

import base64
import struct
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.dtype import parse_dtype

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPRESSED = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
STRING_CODECS = ({"name": "vlen-utf8"}, _COMPRESSED)
"""How text of any length is written, where nothing else is said."""


def quiet() -> warnings.catch_warnings[None]:
    """Keep to itself what zarr says of types and codecs that have no specification yet."""
    return warnings.catch_warnings(action="ignore", category=Warning)


def bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Say in which order the bytes of a type's values stand."""
    order = dtype.newbyteorder("=") != dtype  # differs from this machine's
    if dtype.names is not None:  # all fields have one order: others are refused elsewhere
        return {"name": "bytes", "configuration": {"endian": sys.byteorder}}
    if dtype.itemsize == 1 or dtype.kind in "SbV" or dtype.byteorder == "|":
        return {"name": "bytes"}
    little = (sys.byteorder == "little") != order
    return {"name": "bytes", "configuration": {"endian": "little" if little else "big"}}


def default_codecs(dtype: np.dtype[Any] | None) -> tuple[dict[str, Any], ...]:
    """How values are written, where nothing else is said; None is text of any length."""
    if dtype is None:
        return STRING_CODECS
    return bytes_codec(dtype.newbyteorder("<")), _COMPRESSED


def data_type_of(dtype: np.dtype[Any] | None) -> Any:
    """Name a data type; None is text of any length."""
    if dtype is None:
        return "string"
    try:
        with quiet():
            return parse_dtype(dtype.newbyteorder("="), zarr_format=3).to_json(zarr_format=3)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"Zarr has no data type for {dtype}") from error


def fill_value_of(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Write a fill value."""
    if dtype is None:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    with quiet():
        kind = parse_dtype(dtype.newbyteorder("="), zarr_format=3)
        return kind.to_json_scalar(
            np.asarray(value).astype(dtype.newbyteorder("="))[()], zarr_format=3
        )


def xarray_fill_value(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Write the attribute ``_FillValue`` as xarray reads it from Zarr v3."""
    if dtype is None:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if dtype.kind == "S":
        text = value if isinstance(value, bytes) else str(value).encode()
        return base64.standard_b64encode(text).decode()
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "iu":
        return int(value)
    if dtype.kind == "f":
        return _packed(float(value))
    if dtype.kind == "c":
        return [_packed(value.real), _packed(value.imag)]
    raise InvalidInputError(f"a _FillValue of type {dtype} cannot be written for xarray")


def _packed(value: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", value)).decode()


def check_readable(document: dict[str, Any], path: str) -> None:
    """Refuse a document that zarr would not open: codecs that the caller chose may be none."""
    try:
        with quiet():
            ArrayV3Metadata.from_dict(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path!r} cannot be made as chosen: {error}", path=path) from error


def array_document(
    *,
    shape: Sequence[int],
    chunks: Sequence[int],
    data_type: Any,
    fill_value: Any,
    codecs: Sequence[Any],
    dimension_names: Sequence[str | None] | None,
    attributes: dict[str, Any],
) -> dict[str, Any]:
    """Write the document of an array with equal chunks."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": list(codecs),
        "attributes": attributes,
        "storage_transformers": [],
    }
    if dimension_names is not None:
        document["dimension_names"] = list(dimension_names)
    return document
