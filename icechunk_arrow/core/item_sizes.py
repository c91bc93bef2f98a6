"""How many bytes one element of an array takes, where its data type says so.

Owns the data types of Zarr v3 and of zarr-python that have a fixed size. A type that nobody knows here has no
size, rather than a wrong one.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["item_size_of"]

_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "numpy.datetime64": 8,
    "numpy.timedelta64": 8,
}
_OF_CONFIGURED_LENGTH = frozenset({"fixed_length_utf32", "null_terminated_bytes", "raw_bytes"})
_OF_FIELDS = frozenset({"struct", "structured"})
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,17})\Z")
_LARGEST = 2**63 - 1


def item_size_of(data_type: Any) -> int | None:
    """Give the bytes of one element, uncompressed; None where they differ or the type is not known.

    Parameters
    ----------
    data_type
        The member ``data_type`` of a document: a name, or an object with a name and a configuration.
    """
    match data_type:
        case str(name) | {"name": str(name)} if name in _SIZES:
            return _SIZES[name]
        case str(name):
            return _raw(name)
        case {"name": str(name), "configuration": {"length_bytes": int(size)}} if (
            name in _OF_CONFIGURED_LENGTH and 0 <= size <= _LARGEST
        ):
            return size
        case {"name": str(name), "configuration": {"fields": list(fields)}} if name in _OF_FIELDS:
            return _total(fields)
        case _:
            return None


def _raw(name: str) -> int | None:
    bits = _RAW_BITS.match(name)
    return int(bits[1]) // 8 if bits and int(bits[1]) % 8 == 0 else None


def _total(fields: list[Any]) -> int | None:
    """Add up the fields of a structure: pairs of name and type, or objects with these members."""
    sizes: list[int] = []
    for field in fields:
        match field:
            case [_, data_type] | {"data_type": data_type}:
                size = item_size_of(data_type)
            case _:
                return None
        if size is None:
            return None
        sizes.append(size)
    return sum(sizes)
