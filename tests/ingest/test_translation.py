"""What other formats say, in the words of Zarr v3: documents and names of chunks. No Spark."""

from __future__ import annotations

import json
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer import cpu

from icechunk_arrow.core.keys import ChunkKeys
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.source import decode_names, index_lists
from icechunk_arrow.ingest.zarr import array_of_v2

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
]
CASES: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "i4", "compressors": None},
    "big endian": {"dtype": ">f8", "compressors": numcodecs.Zlib(3)},
    "blosc": {"dtype": "i8", "compressors": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE)},
    "blosc auto": {
        "dtype": "u1",
        "compressors": numcodecs.Blosc("lz4", 3, numcodecs.Blosc.AUTOSHUFFLE),
    },
    "zstd": {"dtype": "?", "compressors": numcodecs.Zstd(3)},
    "gzip": {"dtype": "c8", "compressors": numcodecs.GZip(3)},
    "lz4": {"dtype": "f2", "compressors": numcodecs.LZ4()},
    "lzma": {"dtype": "S3", "compressors": numcodecs.LZMA()},
    "shuffle": {"dtype": "f4", "filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.BZ2(1)},
    "delta": {"dtype": "i4", "filters": [numcodecs.Delta("<i4")], "order": "F"},
    "delta, other order": {"dtype": ">i2", "filters": [numcodecs.Delta(">i2")]},
    "scaled": {
        "dtype": "f4",
        "filters": [numcodecs.FixedScaleOffset(0, 100, "<f4", ">i2"), numcodecs.Fletcher32()],
        "compressors": None,
    },
    "quantized": {"dtype": "f4", "filters": [numcodecs.Quantize(2, "<f4")]},
    "rounded": {"dtype": "f4", "filters": [numcodecs.BitRound(8)]},
    "astype": {"dtype": "f8", "filters": [numcodecs.AsType("<f4", "<f8")]},
    "text": {"dtype": "U5"},
    "time": {"dtype": "M8[ms]", "fill_value": None},
    "fields": {"dtype": [("a", "<i4"), ("b", "<f8")]},
    "no fill value": {"dtype": "i2", "fill_value": None},
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_of_version_2_are_read_by_a_document_of_version_3(name: str) -> None:
    """The same bytes, chunks that are not there included, give zarr the same values in both versions."""
    rng = np.random.default_rng(0)
    old, new = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    made = zarr.create_array(old, shape=(7, 5), chunks=(3, 2), zarr_format=2, **CASES[name])
    numbers = rng.integers(0, 100, (7, 5))
    if made.dtype.names:
        values = np.zeros((7, 5), made.dtype)
        values["a"] = values["b"] = numbers
    else:
        values = numbers.astype(made.dtype)
    made[:6] = values[:6]

    document = array_of_v2(json.loads(old._store_dict[".zarray"].to_bytes()), {"a": 1})
    for key, data in old._store_dict.items():
        if not key.startswith("."):
            new._store_dict["c/" + key.replace(".", "/")] = data
    new._store_dict["zarr.json"] = cpu.Buffer.from_bytes(json.dumps(document).encode())

    found = zarr.open_array(new, mode="r")
    np.testing.assert_array_equal(found[...], made[...])
    assert found.attrs.asdict() == {"a": 1}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"compressor": {"id": "mine"}}, "compressor 'mine'"),
        ({"filters": [{"id": "mine"}]}, "filter 'mine'"),
        (
            {"filters": [{"id": "zlib"}, {"id": "delta", "dtype": "<i4"}]},
            "'delta' behind one of bytes",
        ),
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "'pickle'"),
        ({"dtype": "|O", "filters": None}, "Python objects"),
        ({"dtype": "<q9"}, "its type '<q9'"),
        ({"dtype": [["a", ">i4"]]}, "other order"),
        ({"fill_value": "x"}, "its fill value 'x'"),
        ({"chunks": None}, "its .zarray"),
    ],
)
def test_what_version_3_cannot_say_is_refused(change: dict[str, Any], fault: str) -> None:
    """An array is never taken in such a way that it would be read wrongly."""
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": "<i4",
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": None,
    }
    with pytest.raises(InvalidInputError, match=fault):
        array_of_v2(document | change, {})


@given(
    counts=st.lists(st.integers(1, 12), max_size=4),
    separator=st.sampled_from("./"),
    name=st.sampled_from(["default", "v2"]),
    data=st.data(),
)
def test_names_of_chunks_are_decoded_as_one_by_one(
    counts: list[int], separator: str, name: str, data: st.DataObject
) -> None:
    """Many names at once mean what each of them means alone; others are passed over."""
    keys = ChunkKeys(name=name, separator=separator, ndim=len(counts))
    right = st.tuples(*(st.integers(0, n + 1) for n in counts)).map(keys.encode)
    wrong = st.text("0123456789c./-x", max_size=8)
    names = data.draw(st.lists(right | wrong, max_size=30))

    rows, index = decode_names(pa.array(names, pa.string()), keys, counts)

    wanted = []
    for row, each in enumerate(names):
        found = keys.decode(each)
        if found is not None and all(i < n for i, n in zip(found, counts, strict=True)):
            wanted.append((row, list(found)))
    lists = index_lists(index).to_pylist()
    assert list(zip(rows.tolist(), lists, strict=True)) == wanted
