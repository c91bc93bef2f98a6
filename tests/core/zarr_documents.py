"""Documents that the installed zarr writes: every data type, codec, encoding and grid it offers."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

HAS_RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")


def read_documents(store: MemoryStore) -> dict[str, bytes]:
    """Every `zarr.json` of a store, by key."""

    async def read() -> dict[str, bytes]:
        found = {}
        async for key in store.list():
            if key.rpartition("/")[2] == "zarr.json":
                value = await store.get(key, default_buffer_prototype())
                assert value is not None
                found[key] = value.to_bytes()
        return found

    return asyncio.run(read())


def array_document(**options: Any) -> bytes:
    """The `zarr.json` of an array that zarr creates with these options."""
    store = MemoryStore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification yet
        zarr.create_array(store, **{"shape": (6,), "chunks": (2,), "dtype": "f4"} | options)
    return read_documents(store)["zarr.json"]


def group_document(**options: Any) -> bytes:
    """The `zarr.json` of a group that zarr creates with these options."""
    store = MemoryStore()
    zarr.create_group(store, **options)
    return read_documents(store)["zarr.json"]


OPTIONS: dict[str, dict[str, Any]] = {
    **{
        f"type-{dtype}": {"dtype": dtype}
        for dtype in (
            *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4"),
            *("c8", "c16", "U3", "S3", "V3", "M8[ns]", "M8[10s]", "m8[D]", "m8[ms]", "M8[25us]"),
            *("string", "variable_length_bytes"),
        )
    },
    "type-structured": {"dtype": [("a", "i4"), ("b", "f8"), ("c", "S2")]},
    "type-structured-nested": {"dtype": [("a", [("x", "u1"), ("y", "f4")]), ("b", "M8[s]")]},
    "type-structured-filled": {
        "dtype": [("a", "i4"), ("b", "f8")],
        "fill_value": np.array((7, -0.0), [("a", "i4"), ("b", "f8")])[()],
    },
    **{
        f"fill-{dtype}-{value}": {"dtype": dtype, "fill_value": value}
        for dtype in ("f2", "f4", "f8")
        for value in (float("nan"), float("inf"), float("-inf"), -0.0, 0.1, 1e-7)
    },
    "fill-complex": {"dtype": "c16", "fill_value": complex(float("nan"), -0.0)},
    "fill-complex-inf": {"dtype": "c8", "fill_value": complex(float("-inf"), 0.5)},
    "fill-big": {"dtype": "u8", "fill_value": 2**64 - 1},
    "fill-low": {"dtype": "i8", "fill_value": -(2**63)},
    "fill-true": {"dtype": "bool", "fill_value": True},
    "fill-text": {"dtype": "string", "fill_value": 'ä"\\\u2028\0😀'},
    "fill-fixed-text": {"dtype": "U4", "fill_value": "Ωé"},
    "fill-raw": {"dtype": "V3", "fill_value": np.void(b"\x00\xff\x01")},
    "fill-bytes": {"dtype": "S3", "fill_value": b"\xff\x00a"},
    "fill-time": {"dtype": "M8[ns]", "fill_value": np.datetime64("NaT", "ns")},
    "fill-delta": {"dtype": "m8[s]", "fill_value": np.timedelta64(-5, "s")},
    "sharded": {"shape": (8, 9), "chunks": (2, 3), "shards": (4, 9)},
    "sharded-start": {
        "shards": {"shape": (4,), "index_location": "start"},
        "shape": (8,),
    },
    "transposed": {
        "shape": (4, 6),
        "chunks": (2, 3),
        "filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}],
    },
    "big-endian": {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
    "no-compressor": {"compressors": None},
    "gzip-crc": {
        "compressors": [{"name": "gzip", "configuration": {"level": 3}}, {"name": "crc32c"}]
    },
    "blosc": {
        "compressors": [
            {
                "name": "blosc",
                "configuration": {
                    "cname": "lz4",
                    "clevel": 5,
                    "shuffle": "bitshuffle",
                    "typesize": 4,
                    "blocksize": 0,
                },
            }
        ]
    },
    "scalar": {"shape": (), "chunks": ()},
    "zero-size": {"shape": (0, 3), "chunks": (1, 3)},
    "wide": {"shape": (10**12,), "chunks": (10**6,)},
    "named": {"shape": (4, 4, 4), "chunks": (2, 2, 2), "dimension_names": ("time", None, "")},
    "all-null-names": {"dimension_names": [None]},
    "attributes": {
        "attributes": {
            "nan": float("nan"),
            "inf": [float("-inf"), {"deep": float("inf")}],
            "one": [1, 1.0, True, "1", None, -0.0, 0, 10**40, 5e-324],
            "ünïcode 😀": {"z": 1, "a": 2},
        }
    },
    **{
        f"keys-{name}-{separator}": {
            "chunk_key_encoding": {"name": name, "separator": separator},
            "shape": (4, 4),
            "chunks": (2, 2),
        }
        for name in ("default", "v2")
        for separator in "/."
    },
    "keys-v2-scalar": {
        "chunk_key_encoding": {"name": "v2", "separator": "."},
        "shape": (),
        "chunks": (),
    },
}

GROUP_OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "attributes": {"attributes": {"title": "Wetter", "levels": [1, 2.0], "missing": float("nan")}},
}

RECTILINEAR: dict[str, dict[str, Any]] = {
    "runs": {"shape": (60, 100), "chunks": [[10, 20, 30], [25, 25, 25, 25]]},
    "repeated": {"shape": (35,), "chunks": [[10, 10, 10, 5]]},
    "mixed": {"shape": (7, 10), "chunks": [[3, 4], 4]},
    "grown": {"shape": (35,), "chunks": [[10, 10, 10, 5]], "resized": (41,)},
    "shrunk": {"shape": (35,), "chunks": [[10, 10, 10, 5]], "resized": (12,)},
    "emptied": {"shape": (35,), "chunks": [[10, 10, 10, 5]], "resized": (0,)},
}


def rectilinear_documents() -> dict[str, tuple[bytes, list[list[int]]]]:
    """Documents with rectilinear grids, and the lengths of the chunks as zarr sees them."""
    found = {}
    with zarr.config.set({"array.rectilinear_chunks": True}):
        for name, options in RECTILINEAR.items():
            store = MemoryStore()
            array: Any = zarr.create_array(
                store, shape=options["shape"], chunks=options["chunks"], dtype="f4"
            )
            if "resized" in options:
                array.resize(options["resized"])
            sizes = [list(lengths) for lengths in array.write_chunk_sizes]
            found[name] = read_documents(store)["zarr.json"], sizes
    return found


def plain(**changes: Any) -> dict[str, Any]:
    """A small array document, with changes."""
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6, 4],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "storage_transformers": [],
    }
    return document | changes


def without(document: dict[str, Any], *members: str) -> dict[str, Any]:
    """The same document without some members."""
    return {name: value for name, value in document.items() if name not in members}


def as_bytes(document: Any) -> bytes:
    """A document as another program might write it."""
    return json.dumps(document, indent=1).encode()
