"""Files whose numbers mean different things: values come out as xarray reads them from each, or it is an error."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from icechunk_arrow import ingest
from icechunk_arrow.core.cf import PACKING
from icechunk_arrow.errors import InvalidInputError, SourceChangedError
from icechunk_arrow.ingest.agreement import compare_files
from icechunk_arrow.ingest.concatenation import (
    Choices,
    OddOnes,
    Piece,
    WriteItem,
    array_plans,
)
from icechunk_arrow.ingest.file_tasks import WriteValues
from icechunk_arrow.ingest.hdf5 import Hdf5File
from icechunk_arrow.ingest.source import ScanOptions
from icechunk_arrow.storage.source_files import SourceFiles
from tests.ingest.files import new_repository, opened, reopened

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow.ingest.agreement import Differences

spark_test = pytest.mark.spark
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
PACKED: dict[str, Any] = {
    "scale_factor": 0.01,
    "add_offset": 273.15,
    "_FillValue": np.int16(-32768),
}


def packed_file(path: Path, number: int, attributes: dict[str, Any], kind: Any = "i2") -> Path:
    """Write random stored numbers below some attributes, as they are."""
    rng = np.random.default_rng(number)
    given = dict(attributes)
    units = given.pop("time_units", "hours since 2024-01-01")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        time = file.createVariable("time", "i4", ("time",))
        time.units = units
        time[:] = np.arange(4) + 4 * number
        shape: dict[str, Any] = {"chunksizes": (2, 5), "zlib": True}
        fill = given.pop("_FillValue", None)
        t2m = file.createVariable("t2m", kind, ("time", "x"), fill_value=fill, **shape)
        t2m.setncatts(given)
        t2m.set_auto_maskandscale(False)
        low, high = (0, 200) if np.dtype(kind).itemsize == 1 else (-3000, 3000)
        values = rng.integers(low, high, (4, 5)).astype(kind)
        if fill is not None:
            values[1, 1:3] = fill
        t2m[:] = values
    return path


def each_as_xarray_reads(paths: list[Path]) -> xr.DataArray:
    """Read every file by itself, and put the values one behind the other."""
    with warnings.catch_warnings(action="ignore"):
        return xr.concat([xr.open_dataset(path).load()["t2m"] for path in paths], "time")


def compared(paths: list[Path], drop: set[str] | None = None) -> Differences:
    """Compare the second file with the first, without Spark."""
    options = ScanOptions(concat_dim="time", drop=frozenset(drop or ()))
    found = []
    for path in paths:
        with Hdf5File.open(SourceFiles({}), options, f"file://{path}") as file:
            found.append(file.contents())
    return compare_files(found[0], found[1], "time", None)


ODD: list[dict[str, Any]] = [
    {"add_offset": 280.0},
    {"scale_factor": 0.02},
    {"scale_factor": np.float32(0.02), "add_offset": np.float32(1)},
    {"_FillValue": np.int16(-1)},
    {"missing_value": np.int16(7)},
    {"valid_range": np.array([-100, 100], "i2")},
    {"_Unsigned": "true"},
]


@spark_test
def test_other_packings_are_refused_as_references_and_decoded_where_written(
    spark: Any, tmp_path: Path
) -> None:
    """Scale, offset, missing value or sign of one file differ: each file's values come out, or an error."""
    repo = new_repository(tmp_path / "repo", tmp_path)
    for number, odd in enumerate(ODD):
        paths = [
            packed_file(tmp_path / f"{number}_a.nc", 0, PACKED),
            packed_file(tmp_path / f"{number}_b.nc", 1, PACKED | odd),
        ]
        before = repo.lookup_branch("main")

        with pytest.raises(InvalidInputError, match="means another value there") as caught:
            ingest.netcdf(spark, paths, repo, concat_dim="time", group=f"v{number}")
        assert f"{number}_b.nc" in caught.value.message
        assert "@" not in caught.value.message, "what decodes is never offered to be dropped"
        assert repo.lookup_branch("main") == before

        ingest.netcdf(spark, paths, repo, concat_dim="time", group=f"w{number}", rewrite=["t2m"])
        found, wanted = reopened(repo, f"w{number}")["t2m"], each_as_xarray_reads(paths)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.values, wanted.values)
        assert not PACKING & found.attrs.keys()


