"""Sizes of elements are those that numpy and zarr give them."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

from icechunk_arrow.core.grid import item_size_of
from tests.core.zarr_documents import array_document

FIXED = (
    *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", "c8", "c16"),
    *("U3", "S3", "V3", "M8[ns]", "m8[25us]"),
    [("a", "i4"), ("b", "f8"), ("c", "S2")],
    [("a", [("x", "u1"), ("y", "f4")]), ("b", "M8[s]")],
)


@pytest.mark.parametrize("dtype", FIXED, ids=str)
def test_fixed_sizes(dtype: Any) -> None:
    """Every type of a fixed size that zarr writes."""
    document = json.loads(array_document(dtype=dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.dtype(dtype).itemsize

    assert item_size_of(document["data_type"]) == expected


@pytest.mark.parametrize("dtype", ["string", "variable_length_bytes"])
def test_elements_without_a_size(dtype: str) -> None:
    """Texts and bytes of any length have none."""
    assert item_size_of(json.loads(array_document(dtype=dtype))["data_type"]) is None


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        ("r16", 2),
        ("r12", None),
        ("r" + "9" * 30, None),
        ("float8_e5m2", None),
        ({"name": "float32"}, 4),
        ({"name": "raw_bytes", "configuration": {"length_bytes": -1}}, None),
        ({"name": "raw_bytes", "configuration": {"length_bytes": "3"}}, None),
        ({"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": "int16"}]}}, 2),
        ({"name": "struct", "configuration": {"fields": [5]}}, None),
        ({"name": "struct", "configuration": {"fields": [["a", "string"]]}}, None),
        ({"name": "struct"}, None),
        ("", None),
    ],
)
def test_other_types(data_type: Any, expected: int | None) -> None:
    """Raw bits, plain names as objects, and what nobody knows."""
    assert item_size_of(data_type) == expected
