"""Zarr stores of both versions come in as zarr reads them, copied or referred to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from icechunk_arrow import ingest
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from tests.ingest.files import equal_trees, new_repository, opened, reopened

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]


def store_of_v2(path: Path) -> Path:
    """Write a store of version 2: separators, orders, filters, compressors, texts, chunks left out."""
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    group.attrs["title"] = "old"
    rng = np.random.default_rng(2)
    values = rng.integers(-100, 100, (23, 17))
    cases: dict[str, dict[str, Any]] = {
        "plain": {"dtype": "<i4", "compressors": None},
        "blosc": {"dtype": ">f8", "compressors": numcodecs.Blosc("zstd", 3, 2)},
        "delta": {"dtype": "<i2", "filters": [numcodecs.Delta("<i2")], "order": "F"},
        "bytes": {
            "dtype": "<f4",
            "filters": [numcodecs.Shuffle(4)],
            "compressors": numcodecs.Zlib(4),
        },
        "scaled": {
            "dtype": "<f8",
            "filters": [numcodecs.FixedScaleOffset(0, 10, "<f8", "<i2")],
            "compressors": numcodecs.BZ2(1),
        },
        "nested": {"dtype": "u1", "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    }
    for name, more in cases.items():
        array = group.create_array(
            f"deep/{name}", shape=(23, 17), chunks=(5, 4), fill_value=3, **more
        )
        array[:15] = values[:15]
        array.attrs["unit"] = name
    group.create_array("scalar", shape=(), dtype="f8")[...] = 2.5
    group.create_array("when", shape=(9,), chunks=(4,), dtype="M8[s]")[:] = np.arange(9).astype(
        "M8[s]"
    )
    group.create_array("word", shape=(9,), chunks=(4,), dtype="U4")[:] = ["ab", "cü"] * 4 + [""]
    texts = group.create_array("text", shape=(3,), chunks=(2,), dtype=str)
    texts[:] = np.array(["one", "", "dreißig"], dtype=object)
    turned = group.create_array("turned", shape=(4, 3), chunks=(2, 3), dtype=str, order="F")
    turned[...] = np.array([f"{number}" for number in range(12)], dtype=object).reshape(4, 3)
    return path


def store_of_v3(path: Path) -> Path:
    """Write a store of version 3, with a sharded array and one of each encoding of keys."""
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    group.attrs["title"] = "new"
    values = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    sharded = group.create_array(
        "deep/sharded", shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="f4"
    )
    sharded[:40, :40] = values[:40, :40]
    for name, encoding in (("dots", "."), ("slashes", "/")):
        array = group.create_array(
            name,
            shape=(64, 64),
            chunks=(20, 30),
            dtype="f4",
            chunk_key_encoding={"name": "default", "separator": encoding},
            dimension_names=("y", None),
        )
        array[...] = values
    group.create_array("scalar", shape=(), dtype="i1")[...] = 7
    return path


def same_nodes(found: Any, wanted: Any) -> None:
    """Compare all arrays and attributes, and how many chunks are stored."""
    ours: dict[str, Any] = dict(found.members(max_depth=None))
    theirs: dict[str, Any] = dict(wanted.members(max_depth=None))
    assert ours.keys() == theirs.keys()
    assert found.attrs.asdict() == wanted.attrs.asdict()
    for name, node in theirs.items():
        assert ours[name].attrs.asdict() == node.attrs.asdict(), name
        if isinstance(node, zarr.Array):
            np.testing.assert_array_equal(ours[name][...], node[...], name)
            assert ours[name].nchunks_initialized == node.nchunks_initialized, name


@pytest.mark.parametrize("virtual", [True, False])
def test_stores_of_both_versions_come_in_as_zarr_reads_them(
    spark: Any, tmp_path: Path, virtual: bool
) -> None:
    """Values, attributes and missing chunks are those of the store; several stores are one commit."""
    old, new = store_of_v2(tmp_path / "old.zarr"), store_of_v3(tmp_path / "new.zarr")
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.zarr(spark, [old, new], repo, virtual=virtual, group="in")

    root = opened(repo)
    same_nodes(root["in/old"], zarr.open_group(str(old), mode="r"))
    same_nodes(root["in/new"], zarr.open_group(str(new), mode="r"))
    rows = repo.tables("chunks").to_pylist()
    assert result.chunk_count == len(rows)
    assert all((row["kind"] == "virtual") == virtual for row in rows)
    assert len(list(repo.ancestry(branch="main"))) == 2


@pytest.mark.parametrize("consolidated", [True, False])
def test_what_xarray_wrote_in_version_2_is_what_xarray_reads(
    spark: Any, tmp_path: Path, consolidated: bool
) -> None:
    """Names of dimensions and missing values are said in version 2's own way, and understood."""
    data = xr.Dataset(
        {
            "t2m": (("time", "x"), np.array([[1.5, np.nan], [3, 4]]), {"units": "K"}),
            "name": ("x", np.array(["a", "bc"], dtype=object)),
        },
        {"time": np.array(["2024-01-01", "2024-01-02"], "M8[ns]"), "height": 2.0},
        {"title": "x"},
    )
    encoding = {"t2m": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -99, "chunks": (1, 2)}}
    path = tmp_path / "x.zarr"
    data.to_zarr(path, zarr_format=2, encoding=encoding, consolidated=consolidated)
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.zarr(spark, path, repo, consolidated=consolidated)

    equal_trees(reopened(repo), xr.open_zarr(path, chunks=None, consolidated=consolidated).load())


