"""Files of other people, made with other people's libraries, and repositories that take them in."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import xarray as xr
import zarr

from icechunk_arrow import Repository

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DAYS",
    "equal_trees",
    "new_repository",
    "opened",
    "reopened",
    "weather_file",
    "weather_files",
]

DAYS = 4
"""Steps of a file along its unlimited dimension."""


def weather_file(path: Path, number: int = 0, **more: Any) -> Path:
    """Write a NetCDF-4 file with nearly everything that such files have.

    ``more`` is what one file has otherwise: ``days``, ``units``, ``complevel``, ``lat``, ``history``, ``chunks``.
    """
    rng = np.random.default_rng(number)
    days = more.get("days", DAYS)
    with (
        warnings.catch_warnings(action="ignore"),  # of values in the other order of bytes
        netCDF4.Dataset(path, "w", format="NETCDF4") as file,
    ):
        file.title = "weather"
        file.history = more.get("history", f"made as number {number}")
        file.createDimension("time", None)
        file.createDimension("lat", 6)
        file.createDimension("lon", 8)
        time = file.createVariable("time", "f8", ("time",))
        time.units = more.get("units", "hours since 2024-01-01")
        time.calendar = "standard"
        time[:] = (np.arange(days) + number * DAYS) * 24.0
        lat = file.createVariable("lat", "f4", ("lat",))
        lat[:] = more.get("lat", np.linspace(-50, 50, 6))
        lat.units = "degrees_north"
        file.createVariable("lon", "f4", ("lon",))[:] = np.linspace(0, 315, 8)
        t2m = file.createVariable(
            "t2m",
            "i2",
            ("time", "lat", "lon"),
            zlib=True,
            complevel=more.get("complevel", 4),
            shuffle=True,
            fletcher32=True,
            chunksizes=more.get("chunks", (2, 3, 8)),
            fill_value=-32768,
        )
        t2m.scale_factor, t2m.add_offset, t2m.units = 0.01, 273.15, "K"
        values = rng.normal(280, 10, (days, 6, 8))
        t2m[:] = np.ma.masked_array(values, rng.random(values.shape) < 0.1)
        rain = file.createVariable(
            "rain",
            "f4",
            ("time", "lat", "lon"),
            chunksizes=(1, 6, 8),
            endian="big",
            fill_value=np.float32(-1),
        )
        rain[:] = rng.random((days, 6, 8)).astype("f4")
        count = file.createVariable("count", "u8", ("time", "lat"), zlib=True, chunksizes=(2, 6))
        count[:] = rng.integers(0, 2**63, (days, 6), dtype="u8")
        height = file.createVariable("height", "i4", ("lat", "lon"))
        height[:] = np.arange(48).reshape(6, 8)
        name = file.createVariable("name", str, ("lat",))
        name[:] = np.array(["Zürich", "", "東京", "a" * 300, "x", "y"], dtype=object)
        file.createDimension("letters", 4)
        label = file.createVariable("label", "S1", ("time", "letters"), chunksizes=(1, 4))
        label[:] = np.array([list("ab12")] * days, "S1")
        file.createVariable("crs", "i4", ()).grid_mapping_name = "latitude_longitude"
        soil = file.createGroup("soil")
        soil.depth = np.array([1.0, 2.0])
        soil.createDimension("layer", 3)
        wet = soil.createVariable("wet", "f8", ("time", "layer"), zlib=True, chunksizes=(4, 3))
        wet[:] = rng.random((days, 3))
        deep = soil.createGroup("deep").createVariable("stone", "i1", ("lat",))
        deep[:] = np.arange(6)
    return path


def weather_files(folder: Path, count: int = 3) -> list[Path]:
    """Write several files that follow one another."""
    return [weather_file(folder / f"weather_{n}.nc", n) for n in range(count)]


def new_repository(folder: Path, source: Path) -> Repository:
    """Make a repository that may read virtual chunks below a folder."""
    return Repository.create(
        str(folder), authorize_virtual_chunk_access=[f"file://{source.resolve()}/"]
    )


def reopened(repo: Repository, group: str | None = None, **more: Any) -> xr.Dataset:
    """Read what a repository holds with xarray, values included."""
    session = repo.readonly_session(branch="main")
    found: xr.Dataset = xr.open_zarr(
        session.store, group=group, consolidated=False, chunks=None, **more
    )
    return found.load()


def equal_trees(found: xr.Dataset, wanted: xr.Dataset) -> None:
    """Compare values, dimensions, coordinates and attributes."""
    xr.testing.assert_identical(found.drop_encoding(), wanted.drop_encoding())


def opened(repo: Repository, path: str = "") -> Any:
    """Open a node of the newest snapshot with zarr."""
    return zarr.open(repo.readonly_session(branch="main").store, path=path, mode="r")
