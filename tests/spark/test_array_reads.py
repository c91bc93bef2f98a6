"""Arrays as rows and as chunks, without Spark: what the tasks of a read give, against numpy and xarray."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_arrow import Repository
from icechunk_arrow.errors import InvalidInputError, NodeNotFoundError
from icechunk_arrow.spark.reading.arrays import plan_read

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
PLAIN = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "bool")
DTYPES = (*PLAIN, "M8[ns]", "M8[s]", "m8[ms]", "U3", "S2", "str")


def rows_of(session: Session, paths: Any, **how: Any) -> pa.Table:
    """All parts of a read, one after the other."""
    read = plan_read(session, paths, **how)
    batches = [batch for part in read.parts() for batch in read.read_part(part)]
    return pa.Table.from_batches(batches, read.schema)


def plain(value: Any) -> Any:
    """An element as a row has it."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        kind = "M8[us]" if isinstance(value, np.datetime64) else "m8[us]"
        micros = int(value.astype(kind).astype("i8"))
        span = timedelta(microseconds=micros)
        return EPOCH + span if isinstance(value, np.datetime64) else span
    if isinstance(value, np.complexfloating):
        return {"real": float(value.real), "imag": float(value.imag)}
    if isinstance(value, np.uint64):
        return Decimal(int(value))
    return value.item() if isinstance(value, np.generic) else value


def elements(dtype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype if dtype != "str" else "U").kind
    if kind in "iu":
        info = np.iinfo(dtype)
        return st.sampled_from([0, 1, 2, info.min, info.max])
    if kind in "fc":
        return st.sampled_from([0.0, 1.5, -2.0, math.nan, math.inf])
    if kind in "Mm":
        return st.sampled_from([0, 1, 86_400, -5, -(2**63)])
    if kind == "b":
        return st.booleans()
    return st.sampled_from(["", "a", "ß", "bc"] if kind == "U" else [b"", b"a", b"bc"])


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    count = math.prod(shape)
    items = draw(st.lists(elements(dtype), min_size=count, max_size=count))
    return {
        "dtype": dtype,
        "shape": shape,
        "chunks": tuple(draw(st.integers(1, 4)) for _ in shape),
        "shards": draw(st.booleans()),
        "items": items,
        "fill": draw(elements(dtype)),
        "written": tuple(draw(st.integers(0, n)) for n in shape),
        "names": draw(st.booleans()),
    }


def make(session: Session, name: str, what: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Make an array that is written in part, and say what is in it."""
    dtype: Any = str if what["dtype"] == "str" else np.dtype(what["dtype"])
    is_time = dtype is not str and dtype.kind in "Mm"
    values = np.array(what["items"], "T" if dtype is str else "i8" if is_time else dtype)
    fill: Any = what["fill"]
    if is_time:
        values = values.view(dtype)
        fill = np.array(fill, "i8").view(dtype)[()]
    names = [f"d{number}" for number in range(len(what["shape"]))]
    shards = tuple(2 * edge for edge in what["chunks"])
    array = zarr.create_array(
        session.store,
        name=name,
        shape=what["shape"],
        chunks=what["chunks"],
        shards=shards if what["shards"] and shards else None,
        dtype=dtype,
        fill_value=fill,
        dimension_names=names if what["names"] and names else None,
    )
    corner = tuple(slice(n) for n in what["written"])
    if all(what["written"]):
        array[corner] = values.reshape(what["shape"])[corner]
    return np.asarray(array[...])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the repositories of many examples."""
    return tmp_path_factory.mktemp("reads")


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(arrays(), st.data())
def test_rows_are_the_elements(folder: Path, what: dict[str, Any], data: st.DataObject) -> None:
    """Of any array, every selected element has one row, with its place and value, whatever the parts."""
    repo = Repository.open_or_create(folder / "rows")
    session = repo.writable_session("main")
    zarr.create_group(session.store, overwrite=True)
    expected = make(session, "a", what)
    reader = repo.readonly_session(snapshot_id=session.commit("made"))
    ndim = expected.ndim
    names = [f"d{number}" if what["names"] else f"dim_{number}" for number in range(ndim)]
    bounds = {
        name: sorted(data.draw(st.tuples(st.integers(-1, 5), st.integers(-1, 5))))
        for name in data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    }
    where = " and ".join(f"{name} between {low} and {high}" for name, (low, high) in bounds.items())
    nulls = data.draw(st.booleans())
    found = rows_of(
        reader,
        "a",
        where=where or None,
        nulls=nulls,
        part_bytes=data.draw(st.sampled_from([1, 40, 1 << 20])),
    )

    wanted = []
    fill = reader_fill(reader)
    for place in product(*map(range, expected.shape)):
        if all(low <= place[names.index(n)] <= high for n, (low, high) in bounds.items()):
            value = expected[place]
            is_fill = repr(np.asarray(value).tolist()) == repr(np.asarray(fill).tolist())
            wanted.append((*place, None if nulls and is_fill else plain(value)))
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert found.column_names == [*names, "a"]
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted))


