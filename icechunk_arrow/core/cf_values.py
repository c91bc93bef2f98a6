"""Attributes of the CF conventions that decide which values stored numbers stand for, and the values themselves.

Owns the one list of such attributes, and decoding as xarray decodes: missing values, signs, scale and offset. Times
are the business of ``cf_time``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

__all__ = [
    "DECIDING",
    "PACKING",
    "decode_values",
    "decoded_dtype",
    "missing_values",
    "packed_by",
]

PACKING = frozenset(
    {
        "_FillValue",
        "_Unsigned",
        "add_offset",
        "missing_value",
        "scale_factor",
        "valid_max",
        "valid_min",
        "valid_range",
    }
)
"""What becomes superfluous where decoded values are stored: they say how numbers were packed into a type."""
DECIDING = PACKING | {"_Encoding", "calendar", "dtype", "units"}
"""Attributes without which, or with others of which, stored numbers mean other values."""


def packed_by(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> list[str]:
    """Give the attributes by which a number stands for another one."""
    found = {"scale_factor", "add_offset"} & attributes.keys()
    if _signed(dtype, attributes) != dtype:
        found.add("_Unsigned")
    return sorted(found)


def missing_values(attributes: Mapping[str, Any]) -> list[Any]:
    """Give the stored numbers that stand for no value; NaN does so by itself."""
    found: list[Any] = []
    for name in ("missing_value", "_FillValue"):
        if name in attributes:
            found += [each for each in _numbers(attributes[name]) if each == each]  # noqa: PLR0124
    return found


def decoded_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Give the type that numbers of a type have once they are decoded.

    Parameters
    ----------
    dtype
        Of integers or floats.
    attributes
        As the file has them: of what type scale and offset are decides.
    """
    signed = _signed(dtype.newbyteorder("="), attributes)
    if {"scale_factor", "add_offset"} & attributes.keys():
        return _float_dtype(signed, attributes)
    if not missing_values(attributes) or signed.kind not in "iu":
        return signed
    return np.dtype(np.float32 if signed.itemsize <= 2 else np.float64)


def decode_values(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Decode stored numbers as xarray does: no value is NaN, then the scale, then the offset."""
    target = decoded_dtype(values.dtype, attributes)
    stored = values.astype(values.dtype.newbyteorder("="), copy=False)
    signed = _signed(stored.dtype, attributes)
    found = stored.astype(signed).astype(target)
    for each in missing_values(attributes):
        # compared as xarray does: in the type that has been decoded to, where whole numbers may be rounded
        found[found == _in_type(each, stored.dtype, signed)] = np.nan
    for name, apply in (("scale_factor", np.multiply), ("add_offset", np.add)):
        if name in attributes:
            apply(found, _number(attributes[name]), out=found)
    return found


def _signed(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Take ``_Unsigned`` into account, which formats without unsigned types have."""
    said = attributes.get("_Unsigned")
    word = said.decode() if isinstance(said, bytes) else said
    if (dtype.kind, word) == ("i", "true"):
        return np.dtype(f"u{dtype.itemsize}")
    if (dtype.kind, word) == ("u", "false"):
        return np.dtype(f"i{dtype.itemsize}")
    return dtype


def _in_type(value: Any, stored: np.dtype[Any], signed: np.dtype[Any]) -> Any:
    """Say a missing value, which is one of the stored type, in the type that is meant."""
    if stored == signed:
        return value
    return np.array(value).astype(stored).astype(signed)[()]


def _float_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    scale, offset = (
        None if name not in attributes else np.asarray(_number(attributes[name])).dtype
        for name in ("scale_factor", "add_offset")
    )
    if scale is not None and scale == offset and scale in (np.float32, np.float64):
        whole = dtype.kind in "iu" and dtype.itemsize == 4
        return np.dtype(np.float64) if whole else scale
    if offset is not None or scale is None or scale.kind != "f":
        return np.dtype(np.float64)
    return scale


def _number(value: Any) -> Any:
    return next(iter(_numbers(value)))


def _numbers(value: Any) -> Iterable[Any]:
    """Give an attribute's numbers, in their type."""
    return np.atleast_1d(np.asarray(value)).ravel()
