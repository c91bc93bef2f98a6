"""What zarr can write comes back: types, fill values, codecs, grids, keys."""

from __future__ import annotations

import importlib
import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from zarr.abc.store import SupportsDeleteSync, SupportsGetSync, SupportsSetSync
from zarr.core.buffer import cpu
from zarr.core.dtype import data_type_registry
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from tests.conformance.places import document_of, keys_of, settled

if TYPE_CHECKING:
    from icechunk_arrow import Session
    from tests.conformance.places import Place

zarr: Any = importlib.import_module("zarr")  # typed, its arrays index to unions of everything

pytestmark = [
    # zarr warns of its own types and codecs that have no specification yet
    pytest.mark.filterwarnings("ignore:The data type"),
    pytest.mark.filterwarnings("ignore:The codec"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]

TYPES: dict[str, Any] = {
    **{name: np.array([0, 1, 1], name) for name in ("bool", "i1", "i2", "i4", "i8", "u1", "u2")},
    **{name: np.array([0, 1, 2], name) for name in ("u4", "u8", ">i4", ">u2", ">f8", ">c16")},
    **{name: np.array([0.5, np.nan, -np.inf], name) for name in ("f2", "f4", "f8")},
    **{name: np.array([1 + 2j, complex(np.nan, -0.0), 0], name) for name in ("c8", "c16")},
    "text of fixed length": np.array(["", "ä", "abc"], "U3"),
    "text of fixed length, big endian": np.array(["", "ä", "abc"], ">U3"),
    "bytes of fixed length": np.array([b"", b"a", b"abc"], "S3"),
    "raw bytes": np.array([b"\0\0\0", b"a\0b", b"abc"], "V3"),
    "text": np.array(["", "ä much longer text", "abc"], np.dtypes.StringDType()),
    "days": np.array(["2001-01-01", "NaT", "1969-12-31"], "M8[D]"),
    "10 microseconds": np.array([1, 2, 3], "M8[10us]"),
    "hours": np.array([1, -2, 3], "m8[h]"),
    "records": np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("a", "<i4"), ("b", "<f8")]),
    "nested records": np.array([((1, b"x"),)] * 3, [("r", [("a", "<u2"), ("s", "S2")])]),
}


@pytest.mark.parametrize("name", TYPES)
def test_every_data_type_comes_back(
    session: Session, memory: Place, committed: bool, pipeline: str, name: str
) -> None:
    """Values, missing chunks and the document are what zarr's own memory store gives."""
    values, plain = TYPES[name], MemoryStore()
    for store in (session.store, plain):
        array = zarr.create_array(store, name="x", shape=(6,), chunks=(2,), dtype=values.dtype)
        array[:3] = values
        array.attrs["a"] = "ß"
    found = zarr.open_array(settled(memory, session, committed=committed).store, path="x", mode="r")
    expected = zarr.open_array(plain, path="x")
    np.testing.assert_array_equal(found[:], expected[:])
    np.testing.assert_array_equal(found[:3], values)
    assert found.dtype == expected.dtype
    assert found.metadata.data_type == expected.metadata.data_type
    assert document_of(found.store, "x") == document_of(plain, "x")