def reader_fill(session: Session) -> Any:
    """The fill value as an element of the array."""
    array = zarr.open_array(session.store, path="a", mode="r")
    blank = np.array([array.fill_value], "T" if array.dtype.kind in "TO" else array.dtype)
    return blank[0]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(arrays(), st.data())
def test_chunks_are_those_that_are_stored(
    folder: Path, what: dict[str, Any], data: st.DataObject
) -> None:
    """Every stored chunk that a condition touches has one row, with its corner, shape and elements."""
    repo = Repository.open_or_create(folder / "chunks")
    session = repo.writable_session("main")
    zarr.create_group(session.store, overwrite=True)
    expected = make(session, "a", what)
    reader = repo.readonly_session(snapshot_id=session.commit("made"))
    stored = [tuple(c) for some in reader.chunk_coordinates("/a") for c in some.tolist()]
    axes = reader.get_array("/a").grid.axes
    low = data.draw(st.integers(-1, 5))
    first = "d0" if what["names"] else "dim_0"
    asked = data.draw(st.booleans())
    where = f"{first} >= {low}" if axes and asked else None
    found = rows_of(
        reader,
        ["/a"],
        layout="chunks",
        where=where,
        part_bytes=data.draw(st.sampled_from([1, 40, 1 << 20])),
    )

    wanted = []
    for coord in stored:
        edges = [axis.origin_and_edge(n) for axis, n in zip(axes, coord, strict=True)]
        box = [
            (origin, min(origin + edge, axis.extent))
            for axis, (origin, edge) in zip(axes, edges, strict=True)
        ]
        if where is not None and box[0][1] <= low:
            continue
        values = expected[tuple(slice(*side) for side in box)].reshape(-1)
        origin = [side[0] for side in box]
        shape = [stop - start for start, stop in box]
        items = [plain(each) for each in (values if values.dtype.kind != "O" else values.tolist())]
        wanted.append(("/a", list(coord), origin, shape, items))
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted))


