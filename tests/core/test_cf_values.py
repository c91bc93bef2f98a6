"""Stored numbers are decoded as xarray decodes them, to the last bit."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icechunk_arrow.core.cf import DECIDING, PACKING, decode_values, decoded_dtype

TYPES = ["i1", "u1", "i2", ">i2", "u2", "i4", ">i4", "i8", "f4", ">f4", "f8"]
SCALES: list[dict[str, Any]] = [
    {},
    {"scale_factor": np.float64(0.01)},
    {"scale_factor": np.float32(0.01)},
    {"add_offset": np.float32(273.15)},
    {"scale_factor": np.float32(0.01), "add_offset": np.float32(273.15)},
    {"scale_factor": np.array([0.01]), "add_offset": np.array([273.15])},
    {"scale_factor": np.float32(0.5), "add_offset": np.float64(1e9)},
]
MISSING: list[tuple[str, ...]] = [(), ("_FillValue",), ("missing_value",)]


def as_xarray_reads(values: Any, attributes: dict[str, Any]) -> Any:
    """Decode with xarray."""
    with warnings.catch_warnings(action="ignore"):
        found = xr.decode_cf(xr.Dataset({"v": ("x", values, attributes)}), decode_times=False)
        return found["v"].values


@pytest.mark.parametrize("kind", TYPES)
def test_every_packing_is_decoded_as_xarray_does(kind: str) -> None:
    """All types, scales, offsets and missing values: the same type and the same bits."""
    dtype, rng = np.dtype(kind), np.random.default_rng(3)
    if dtype.kind == "f":
        values = (rng.normal(0, 1e4, 200)).astype(dtype)
        values[::9] = np.nan
    else:
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, 200, dtype=dtype.newbyteorder("="))
        values = values.astype(dtype)
    mark = values[7]
    values[20:30] = mark
    for scale, missing in product(SCALES, MISSING):
        attributes = scale | dict.fromkeys(missing, mark)
        wanted = as_xarray_reads(values, attributes)

        found = decode_values(values, attributes)

        assert found.dtype == decoded_dtype(dtype, attributes)
        assert found.dtype == wanted.dtype, attributes
        np.testing.assert_array_equal(found, wanted, err_msg=str(attributes))


def test_signs_and_lists_of_missing_values() -> None:
    """``_Unsigned`` says what bytes mean; several numbers may stand for no value."""
    small = np.array([-1, 0, 127, -128], "i1")
    for attributes in (
        {"_Unsigned": "true"},
        {"_Unsigned": "true", "_FillValue": np.int8(-1)},
        {"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": np.float32(2)},
        {"missing_value": np.array([0, 127], "i1")},
        {"missing_value": np.int8(0), "_FillValue": np.int8(-128)},
    ):
        wanted = as_xarray_reads(small, dict(attributes))
        found = decode_values(small, attributes)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    assert decode_values(small, {"_Unsigned": b"true"}).tolist() == [255, 0, 127, 128]
    assert decode_values(np.array(3, "i2"), {"scale_factor": 2.0}) == 6


def test_what_packs_decides() -> None:
    """There is one list of attributes that decide values."""
    assert PACKING < DECIDING
    assert {"units", "calendar", "scale_factor", "_FillValue", "valid_range"} <= DECIDING
