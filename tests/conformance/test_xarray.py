"""xarray datasets through a session's store: unchanged, appended to, written by region, across commits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

from icechunk_arrow import InvalidInputError

xr = pytest.importorskip("xarray")

if TYPE_CHECKING:
    from tests.conformance.places import Place

pytestmark = [
    # zarr warns that its own strings have no specification yet
    pytest.mark.filterwarnings("ignore:The data type"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def dataset(days: int = 4, start: int = 0) -> Any:
    """A dataset with something of everything that xarray encodes."""
    rng = np.random.default_rng(start)
    time = np.datetime64("2001-01-01T06:00:00", "ns") + np.arange(start, start + days) * (
        np.timedelta64(1, "D").astype("m8[ns]")
    )
    temperature = rng.normal(size=(days, 3, 5)).astype("f4")
    temperature[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "temperature": (
                ("time", "lat", "lon"),
                temperature,
                {"units": "K", "long_name": "Temperatür", "valid_range": [0.0, 400.0]},
            ),
            "count": (("time",), rng.integers(0, 9, days)),
            "quality": (("lat", "lon"), rng.integers(0, 255, (3, 5)).astype("u1")),
            "ok": (("lat",), np.array([True, False, True])),
            "lead": (("lat",), np.array([1, 2, 3], "m8[h]").astype("m8[ns]")),
            "wave": (("lon",), np.exp(1j * np.arange(5))),
            "empty": (("none",), np.zeros(0)),
            "scalar": ((), 3.5, {"note": "no dimension"}),
        },
        coords={
            "time": ("time", time, {"standard_name": "time"}),
            "lat": ("lat", np.array([10.0, 20.0, 30.0])),
            "lon": ("lon", np.arange(5, dtype="i4")),
            "station": ("lat", np.array(["Höfn", "", "a much longer name"], dtype=object)),
            "run": ((), np.datetime64("2001-01-01", "ns")),
            "height": 2.0,
        },
        attrs={"title": "A test", "list": [1, 2, 3], "nested": {"a": None}, "history": "…"},
    )


def encoding() -> dict[str, Any]:
    return {
        "temperature": {"chunks": (2, 3, 2), "_FillValue": np.float32(-9999)},
        "count": {"chunks": (2,)},
        "time": {"units": "hours since 1990-01-01", "calendar": "standard", "dtype": "f8"},
    }


def write(place: Place, data: Any, *, commit: bool = True, **options: Any) -> Any:
    """Write a dataset; give the store to read it from."""
    session = place.session()
    data.to_zarr(session.store, consolidated=False, zarr_format=3, **options)
    if not commit:
        return session.store
    session.commit("written by xarray")
    return place.open().readonly_session("main").store


def read(store: Any, **options: Any) -> Any:
    return xr.open_zarr(store, consolidated=False, **options)


@pytest.mark.parametrize("in_dask", [False, True], ids=["numpy", "dask"])
def test_a_dataset_comes_back_unchanged(place: Place, committed: bool, in_dask: bool) -> None:
    """Variables, coordinates, attributes, encoded times, strings, scalars and NaN survive."""
    place.create()
    expected = dataset()
    given = expected
    if in_dask:  # xarray would load strings from dask to find their type, and warn
        given = expected.chunk({"time": 2, "lon": 2}).assign_coords(station=expected["station"])
    store = write(place, given, commit=committed, encoding=encoding())
    with read(store) as found:
        xr.testing.assert_identical(found.load(), expected)
    with read(store, chunks=None) as found:
        xr.testing.assert_identical(found.load(), expected)
        assert found["time"].encoding["units"] == "hours since 1990-01-01"
        assert found["temperature"].encoding["chunks"] == (2, 3, 2)


@pytest.mark.parametrize("in_dask", [False, True], ids=["numpy", "dask"])
def test_appending_along_a_dimension(place: Place, in_dask: bool) -> None:
    """Appends lengthen what is there, within a session and in later ones; old snapshots stay."""
    place.create()
    parts = [dataset(start=0), dataset(start=4), dataset(start=8)]
    for part in parts[1:]:
        part["lat"] = parts[0]["lat"]
    growing = [part.drop_dims([d for d in part.dims if d != "time"]) for part in parts]
    if in_dask:
        growing = [part.chunk({"time": 2}) for part in growing]
    write(place, growing[0], encoding={"time": encoding()["time"], "count": {"chunks": (2,)}})
    first = place.open().lookup_branch("main")
    session = place.session()
    growing[1].to_zarr(session.store, append_dim="time", consolidated=False)
    growing[2].to_zarr(session.store, append_dim="time", consolidated=False)
    expected = xr.concat([part.compute() for part in growing], "time", data_vars="minimal")
    with read(session.store) as found:
        xr.testing.assert_identical(found.load(), expected)
    session.commit("appended twice")
    with read(place.open().readonly_session("main").store) as found:
        xr.testing.assert_identical(found.load(), expected)
    with read(place.open().readonly_session(snapshot_id=first).store) as found:
        xr.testing.assert_identical(found.load(), growing[0].compute())


def test_writing_a_region(place: Place, committed: bool) -> None:
    """A region is overwritten, by slices and found by coordinates, and nothing beside it."""
    place.create()
    expected = dataset()[["temperature"]].drop_vars(["station", "run", "height"])
    store = write(
        place, expected, commit=committed, encoding={"temperature": {"chunks": (2, 3, 5)}}
    )
    session = place.session() if committed else store.session
    part = expected.isel(time=slice(2, 4)) * 0 + 7
    part.drop_vars(["lat", "lon"]).to_zarr(
        session.store, region={"time": slice(2, 4)}, consolidated=False
    )
    found_by_coordinates = expected.isel(time=slice(0, 2)) * 0 + 5
    found_by_coordinates.to_zarr(session.store, region="auto", consolidated=False)
    if committed:
        session.commit("two regions")
        session = place.open().readonly_session("main")
    wanted = expected.copy(deep=True)
    wanted["temperature"].values[2:] = 7
    wanted["temperature"].values[:2] = 5
    wanted["temperature"].values[:2][np.isnan(expected["temperature"].values[:2])] = np.nan
    with read(session.store) as found:
        xr.testing.assert_equal(found.load(), wanted)


def test_one_process_lays_out_and_many_tasks_fill(place: Place, committed: bool) -> None:
    """compute=False writes the metadata, and dask's threads fill it through the same store."""
    place.create()
    expected = dataset(days=12)[["temperature"]].drop_vars("station")
    session = place.session()
    given = expected.chunk({"time": 1, "lat": 1, "lon": 1})
    task = given.to_zarr(session.store, compute=False, consolidated=False)
    task.compute(scheduler="threads", num_workers=8)
    if committed:
        session.commit("filled by threads")
        session = place.open().readonly_session("main")
    with read(session.store) as found:
        xr.testing.assert_identical(found.load(), expected)