@spark_test
def test_what_decodes_cannot_be_dropped_where_files_differ(spark: Any, tmp_path: Path) -> None:
    """The way that once led to -868 degrees is closed, by name, with the ways that are right."""
    paths = [
        packed_file(tmp_path / "a.nc", 0, PACKED),
        packed_file(tmp_path / "b.nc", 1, PACKED | {"add_offset": 280.0}),
    ]
    repo = new_repository(tmp_path / "repo", tmp_path)
    for virtual in (True, False):
        with pytest.raises(InvalidInputError, match="cannot be left out") as caught:
            ingest.netcdf(
                spark,
                paths,
                repo,
                concat_dim="time",
                virtual=virtual,
                drop=["/t2m@add_offset"],
            )
        assert "b.nc" in caught.value.message
        assert "virtual=False" in caught.value.message

    ingest.netcdf(spark, paths, repo, concat_dim="time", virtual=False)
    wanted = each_as_xarray_reads(paths)
    np.testing.assert_array_equal(reopened(repo)["t2m"].values, wanted.values)
    # where all agree it is the person's choice what the numbers mean
    same = [packed_file(tmp_path / f"s{n}.nc", n, PACKED) for n in (0, 1)]
    ingest.netcdf(spark, same, repo, concat_dim="time", group="raw", drop=["/t2m@add_offset"])
    assert "add_offset" not in opened(repo, "raw/t2m").attrs


@spark_test
def test_times_that_are_packed_or_missing_are_counted_anew_rightly(
    spark: Any, tmp_path: Path
) -> None:
    """Units change what is decoded, not what is stored; marks of missing times stay marks."""
    paths = []
    for number, units in enumerate(("days since 2024-01-01", "days since 2024-01-05")):
        paths.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", "i4", ("time",))
            time.setncatts({"units": units, "scale_factor": 0.5})
            time.set_auto_maskandscale(False)
            time[:] = np.arange(4)
            seen = file.createVariable("seen", "i4", ("time",))
            seen.setncatts({"units": units, "missing_value": np.int32(-1)})
            seen.set_auto_maskandscale(False)
            seen[:] = [-1, 1, 2, 3]
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.netcdf(spark, paths, repo, concat_dim="time", virtual=False)

    found = reopened(repo)
    each = [xr.open_dataset(path).load() for path in paths]
    wanted = np.concatenate([one["time"].values for one in each])
    assert (found["time"].values.astype("M8[s]") == wanted.astype("M8[s]")).all()
    wanted = np.concatenate([one["seen"].values for one in each])
    np.testing.assert_array_equal(found["seen"].values.astype("M8[s]"), wanted.astype("M8[s]"))


@spark_test
def test_times_that_floats_cannot_hold_are_refused(spark: Any, tmp_path: Path) -> None:
    """Seconds of one day fit into 32 bits, and those since another year do not: no time is moved."""
    paths = []
    for number, units in enumerate(("seconds since 2000-01-01", "seconds since 2024-01-05")):
        paths.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", "f4", ("time",))
            time.units = units
            time[:] = [1, 2, 3]
    repo = new_repository(tmp_path / "repo", tmp_path)

    with pytest.raises(InvalidInputError, match="cannot be said exactly"):
        ingest.netcdf(spark, paths, repo, concat_dim="time")


def test_a_file_that_changes_while_it_is_taken_is_refused(tmp_path: Path) -> None:
    """A file that got shorter after all were compared would give fill values for the rest: it is named instead."""
    path = packed_file(tmp_path / "a.nc", 0, {})
    repo = new_repository(tmp_path / "repo", tmp_path)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="t2m", shape=(4, 5), chunks=(4, 5), dtype="i2")
    url = f"file://{path}"
    files = SourceFiles({})
    found = files.facts(url)
    opens = partial(Hdf5File.open, files, ScanOptions(concat_dim="time"))
    with opens(url) as file:
        contents = file.contents()
    choices = Choices(
        concat_dim="time",
        virtual=False,
        rewrite=frozenset(),
        rewrite_below_bytes=0,
        chunks={},
        codecs=None,
    )
    nothing_odd = OddOnes(layouts={}, packings={}, decoded={}, units={})
    plans = array_plans(contents, [url], {"/": [4]}, choices, nothing_odd)
    work = WriteValues(
        files=files, open=opens, group="/", plans={plan.variable.path: plan for plan in plans}
    )
    whole = (Piece(file=0, start=0, stop=4),)
    item = WriteItem(path="/t2m", start=(0, 0), stop=(4, 5), pieces=whole)
    part = [(item, [(url, found.etag, found.last_modified)])]
    work(session.fork(), part)
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("t2m", "i2", ("time", "x"))[:] = np.zeros((2, 5))

    with pytest.raises(SourceChangedError, match=r"a\.nc was changed while it was taken in"):
        work(session.fork(), part)