def test_no_data_type_of_zarr_is_missing() -> None:
    """The table above has an array of every data type that the installed zarr registers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = {type(zarr.dtype.parse_dtype(v.dtype, zarr_format=3)) for v in TYPES.values()}
    names = {kind.__name__ for kind in tried}
    missing = {kind.__name__ for kind in data_type_registry.contents.values()} - names
    # it has no numpy type to be found by, and a test of its own
    assert missing == {"VariableLengthBytes"}


def test_bytes_of_any_length(session: Session, memory: Place, committed: bool) -> None:
    """Variable-length bytes, which numpy knows only as objects."""
    values = np.array([b"", b"\0\xff", b"abc" * 9], object)
    array = zarr.create_array(session.store, shape=(3,), dtype="variable_length_bytes")
    array[:] = values
    found = zarr.open_array(settled(memory, session, committed=committed).store, mode="r")
    assert found[:].tolist() == values.tolist()


FILLS: list[tuple[str, Any]] = [
    ("float64", "NaN"),
    ("float64", "-Infinity"),
    ("float64", "0x7ff8000000000001"),
    ("float32", "0xffc12345"),
    ("float32", -0.0),
    ("complex64", ["0x7fc00001", "Infinity"]),
    ("int64", -(2**63)),
    ("uint64", 2**64 - 1),
    ("bool", True),
    ("string", 'a "quoted" ß'),
]


@pytest.mark.parametrize(("data_type", "fill"), FILLS)
def test_fill_values_survive_to_the_bit(
    session: Session, memory: Place, committed: bool, data_type: str, fill: Any
) -> None:
    """NaN payloads, infinities, hexadecimal forms, signed zeros and the largest integers."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "vlen-utf8"} if data_type == "string" else {"name": "bytes"}],
    }
    if data_type not in ("bool", "string"):
        document["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    plain, data = MemoryStore(), cpu.Buffer.from_bytes(json.dumps(document).encode())
    sync(plain.set("zarr.json", data))
    session.store.set_sync("zarr.json", data)
    store = settled(memory, session, committed=committed).store
    assert json.dumps(document_of(store, "")["fill_value"]) == json.dumps(fill)
    found, expected = (zarr.open_array(each, mode="r")[:] for each in (store, plain))
    if data_type == "string":
        assert found.tolist() == expected.tolist() == [fill] * 2
    else:
        assert found.tobytes() == expected.tobytes()


CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": None},
    "gzip": {"compressors": zarr.codecs.GzipCodec(level=3)},
    "zstd": {"compressors": zarr.codecs.ZstdCodec(level=3, checksum=True)},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "crc32c": {"compressors": zarr.codecs.Crc32cCodec()},
    "several": {"compressors": (zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec())},
    "transpose": {"filters": zarr.codecs.TransposeCodec(order=(1, 0))},
    "big endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "sharding": {"shards": (4, 6)},
    "sharding with transpose": {
        "shards": (4, 6),
        "filters": zarr.codecs.TransposeCodec(order=(1, 0)),
        "compressors": zarr.codecs.ZstdCodec(),
    },
    "index at the start of a shard": {
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(1, 3), index_location="start"),
        "compressors": None,
    },
}


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_writes_and_reads(
    session: Session, memory: Place, committed: bool, pipeline: str, name: str
) -> None:
    """Written whole, in part and read in part, also single chunks out of a shard."""
    values, plain = np.arange(70, dtype="i4").reshape(7, 10), MemoryStore()
    for store in (session.store, plain):
        array = zarr.create_array(
            store, name="a", shape=(7, 10), chunks=(2, 3), dtype="i4", **CODECS[name]
        )
        array[...] = values
        array[3:5, 2:8] = -1
    values[3:5, 2:8] = -1
    store = settled(memory, session, committed=committed).store
    found = zarr.open_array(store, path="a", mode="r")
    np.testing.assert_array_equal(found[:], values)
    np.testing.assert_array_equal(found[4, 2:5], values[4, 2:5])
    np.testing.assert_array_equal(found.oindex[[0, 6], [9, 0]], values[np.ix_([0, 6], [9, 0])])
    assert document_of(store, "a") == document_of(plain, "a")
    assert [k for k in keys_of(store) if "/c/" in k] == [
        k for k in sorted(plain._store_dict) if "/c/" in k
    ]


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("encoding", ["default", "v2"])
@pytest.mark.parametrize("shape", [(), (5,), (5, 12)])
def test_every_chunk_key_encoding(
    session: Session,
    memory: Place,
    committed: bool,
    encoding: str,
    separator: str,
    shape: tuple[int, ...],
) -> None:
    """Chunks are found, listed and named as zarr names them, at the root and in a group."""
    values = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)
    for name in (None, "group/array"):
        plain, place = MemoryStore(), memory
        if name is None and session.node_paths():
            sync(session.store.clear())
        for store in (session.store, plain):
            array = zarr.create_array(
                store,
                name=name,
                shape=shape,
                chunks=(1,) * len(shape),
                dtype="i8",
                chunk_key_encoding={"name": encoding, "separator": separator},
            )
            array[...] = values
        session = settled(place, session, committed=committed)
        assert keys_of(session.store) == sorted(plain._store_dict)
        found = zarr.open_array(session.store, path=name or "", mode="r")
        np.testing.assert_array_equal(found[...], values)
        for folder in (
            "",
            "group",
            "group/array",
            "group/array/c",
            "c",
            "c/1",
            "1",
            "group/array/1",
        ):
            ours, theirs = (_listed(store, folder) for store in (session.store, plain))
            assert ours == theirs, folder
        sync(session.store.clear())