# -- several arrays, coordinates, columns


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Two arrays on one grid with unlike chunks, coordinates of three kinds, and some that do not fit."""
    repo = Repository.create(tmp_path_factory.mktemp("weather") / "repo")
    session = repo.writable_session("main")
    group = zarr.create_group(session.store, path="w")

    def add(name: str, values: Any, chunks: Any, names: Any, parent: Any = group) -> Any:
        array = parent.create_array(
            name,
            shape=values.shape,
            chunks=chunks,
            dtype=values.dtype,
            dimension_names=names,
            fill_value=0,
        )
        array[...] = values
        return array

    time = add("time", np.arange(10) * 6, (4,), ["time"])
    time.attrs.update(units="hours since 2024-01-01", calendar="standard")
    add("lat", np.linspace(60, 10, 6).astype("f4"), (6,), ["lat"])
    names = ["time", "lat", "x"]
    values = np.arange(300.0).reshape(10, 6, 5)
    deep = group.create_group("deep")
    add("t2m", values, (4, 2, 5), names)
    add("precip", -values.astype("f4"), (5, 6, 2), names, deep)
    add("lat", values + 0.5, (10, 6, 5), names, group.create_group("other"))
    odd = group.create_group("odd")
    add("mask", values[:9] > 3, (9, 6, 5), names, odd)
    add("model", np.arange(3), (3,), ["model"]).attrs.update(
        units="days since 2000-01-01", calendar="360_day"
    )
    add("late", np.zeros((4, 3)), (4, 3), ["lat", "model"], odd)
    odd.create_array("raw", shape=(3,), dtype=[("a", "i4"), ("b", "f8")], fill_value=None)
    session.commit("made")
    return repo


def test_rows_are_what_xarray_makes_of_them(weather: Repository) -> None:
    """Dimensions, decoded times and values of two arrays are those of a frame of xarray."""
    xr = pytest.importorskip("xarray")
    session = weather.readonly_session(branch="main")
    found = rows_of(session, ["/w/t2m", "w/deep/precip"], part_bytes=500)
    ours = found.to_pandas().set_index(["time", "lat", "x"]).sort_index()
    theirs = xr.open_zarr(session.store, group="w", consolidated=False)
    deep = xr.open_zarr(session.store, group="w/deep", consolidated=False)
    data = theirs[["t2m"]].assign(precip=(("time", "lat", "x"), deep.precip.data))
    frame = data.assign_coords(x=range(5)).to_dataframe().reset_index()
    frame["time"] = frame["time"].dt.tz_localize("UTC")
    frame = frame.set_index(["time", "lat", "x"]).sort_index()[["t2m", "precip"]]

    assert [str(kind) for kind in found.schema.types] == [
        "timestamp[us, tz=UTC]",
        "float",
        "int64",
        "double",
        "float",
    ]
    assert (ours.index == frame.index).all()
    assert (ours.to_numpy() == frame.to_numpy()).all()


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("time >= '2024-01-02' and time < '2024-01-02 12:00' and lat between 20 and 50", 2 * 4 * 5),
        ("x in (0, 4) and lat > 55", 10 * 1 * 2),
        ("lat = 60 and time = '2024-01-01T05:45:00+05:45'", 5),
        ("time < '2024-01-01'", 0),
        ("x = 2.5", 0),
        ("x <> 2", 10 * 6 * 4),
    ],
)
def test_conditions_choose_rows(weather: Repository, where: str, count: int) -> None:
    """A condition on coordinates of any kind keeps the elements that it is true of."""
    session = weather.readonly_session(branch="main")

    assert rows_of(session, ["/w/t2m", "/w/deep/precip"], where=where).num_rows == count
    assert rows_of(session, "/w/t2m", where=where, columns=["t2m"]).num_rows == count


def test_columns_are_chosen_and_named(weather: Repository) -> None:
    """Columns come in the order asked for; an array whose name is taken goes by its path."""
    session = weather.readonly_session(branch="main")
    found = rows_of(session, ["/w/t2m", "/w/other/lat"], columns=["/w/other/lat", "x", "_snapshot"])

    assert found.column_names == ["/w/other/lat", "x", "_snapshot"]
    assert set(found["_snapshot"].to_pylist()) == {session.snapshot_id}
    assert found["/w/other/lat"].to_pylist() == [each + 0.5 for each in range(300)]
    assert rows_of(session, "/w/lat").column_names == ["lat"]
    assert rows_of(session, "/w/model").schema.types == [pa.int64()]


@pytest.mark.parametrize(
    ("paths", "how", "says"),
    [
        (["/w/t2m", "/w/odd/mask"], {}, "they share no rows"),
        (["/w/odd/late"], {}, "of length 4; write the one that is behind"),
        (["/w/odd/raw"], {}, "/w/odd/raw is of data type .* no column of Spark holds"),
        (["/w/t2m"], {"where": "t2m > 3"}, "no dimension of /w/t2m: it has time, lat, x"),
        (["/w/t2m"], {"where": "time > 3"}, "has times"),
        (["/w/t2m"], {"columns": ["precip"]}, "'precip' cannot be chosen"),
        (["/w/t2m"], {"columns": ["x", "x"]}, "to be named once"),
        (["/w/t2m"], {"layout": "cells"}, "rows and chunks, not 'cells'"),
        (["/w/t2m"], {"part_bytes": 0}, "at least one byte"),
        ([], {}, "no array to read"),
        (["/w/t2m", "/w/deep/precip"], {"layout": "chunks"}, "read them apart"),
    ],
)
def test_what_cannot_be_read_is_refused(
    weather: Repository, paths: Any, how: dict[str, Any], says: str
) -> None:
    """The error names what does not go, before any task begins."""
    with pytest.raises(InvalidInputError, match=says):
        plan_read(weather.readonly_session(branch="main"), paths, **how)


def test_an_array_that_is_not_there(weather: Repository) -> None:
    """Missing arrays, and groups, are named."""
    session = weather.readonly_session(branch="main")
    for path in ("/w/none", "/w"):
        with pytest.raises(NodeNotFoundError, match=path):
            plan_read(session, path)


def test_neighbours_make_a_part(tmp_path: Path) -> None:
    """Parts hold about as many bytes as asked for, chunks that follow one another, and each chunk once."""
    repo = Repository.create(tmp_path / "repo")
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(40, 30), chunks=(10, 10), dtype="f8", fill_value=0
    )
    array[...] = np.arange(1200).reshape(40, 30)
    reader = repo.readonly_session(snapshot_id=session.commit("made"))
    read = plan_read(reader, "a", part_bytes=5 * 2400, where="dim_0 >= 10")
    parts = [pa.Table.from_batches(read.read_part(part)) for part in read.parts()]
    chunks = [
        sorted(
            {(y // 10, x // 10) for y, x in zip(*(t[d].to_pylist() for d in range(2)), strict=True)}
        )
        for t in parts
    ]

    assert [len(each) for each in chunks] == [5, 4]
    assert [coord for part in chunks for coord in part] == list(product(range(1, 4), range(3)))


def test_only_chunks_that_are_asked_for_are_read(tmp_path: Path) -> None:
    """Where the files of all other chunks are gone, the read still gives its rows; without them it fails."""
    from icechunk_arrow import RepositoryConfig

    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packed_chunk_threshold_bytes=0)
    repo = Repository.create(tmp_path / "repo", config=config)
    session = repo.writable_session("main")
    for name in ("a", "b"):
        array = zarr.create_array(
            session.store, name=name, shape=(8, 8), chunks=(2, 2), dtype="i4", fill_value=0
        )
        array[...] = 1 + np.arange(64).reshape(8, 8)
    reader = repo.readonly_session(snapshot_id=session.commit("made"))
    wanted = "dim_0 = 3 and dim_1 between 5 and 6"
    kept = {(1, 2), (1, 3)}
    for path in ("/a", "/b"):
        for batch in reader.chunk_references(path):
            for row in batch.to_pylist():
                if path == "/b" or tuple(row["index"]) not in kept:
                    (tmp_path / "repo" / "c" / row["location"]).unlink()
    found = rows_of(reader, ["/a", "/b"], where=wanted, columns=["dim_1", "a"])

    assert found.to_pydict() == {"dim_1": [5, 6], "a": [30, 31]}
    assert rows_of(reader, "/a", where=wanted, layout="chunks").num_rows == 2
    with pytest.raises(Exception, match="c/"):
        rows_of(reader, ["/a"], where="dim_0 = 3")