@spark_test
def test_other_bytes_and_fills_of_the_same_values(spark: Any, tmp_path: Path) -> None:
    """Order of bytes and fill values differ: no references, and written values are those of each file."""
    repo = new_repository(tmp_path / "repo", tmp_path)
    cases: list[list[dict[str, Any]]] = [
        [{"kind": "<i4"}, {"kind": ">i4"}],
        [{"kind": "f4", "fill": -1.0}, {"kind": "f4", "fill": -2.0}],
    ]
    for number, case in enumerate(cases):
        paths = []
        for place, each in enumerate(case):
            paths.append(tmp_path / f"{number}_{place}.h5")
            with h5py.File(paths[-1], "w") as file:
                made = file.create_dataset(
                    "v",
                    (6,),
                    each["kind"],
                    chunks=(3,),
                    maxshape=(None,),
                    fillvalue=each.get("fill", 0),
                )
                made[:3] = [1, 2, 3]
        dims = {"concat_dim": "phony_dim_0", "group": f"g{number}"}
        with pytest.raises(InvalidInputError, match="other chunks or filters, or another fill"):
            ingest.netcdf(spark, paths, repo, **dims)  # type: ignore[arg-type]
        ingest.netcdf(spark, paths, repo, virtual=False, **dims)  # type: ignore[arg-type]
        wanted = [h5py.File(path)["v"][...].tolist() for path in paths]
        assert opened(repo, f"g{number}/v")[...].tolist() == wanted[0] + wanted[1]


def test_types_and_orders_of_dimensions_must_agree(tmp_path: Path) -> None:
    """Whatever cannot follow is refused by name, with the variable that may be left out."""
    paths = [
        packed_file(tmp_path / "a.nc", 0, {}),
        packed_file(tmp_path / "b.nc", 1, {}, "i4"),
    ]
    with pytest.raises(InvalidInputError, match="the type of '/t2m': int32 here, int16 in"):
        compared(paths)
    with netCDF4.Dataset(tmp_path / "c.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("time", "i4", ("time",)).units = "hours since 2024-01-01"
        file.createVariable("t2m", "i2", ("x", "time"))
    with pytest.raises(InvalidInputError, match="the dimensions of '/t2m'"):
        compared([paths[0], tmp_path / "c.nc"])


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ({"units": "degC"}, "units"),
        ({"_Encoding": "latin-1"}, "_Encoding"),
        ({"dtype": "bool"}, "dtype"),
    ],
)
def test_other_meanings_are_refused_without_a_wrong_way_out(
    tmp_path: Path, odd: dict[str, Any], name: str
) -> None:
    """What cannot be decoded into one is refused, and nobody is told to drop what says so."""
    paths = [
        packed_file(tmp_path / "a.nc", 0, PACKED | {"units": "K"}),
        packed_file(tmp_path / "b.nc", 1, PACKED | {"units": "K"} | odd),
    ]
    with pytest.raises(InvalidInputError, match=f"attribute '{name}' of '/t2m'") as caught:
        compared(paths)
    assert "@" not in caught.value.message
    with pytest.raises(InvalidInputError, match="cannot be left out"):
        compared(paths, {f"/t2m@{name}"})


def test_calendars_of_one_meaning_agree(tmp_path: Path) -> None:
    """``gregorian`` is the old name of ``standard``, which is meant where none is named."""
    paths = [packed_file(tmp_path / f"{name}.nc", 0, {}) for name in "abc"]
    for path, calendar in zip(paths, ("standard", "gregorian", "noleap"), strict=True):
        with netCDF4.Dataset(path, "a") as file:
            file["time"].calendar = calendar
    assert compared(paths[:2]).packings == ()
    with pytest.raises(InvalidInputError, match="'calendar'"):
        compared(paths[1:])


def test_large_values_that_do_not_grow_are_compared_too(tmp_path: Path) -> None:
    """What is taken from the first file alone is the same in all of them, of whatever size."""
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            file.createVariable("time", "i4", ("time",))[:] = [number]
            for dim in ("y", "x"):
                file.createDimension(dim, 1600)
            grid = np.zeros((1600, 1600))
            grid[1500, 7] = number
            file.createVariable("grid", "f8", ("y", "x"), zlib=True)[:] = grid
    with pytest.raises(InvalidInputError, match="the values of '/grid' differ"):
        compared(paths)
    assert compared([paths[0], paths[0]]).layouts == ()
