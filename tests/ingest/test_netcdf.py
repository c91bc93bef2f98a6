"""NetCDF-4 and HDF5 files come in as xarray reads them, referred to or rewritten."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from icechunk_arrow import ingest
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from tests.ingest.files import (
    equal_trees,
    new_repository,
    opened,
    reopened,
    weather_file,
    weather_files,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]
GROUPS = (None, "soil", "soil/deep")


def read_files(paths: list[Path], group: str | None = None) -> xr.Dataset:
    """Read files as xarray does."""
    if group == "soil/deep":  # nothing in it grows
        return xr.open_dataset(paths[0], group=group, engine="netcdf4").load()
    return xr.open_mfdataset(
        paths,
        group=group,
        combine="nested",
        concat_dim="time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        combine_attrs="override",
        engine="netcdf4",
    ).load()


@pytest.mark.parametrize("virtual", [True, False])
def test_a_file_set_comes_in_as_xarray_reads_it(spark: Any, tmp_path: Path, virtual: bool) -> None:
    """Compressed, shuffled, scaled, unlimited, texts, groups: the same values and attributes."""
    paths = weather_files(tmp_path)
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.netcdf(spark, paths, repo, concat_dim="time", virtual=virtual)

    assert result.file_count == 3
    assert result.failures == ()
    assert repo.lookup_branch("main") == result.snapshot_id
    for group in GROUPS:
        equal_trees(reopened(repo, group), read_files(paths, group))


def test_references_lead_into_the_files(spark: Any, tmp_path: Path) -> None:
    """Virtual ingest copies nothing that can be referred to, and says of each file what it was."""
    paths = weather_files(tmp_path, 2)
    repo = new_repository(tmp_path / "repo", tmp_path)
    ingest.netcdf(spark, paths, repo, concat_dim="time")

    rows = [row for row in repo.tables("chunks").to_pylist() if row["path"] == "/t2m"]

    assert {row["location"] for row in rows} == {f"file://{path}" for path in paths}
    assert all(row["etag"] is not None for row in rows)
    assert len(rows) == 2 * 2 * 2


def test_chunks_and_codecs_are_the_persons_choice(spark: Any, tmp_path: Path) -> None:
    """Rewritten arrays have the chunks and codecs that were asked for, and the same values."""
    paths = weather_files(tmp_path)
    repo = new_repository(tmp_path / "repo", tmp_path)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = [little, {"name": "gzip", "configuration": {"level": 1}}]

    with pytest.raises(InvalidInputError, match="'/t2m' cannot be made as chosen"):
        ingest.netcdf(
            spark, paths, repo, concat_dim="time", virtual=False, codecs={"t2m": [little, "gzop"]}
        )

    ingest.netcdf(
        spark,
        paths,
        repo,
        concat_dim="time",
        virtual=False,
        chunks={"time": 5, "count": (12, 3)},
        codecs={"t2m": codecs},
        drop=["/soil", "/rain"],
    )

    group = opened(repo)
    assert group["t2m"].chunks == (5, 3, 8)
    assert group["count"].chunks == (12, 3)
    assert [type(codec).__name__ for codec in group["t2m"].metadata.codecs] == [
        "BytesCodec",
        "GzipCodec",
    ]
    assert "soil" not in group
    assert "rain" not in group
    equal_trees(reopened(repo), read_files(paths).drop_vars("rain"))


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"lat": np.linspace(0, 1, 6)}, "the values of '/lat' differ"),
        ({"chunks": (1, 6, 8)}, "has it with other chunks or filters"),
        ({"units": "fortnights since 2024-01-01"}, "the attribute 'units' of '/time'"),
        ({"days": 3}, "do not fill, and other files follow"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    spark: Any, tmp_path: Path, odd: dict[str, Any], reason: str
) -> None:
    """Variables, grids, codecs and attributes must agree; the message says which file's do not."""
    paths = weather_files(tmp_path)
    weather_file(paths[1], 1, **odd)
    repo = new_repository(tmp_path / "repo", tmp_path)
    before = repo.lookup_branch("main")

    with pytest.raises(InvalidInputError, match=re.escape(reason)) as caught:
        ingest.netcdf(
            spark, paths, repo, concat_dim="time", rewrite=["name"], rewrite_below_bytes=0
        )

    assert "weather_1.nc" in caught.value.message
    assert repo.lookup_branch("main") == before


def test_other_chunks_codecs_and_units_are_no_matter_where_values_are_rewritten(
    spark: Any, tmp_path: Path
) -> None:
    """Rewriting evens out how files store the same thing."""
    paths = weather_files(tmp_path)
    weather_file(paths[1], 1, chunks=(4, 6, 8), complevel=9)
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.netcdf(spark, paths, repo, concat_dim="time", virtual=False)

    equal_trees(reopened(repo), read_files(paths))


def test_times_counted_from_other_days_come_into_one(spark: Any, tmp_path: Path) -> None:
    """Every file may count hours from a day of its own; the coordinate is rewritten in the first file's units."""
    paths = weather_files(tmp_path, 2)
    with netCDF4.Dataset(paths[1], "a") as file:
        file["time"].units = "hours since 2024-01-05"
        file["time"][:] = np.arange(4) * 24.0
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.netcdf(spark, paths, repo, concat_dim="time")

    found = reopened(repo)["time"].values
    assert (found == np.arange("2024-01-01", "2024-01-09", dtype="M8[D]")).all()