def test_a_data_array_with_and_without_a_name(memory: Place) -> None:
    """An unnamed DataArray is stored under the name that xarray gives it, and comes back unnamed."""
    memory.create()
    for name in ("speed", None):
        array = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("y", "x"), name=name)
        session = memory.session()
        array.to_zarr(session.store, mode="w", consolidated=False)
        session.commit("an array")
        store = memory.open().readonly_session("main").store
        with xr.open_dataarray(store, engine="zarr", consolidated=False) as found:
            xr.testing.assert_identical(found.load(), array)
    assert list(zarr.open_group(store, mode="r").array_keys()) == ["__xarray_dataarray_variable__"]


def test_a_tree_of_groups(memory: Place, committed: bool) -> None:
    """A DataTree goes through; and one group can be written over without touching its sister."""
    memory.create()
    tree = xr.DataTree.from_dict({"/": dataset()[["scalar"]], "/a": dataset(2), "/a/b": dataset(2)})
    session = memory.session()
    tree.to_zarr(session.store, consolidated=False)
    if committed:
        session.commit("a tree")
        session = memory.session()
    with xr.open_datatree(session.store, engine="zarr", consolidated=False) as found:
        xr.testing.assert_identical(found.load(), tree)
    dataset(1).to_zarr(session.store, group="a/b", mode="w", consolidated=False)
    with read(session.store, group="a/b") as again:
        xr.testing.assert_identical(again.load(), dataset(1))
    with read(session.store, group="a") as sister:
        xr.testing.assert_identical(sister.load(), dataset(2))


def test_replacing_a_dataset(memory: Place, committed: bool) -> None:
    """mode="w" leaves nothing of what was there; other shapes and types take its place."""
    memory.create()
    write(memory, dataset(), commit=True)
    other = xr.Dataset({"temperature": (("x",), np.arange(3))}, attrs={"title": "another"})
    store = write(memory, other, commit=committed, mode="w")
    with read(store) as found:
        xr.testing.assert_identical(found.load(), other)


def test_consolidated_metadata_is_refused_with_the_reason(memory: Place) -> None:
    """A document with consolidated metadata is refused, saying why and what to do instead.

    zarr asks the store first and refuses by itself; xarray asks too, and then leaves it out.
    """
    memory.create()
    store = memory.session().store
    document = {
        "zarr_format": 3,
        "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {}},
    }
    with pytest.raises(
        InvalidInputError, match=r"consolidated_metadata.*one read.*consolidated=False"
    ):
        store.set_sync("zarr.json", cpu.Buffer.from_bytes(json.dumps(document).encode()))
    dataset().to_zarr(store, consolidated=True, zarr_format=3)
    with pytest.raises(TypeError, match="doesn't support consolidated metadata"):
        zarr.consolidate_metadata(store)
    with pytest.raises(ValueError, match="doesn't support consolidated metadata"):
        zarr.open_consolidated(store)
    with read(store) as found:
        xr.testing.assert_identical(found.load(), dataset())


def test_without_saying_anything_xarray_consolidates_nothing(memory: Place) -> None:
    """to_zarr and open_zarr work with their defaults: no consolidation, no warning, no failure."""
    memory.create()
    session = memory.session()
    dataset().to_zarr(session.store)
    with xr.open_zarr(session.store) as found:
        xr.testing.assert_identical(found.load(), dataset())