def test_an_array_and_a_part_of_a_store(spark: Any, tmp_path: Path) -> None:
    """A single array may be a source, nodes may be left out, and what is there may be replaced."""
    old = store_of_v2(tmp_path / "old.zarr")
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.zarr(
        spark, {"one": old / "deep/plain", "rest": old}, repo, drop=["deep", "text", "turned"]
    )
    with pytest.raises(IcechunkArrowError, match="overwrite=True"):
        ingest.zarr(spark, old / "scalar", repo, group="one")
    ingest.zarr(spark, old / "deep/blosc", repo, group="one", overwrite=True)

    root = opened(repo)
    assert sorted(dict(root["rest"].members(max_depth=None))) == ["scalar", "when", "word"]
    np.testing.assert_array_equal(root["one"][...], zarr.open_array(str(old / "deep/blosc"))[...])


def test_a_store_that_cannot_be_taken_is_named(spark: Any, tmp_path: Path) -> None:
    """A codec that Zarr v3 does not have, and a store that is not there; the rest comes in by option."""
    new = store_of_v3(tmp_path / "new.zarr")
    odd = store_of_v2(tmp_path / "odd.zarr")
    document = json.loads((odd / "scalar/.zarray").read_text())
    (odd / "scalar/.zarray").write_text(json.dumps(document | {"compressor": {"id": "mine"}}))
    repo = new_repository(tmp_path / "repo", tmp_path)

    with pytest.raises(InvalidInputError, match=r"odd\.zarr: '/scalar' cannot be taken.*'mine'"):
        ingest.zarr(spark, [new, odd], repo)
    assert len(list(repo.ancestry(branch="main"))) == 1
    result = ingest.zarr(spark, [tmp_path / "none.zarr", new, odd], repo, failures="report")

    assert [each.source for each in result.failures] == [
        f"file://{tmp_path}/none.zarr",
        f"file://{odd}",
    ]
    assert set(result.arrays) == {"/new/deep/sharded", "/new/dots", "/new/slashes", "/new/scalar"}


def test_files_that_are_no_chunks_are_passed_over(spark: Any, tmp_path: Path) -> None:
    """What zarr would not read, because its name or its place is none of the array's, does not come in."""
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 5
    for name in ("c/2", "c/00", "c/x", "c/1.tmp", "notes.txt"):
        (tmp_path / "a.zarr" / name).write_bytes(b"x")
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.zarr(spark, tmp_path / "a.zarr", repo, group="a")

    assert result.chunk_count == 2
    found = opened(repo, "a")
    assert found[...].tolist() == [5, 5, 5, 5]


def test_a_copied_chunk_is_the_same_bytes(spark: Any, tmp_path: Path) -> None:
    """Nothing is decoded and encoded again."""
    new = store_of_v3(tmp_path / "new.zarr")
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.zarr(spark, new, repo)

    session = repo.readonly_session(branch="main")
    view = session.get_array("/deep/sharded")
    found = session.find_chunk(view, (1, 1))
    data = (new / "deep/sharded/c/1/1").read_bytes()
    assert found is not None
    assert bytes(session.read_chunk(found, 0, len(data))) == data


def test_two_stores_cannot_be_one_array(spark: Any, tmp_path: Path) -> None:
    """An array that two sources have would have chunks of both: it is refused, and nothing is made."""
    for name, place in (("one", "g/v"), ("two", "v")):
        made = zarr.create_array(
            tmp_path / f"{name}.zarr" / place, shape=(4,), chunks=(2,), dtype="i4", fill_value=0
        )
        side = slice(0, 2) if name == "one" else slice(2, 4)
        made[side] = 7
        zarr.create_group(tmp_path / f"{name}.zarr")
        if name == "one":
            zarr.create_group(tmp_path / "one.zarr" / "g")
    repo = new_repository(tmp_path / "repo", tmp_path)
    before = repo.lookup_branch("main")

    with pytest.raises(InvalidInputError, match="'/g/v' would come from two sources"):
        ingest.zarr(
            spark, {"/": tmp_path / "one.zarr", "/g": tmp_path / "two.zarr"}, repo, virtual=True
        )
    assert repo.lookup_branch("main") == before