def test_what_fails_is_left_out_and_listed(spark: Any, tmp_path: Path) -> None:
    """By option the rest is committed; otherwise nothing is."""
    paths = weather_files(tmp_path)
    broken, missing = tmp_path / "broken.nc", tmp_path / "missing.nc"
    broken.write_bytes(paths[0].read_bytes()[:1000])
    repo = new_repository(tmp_path / "repo", tmp_path)
    sources = [broken, paths[0], missing, *paths[1:]]

    with pytest.raises(IcechunkArrowError, match=r"broken\.nc"):
        ingest.netcdf(spark, sources, repo, concat_dim="time")
    result = ingest.netcdf(spark, sources, repo, concat_dim="time", failures="report")

    assert [each.source for each in result.failures] == [f"file://{broken}", f"file://{missing}"]
    assert all(each.source in each.reason for each in result.failures)
    equal_trees(reopened(repo), read_files(paths))


def test_a_frame_of_paths_into_a_session_with_progress(spark: Any, tmp_path: Path) -> None:
    """Paths come in the order of their positions, progress is told, and the session's owner commits."""
    paths = weather_files(tmp_path)
    repo = new_repository(tmp_path / "repo", tmp_path)
    rows = [(str(path), number) for number, path in enumerate(paths)]
    frame = spark.createDataFrame(rows[::-1], "path string, position int")
    session = repo.writable_session("main")
    told: list[ingest.Progress] = []

    result = ingest.netcdf(
        spark, frame, session, concat_dim="time", group="in/here", on_progress=told.append
    )

    assert result.snapshot_id is None
    session.commit("all of it")
    equal_trees(reopened(repo, "in/here"), read_files(paths))
    assert told[-1].share == 1
    assert told[-1].done.files == 3
    assert [each.share for each in told if each.stage == told[-1].stage][-1] == 1
    assert "files" in str(told[-1])


def test_hdf5_of_other_libraries(spark: Any, tmp_path: Path) -> None:
    """Contiguous values are cut, dimensions without names get NetCDF's, missing chunks are fill."""
    path = tmp_path / "plain.h5"
    values = np.arange(600, dtype="f8").reshape(30, 20)
    with h5py.File(path, "w") as file:
        file["contiguous"] = values
        file.create_dataset("scalar", data=np.int16(7))
        sparse = file.create_dataset("g/sparse", (30, 20), "i4", chunks=(10, 10), fillvalue=-9)
        sparse[:10, :10] = 1
        # one chunk is written past the filters of its dataset
        raw = file.create_dataset("raw", (4,), "i4", chunks=(2,), compression="gzip")
        raw[2:] = [3, 4]
        raw.id.write_direct_chunk((0,), np.array([1, 2], "i4").tobytes(), filter_mask=1)
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.netcdf(spark, path, repo)

    group = opened(repo)
    assert (group["contiguous"][...] == values).all()
    assert group["contiguous"].metadata.dimension_names == ("phony_dim_0", "phony_dim_1")
    assert group["scalar"][()] == 7
    assert (group["g/sparse"][:10, :10] == 1).all()
    assert (group["g/sparse"][10:] == -9).all()
    assert group["raw"][...].tolist() == [1, 2, 3, 4]


def test_numbers_and_texts_that_only_hdf5_can_read(spark: Any, tmp_path: Path) -> None:
    """Numbers of fewer bits than their bytes, texts with something behind their end: as h5py reads them."""
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        narrow = h5py.h5t.STD_I16LE.copy()
        narrow.set_precision(12)
        narrow.set_offset(2)
        space = h5py.h5s.create_simple((4,))
        low = h5py.h5d.create(file.id, b"narrow", narrow, space)
        low.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([-5, 0, 7, -2048], "i2"))
        ended = h5py.h5t.C_S1.copy()
        ended.set_size(6)
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((2,))
        text = h5py.h5d.create(file.id, b"text", ended, h5py.h5s.create_simple((2,)), made)
        text.write_direct_chunk((0,), b"ab\0xyzcd\0\0\0\0")
        file["bool"] = np.array([True, False])
    with h5py.File(path) as file:
        wanted = {name: file[name][...] for name in file}
    repo = new_repository(tmp_path / "repo", tmp_path)
    assert wanted["narrow"].tolist() == [-5, 0, 7, -2048]
    assert wanted["text"].tolist() == [b"ab", b"cd"]

    with pytest.raises(InvalidInputError, match="no virtual references to '/narrow'"):
        ingest.netcdf(spark, path, repo, rewrite_below_bytes=0, rewrite=["text"])
    ingest.netcdf(spark, path, repo)

    group = opened(repo)
    for name, values in wanted.items():
        assert group[name][...].tolist() == values.tolist()


def test_several_files_need_a_dimension(tmp_path: Path) -> None:
    """What cannot be known is asked for before Spark does anything."""
    with pytest.raises(InvalidInputError, match="concat_dim says"):
        ingest.netcdf(None, [tmp_path / "a.nc", tmp_path / "b.nc"], "unused")
    with pytest.raises(InvalidInputError, match="is given twice"):
        ingest.netcdf(None, ["/a.nc", "/a.nc"], "unused", concat_dim="t")
    with pytest.raises(InvalidInputError, match="names none"):
        ingest.netcdf(None, [], "unused")
    with pytest.raises(TypeError, match="'concat_dims'"):
        ingest.netcdf(None, "/a.nc", "unused", concat_dims="t")  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError, match="failures must be one of"):
        ingest.netcdf(None, "/a.nc", "unused", failures="skip")