def _listed(store: Any, folder: str) -> list[str]:
    async def gathered() -> list[str]:
        return sorted([name async for name in store.list_dir(folder)])

    return sync(gathered())


def test_shapes_without_elements_and_names_without_words(
    session: Session, memory: Place, committed: bool
) -> None:
    """Scalars, lengths of zero, and dimension names of which some are null."""
    store = session.store
    zarr.create_array(store, name="scalar", shape=(), dtype="f4")[...] = 7
    zarr.create_array(store, name="empty", shape=(0, 3), dtype="f4")
    zarr.create_array(store, name="no rows", shape=(3, 0), chunks=(2, 4), dtype="f4")[...] = 1
    names = ("x", None, "")
    zarr.create_array(store, name="named", shape=(1, 2, 3), dtype="f4", dimension_names=names)
    zarr.create_array(store, name="nameless", shape=(1, 2), dtype="f4", dimension_names=[None] * 2)
    group = zarr.open_group(settled(memory, session, committed=committed).store, mode="r")
    assert group["scalar"][...] == 7
    assert group["empty"][:].shape == (0, 3)
    assert group["no rows"][:].shape == (3, 0)
    assert group["named"].metadata.dimension_names == names
    assert group["nameless"].metadata.dimension_names == (None, None)


def test_unequal_chunks(session: Session, memory: Place, committed: bool) -> None:
    """Rectilinear grids, where zarr has them: written, resized and read as zarr's memory store does."""
    try:
        context = zarr.config.set({"array.rectilinear_chunks": True})
        with context:
            zarr.create_array(MemoryStore(), shape=(6,), chunks=[[1, 2, 3]], dtype="i4")
    except (TypeError, ValueError):
        assert zarr.__version__ < "3.2"  # this zarr has no such grids
        return
    values, plain = np.arange(60).reshape(6, 10), MemoryStore()
    with zarr.config.set({"array.rectilinear_chunks": True}):
        for store in (session.store, plain):
            array = zarr.create_array(
                store, name="r", shape=(6, 10), chunks=[[1, 2, 3], 4], dtype="i8"
            )
            array[...] = values
            array.resize((3, 10))
        session = settled(memory, session, committed=committed)
        assert keys_of(session.store) == sorted(plain._store_dict)
        for store in (session.store, plain):
            grown = zarr.open_array(store, path="r")
            grown.resize((8, 10))
            grown[7] = -1
        session = settled(memory, session, committed=committed)
        assert keys_of(session.store) == sorted(plain._store_dict)
        found, expected = (zarr.open_array(each, path="r") for each in (session.store, plain))
        np.testing.assert_array_equal(found[:], expected[:])
        assert document_of(session.store, "r") == document_of(plain, "r")


def test_extension_members_survive(session: Session, memory: Place, committed: bool) -> None:
    """Members that nobody knows yet, and names written as bare strings, stay in the document."""
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": {"name": "ext", "configuration": {"a": [1, None]}},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": "default",
        "fill_value": {"any": ["value"]},
        "codecs": ["bytes", {"name": "x.org/codec", "must_understand": False}],
        "storage_transformers": [],
        "my_extension": {"must_understand": False, "text": "ß\u0000"},
        "attributes": {"z": 1, "a": {"y": [], "b": {}}, "": None, "big": 2**70, "e": 1e-300},
    }
    session.store.set_sync("zarr.json", cpu.Buffer.from_bytes(json.dumps(document).encode()))
    store = settled(memory, session, committed=committed).store
    found = document_of(store, "")
    assert found == document
    assert list(found["attributes"]) == list(document["attributes"])


def test_zarr_calls_synchronously_what_is_at_hand(place: Place) -> None:
    """The fused pipeline uses the synchronous methods on memory and disk, and threads towards S3."""
    place.create()
    store = place.session().store
    assert isinstance(store, SupportsGetSync)
    assert isinstance(store, SupportsSetSync)
    assert isinstance(store, SupportsDeleteSync)
    asked = getattr(zarr.abc.store, "_store_supports_sync_io", None)
    if asked is not None:  # zarr from 3.2
        assert asked(store) == (not place.url.startswith("s3"))
