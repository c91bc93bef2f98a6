"""Long tables into arrays: what numpy and xarray make of the same rows, and nothing where a row is wrong."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError
from icechunk_arrow.spark import RegularGrid, read_array, write_rows
from icechunk_arrow.spark.writing.cells import CellRules, Cells
from icechunk_arrow.spark.writing.shuffle import shuffled

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def frame(spark: Any, columns: dict[str, Any], *, parts: int = 3, seed: int = 0) -> Any:
    """Make a frame of columns, its rows shuffled, in some partitions."""
    table = pa.table(columns)
    order = np.random.default_rng(seed).permutation(table.num_rows)
    return spark.createDataFrame(table.take(pa.array(order))).repartition(parts)


def grid_rows(times: range, lats: int = 4, lons: int = 5) -> dict[str, Any]:
    """Make rows of every cell of some hours."""
    t, y, x = (each.ravel() for each in np.meshgrid(times, range(lats), range(lons), indexing="ij"))
    return {
        "time": pa.array([START + HOUR * int(each) for each in t], pa.timestamp("us", "UTC")),
        "lat": 50.0 - y * 0.25,
        "lon": x * 0.25,
        "t2m": (t * 100 + y * 10 + x).astype(np.float64),
    }


def dataset(repository: Repository) -> xr.Dataset:
    """Open what stands on main with xarray, and load it."""
    store = repository.readonly_session("main").store
    found: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return found.load()


def state(repository: Repository) -> tuple[str, dict[str, Any]]:
    """Give the newest snapshot, and the values of all arrays."""
    session = repository.readonly_session("main")
    root: Any = zarr.open_group(session.store, mode="r")
    return session.snapshot_id, {name: array[...].tolist() for name, array in root.arrays()}


def test_every_type_comes_back(spark: Any, tmp_path: Path) -> None:
    """Rows of all types, shuffled, with partial chunks, become arrays and then the same rows."""
    rng = np.random.default_rng(5)
    t, s = (each.ravel() for each in np.meshgrid(range(11), range(7), indexing="ij"))
    count = len(t)
    doubles = rng.standard_normal(count)
    doubles[::6] = np.nan
    moments = rng.integers(-(10**15), 10**15, count)
    columns = {
        "time": pa.array([START + HOUR * int(each) for each in t], pa.timestamp("us", "UTC")),
        "station": pa.array([f"st {'é' * (each % 3)}{each}" for each in s]),
        "f8": doubles,
        "f4": doubles.astype(np.float32),
        "i1": pa.array(rng.integers(-128, 128, count).astype(np.int8)),
        "i2": pa.array(rng.integers(-(2**15), 2**15, count).astype(np.int16)),
        "i4": pa.array(rng.integers(-(2**31), 2**31, count).astype(np.int32)),
        "i8": pa.array(rng.integers(-(2**63), 2**63 - 1, count)),
        "u8": pa.array(map(int, rng.integers(0, 2**64, count, np.uint64)), pa.decimal128(20, 0)),
        "flag": pa.array((rng.random(count) < 0.5).tolist()),
        "text": pa.array([("", "ab", "日本")[each % 3] for each in range(count)]),
        "moment": pa.array(moments, pa.timestamp("us", "UTC")),
    }
    repository = Repository.create(tmp_path / "r")
    df = frame(spark, columns)

    result = write_rows(
        df, repository, dimensions=["time", "station"], chunks={"time": 4, "station": 3}
    )

    assert result.snapshot_id == repository.readonly_session("main").snapshot_id
    assert result.totals.chunk_count == 9 * 10
    names = [f"/{name}" for name in columns if name not in {"time", "station"}]
    back = read_array(spark, repository, names).select(*df.columns)
    assert back.dtypes == df.dtypes
    expected, found = (sorted(map(repr, each.toArrow().to_pylist())) for each in (df, back))
    assert found == expected


def test_xarray_makes_the_same_of_the_rows(spark: Any, tmp_path: Path) -> None:
    """What is written of some cells of a grid is what pandas and xarray make of these rows."""
    columns = grid_rows(range(9))
    chosen = np.random.default_rng(1).random(len(columns["lat"])) < 0.6
    table = pa.table(columns).filter(pa.array(chosen.tolist()))
    repository = Repository.create(tmp_path / "r")

    write_rows(
        frame(spark, {name: table[name] for name in table.column_names}),
        repository,
        ["t2m"],
        dimensions=["time", "lat", "lon"],
        chunks={"time": 4, "lat": 3, "lon": 2},
    )

    pandas_frame = table.to_pandas()
    pandas_frame["time"] = pandas_frame["time"].dt.tz_localize(None)
    expected = pandas_frame.set_index(["time", "lat", "lon"]).to_xarray()
    found = dataset(repository)
    found["time"] = found["time"].astype("M8[us]")
    xr.testing.assert_equal(found, expected)


def test_appends_to_stored_coordinates_and_merges_partial_chunks(
    spark: Any, tmp_path: Path
) -> None:
    """A second write lays its cells over stored chunks, and extends arrays and all that share the dimension."""
    repository = Repository.create(tmp_path / "r")
    grid = {
        "time": RegularGrid(start=START, step=HOUR),
        "lat": RegularGrid(start=50.0, step=-0.25, count=4),
        "lon": {"start": 0.0, "step": 0.25, "count": 5},
    }
    write_rows(
        frame(spark, grid_rows(range(5))),
        repository,
        coordinates=grid,
        chunks={"time": 3, "lat": 4},
    )
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="other", shape=(5,), dtype="i4", dimension_names=("time",)
    )[:] = np.arange(5)
    session.commit("another array")
    more = grid_rows(range(4, 8))
    more["t2m"] = more["t2m"] + 0.5

    with pytest.raises(InvalidInputError, match=r"time=2024-01-01T07:00:00.*outside='extend'"):
        write_rows(frame(spark, more), repository)
    write_rows(frame(spark, more), repository, outside="extend")

    found = dataset(repository)
    t, y, x = np.meshgrid(range(8), range(4), range(5), indexing="ij")
    np.testing.assert_array_equal(found["t2m"], t * 100 + y * 10 + x + np.where(t >= 4, 0.5, 0))
    assert found["other"].sizes == {"time": 8}
    assert found["time"].values.tolist() == [
        int((START + HOUR * each).timestamp() * 10**9) for each in range(8)
    ]
    earlier = frame(spark, grid_rows(range(-1, 1)))
    with pytest.raises(InvalidInputError, match="extended at the end only"):
        write_rows(earlier, repository, outside="extend")


def test_every_kind_of_axis_is_extended(spark: Any, tmp_path: Path) -> None:
    """Texts are appended in their order, a grid goes on, and places are as many as the rows need."""
    repository = Repository.create(tmp_path / "r")
    days = RegularGrid(start=dt.date(2024, 1, 1), step=dt.timedelta(days=1))
    how: dict[str, Any] = {
        "dimensions": ["station", "day", "level"],
        "coordinates": {"day": days, "level": "index"},
        "chunks": {"station": 2, "day": 2, "level": 2},
        "outside": "extend",
    }
    rows: dict[str, list[Any]] = {
        "station": ["b", "c", "a", "x", "b"],
        "day": [dt.date(2024, 1, each) for each in (2, 1, 1, 5, 2)],
        "level": [0, 1, 0, 2, 2],
        "v": [1, 2, 3, 4, 5],
    }
    first = {name: values[:3] for name, values in rows.items()}
    rest = {name: values[3:] for name, values in rows.items()}

    write_rows(frame(spark, first), repository, **how)
    write_rows(frame(spark, rest), repository, **how)

    found = dataset(repository)
    assert found["v"].dims == ("station", "day", "level")
    assert found["station"].values.tolist() == ["a", "b", "c", "x"]
    np.testing.assert_array_equal(
        found["day"].values, np.arange("2024-01-01", "2024-01-06", dtype="M8[D]").astype("M8[ns]")
    )
    expected = np.zeros((4, 5, 3), np.int64)
    expected[[1, 2, 0, 3, 1], [1, 0, 0, 4, 1], [0, 1, 0, 2, 2]] = rows["v"]
    np.testing.assert_array_equal(found["v"], expected)


@pytest.mark.parametrize("policy", ["last", "mean", "sum"])
def test_duplicates_become_one_value(spark: Any, tmp_path: Path, policy: Any) -> None:
    """Several rows of a cell become what numpy makes of them, nulls left out of means and sums."""
    rng = np.random.default_rng(8)
    count = 400
    x, order = rng.integers(0, 30, count), rng.permutation(count)
    values = rng.standard_normal(count)
    whole = rng.integers(-1000, 1000, count)
    missing = rng.random(count) < 0.2
    columns = {
        "x": x,
        "v": pa.array(values, mask=missing),
        "n": whole.astype(np.int32),
        "seen": order,
    }
    repository = Repository.create(tmp_path / "r")

    write_rows(
        frame(spark, columns),
        repository,
        ["v", "n"],
        dimensions=["x"],
        coordinates={"x": "index"},
        chunks={"x": 8},
        duplicates=policy,
        order_by="seen" if policy == "last" else None,
    )

    found = dataset(repository)
    for place in range(30):
        mine = x == place
        there = mine & ~missing
        if policy == "last":
            last = np.flatnonzero(mine)[np.argmax(order[mine])]
            expected = np.nan if missing[last] else values[last]
            expected_n = whole[last]
        elif policy == "mean":
            expected, expected_n = values[there].mean(), np.rint(whole[mine].mean())
        else:
            expected, expected_n = values[there].sum(), whole[mine].sum()
        np.testing.assert_allclose(found["v"][place], expected, rtol=1e-12)
        assert found["n"][place] == expected_n


def test_wrong_rows_are_named_and_change_nothing(spark: Any, tmp_path: Path) -> None:
    """A fault in any row leaves repository and session as they were, in the middle of other changes too."""
    repository = Repository.create(tmp_path / "r")
    stations = ["a", "b", "c"]
    good = {"time": [START] * 3, "station": stations, "v": [1.0, 2.0, 3.0]}
    write_rows(frame(spark, good), repository, dimensions=["time", "station"])
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="mine", shape=(2,), dtype="i4")[:] = [7, 8]
    before, changes = state(repository), repr(session.status())
    faults: list[tuple[dict[str, Any], str]] = [
        ({**good, "station": ["a", "b", "b"]}, r"'/v' at .*station='b': 2 rows"),
        ({**good, "station": ["a", "b", "x"]}, r"station=x, v=\S+: .*'station' is none of the 3"),
        (
            {**good, "station": ["a", "b", None]},
            r"1 of 3 rows have no value in the column 'station'",
        ),
        (
            {**good, "v": [1.0, 2.0, "x"]} | {"v": ["x", "y", "z"]},
            "'v' of string does not go into '/v'",
        ),
    ]
    for columns, text in faults:
        with pytest.raises(InvalidInputError, match=text):
            write_rows(frame(spark, columns), session)
        assert repr(session.status()) == changes
    new = {**good, "time": [START + HOUR] * 3, "station": ["a", "d", "d"]}
    with pytest.raises(InvalidInputError, match="'d': 2 rows"):
        write_rows(frame(spark, new), session, outside="extend")
    whole = {"x": [0, 1], "n": [1.0, 1.5]}
    with pytest.raises(InvalidInputError, match=r"x=1, n=1.5: n=1.5 .*int16 cannot hold"):
        write_rows(frame(spark, whole), session, {"n": {"dtype": "int16"}}, dimensions=["x"])

    assert repr(session.status()) == changes
    assert state(repository) == before
    session.commit("only mine")
    assert state(repository)[1] == {**before[1], "mine": [7, 8]}


def test_several_writes_into_a_session_are_one_commit(spark: Any, tmp_path: Path) -> None:
    """Arrays on different grids, and a second part of one, are written by one commit, its owner's."""
    repository = Repository.create(tmp_path / "r")
    session = repository.writable_session("main")
    x = np.arange(10)
    first = write_rows(
        frame(spark, {"x": x[:5], "a": x[:5] * 1.5, "b": x[:5]}),
        session,
        {"a": {"chunks": (2,)}, "b": "deep/b"},
        dimensions=["x"],
        coordinates={"x": x},
        group="/g",
        chunks={"x": 4},
    )
    write_rows(frame(spark, {"x": x[5:], "a": x[5:] * 1.5}), session, group="/g")

    assert first.snapshot_id is None
    assert repository.readonly_session("main").snapshot_id == session.snapshot_id
    session.commit("both")
    root: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    group = root["g"]
    assert group["a"][:].tolist() == (x * 1.5).tolist()
    assert group["deep/b"][:].tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]
    assert group["a"].chunks == (2,)
    assert group["deep/b"].chunks == (4,)
    assert group["x"][:].tolist() == x.tolist()


def test_modes_and_nulls(spark: Any, tmp_path: Path) -> None:
    """What is there is laid over, removed first, left, or a reason to refuse; nulls fill or leave a cell."""
    repository = Repository.create(tmp_path / "r")
    rows = {"x": [0, 1, 2, 3], "v": [1.0, 2.0, 3.0, 4.0], "n": [1, 2, 3, 4]}
    how: dict[str, Any] = {"dimensions": ["x"], "coordinates": {"x": "index"}}
    write_rows(frame(spark, rows), repository, **how)
    nulls = {"x": [0, 1], "v": [None, 9.0], "n": [5, None]}
    df = frame(spark, nulls)

    with pytest.raises(AlreadyExistsError, match="have chunks already"):
        write_rows(df, repository, mode="error", **how)
    assert write_rows(df, repository, mode="ignore", **how).snapshot_id is None
    write_rows(df, repository, nulls="skip", **how)
    skipped = state(repository)[1]
    write_rows(df, repository, **how)
    filled = state(repository)[1]
    write_rows(df, repository, mode="overwrite", **how)
    over = state(repository)[1]

    assert skipped == {"v": [1.0, 9.0, 3.0, 4.0], "n": [5, 2, 3, 4]}
    assert repr(filled) == repr({"n": [5, 0, 3, 4], "v": [np.nan, 9.0, 3.0, 4.0]})
    assert repr(over) == repr({"n": [5, 0, 0, 0], "v": [np.nan, 9.0, np.nan, np.nan]})


def test_a_null_is_what_the_attributes_call_missing(spark: Any, tmp_path: Path) -> None:
    """Where an array of whole numbers has a mark for no value, null becomes that, and reads as no value."""
    repository = Repository.create(tmp_path / "r")
    marks: dict[str, dict[str, Any]] = {
        "a": {"_FillValue": -99},
        "b": {"missing_value": 7},
        "c": {"_FillValue": 70000},
        "d": {},
    }
    with repository.transaction("main", message="make") as store:
        for name, attributes in marks.items():
            zarr.create_array(
                store,
                name=name,
                shape=(3,),
                chunks=(3,),
                dtype="i2",
                fill_value=0,
                dimension_names=("x",),
                attributes=attributes,
            )
    column = pa.array([None, 5], pa.int16())
    df = frame(spark, {"x": [0, 1]} | dict.fromkeys(marks, column))

    write_rows(df, repository, list(marks))

    assert state(repository)[1] == {
        "a": [-99, 5, 0],
        "b": [7, 5, 0],
        "c": [0, 5, 0],
        "d": [0, 5, 0],
    }
    assert np.isnan(dataset(repository)["a"].values[0])


def test_arrays_of_others(spark: Any, tmp_path: Path) -> None:
    """Arrays that zarr made, with shards, CF times and 32-bit coordinates, take rows by their coordinates."""
    repository = Repository.create(tmp_path / "r")
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    lats = np.linspace(-1, 1, 9).astype(np.float32)[::-1] / 3
    root.create_array("lat", data=lats, dimension_names=("lat",))
    hours = root.create_array(
        "time",
        data=np.arange(6, dtype=np.int32),
        dimension_names=("time",),
        attributes={"units": "hours since 2024-01-01", "calendar": "standard"},
    )
    assert hours.shape == (6,)
    root.create_array(
        "v",
        shape=(6, 9),
        chunks=(2, 2),
        shards=(4, 4),
        dtype="<f4",
        dimension_names=("time", "lat"),
        fill_value=-1.0,
    )
    session.commit("made by zarr")
    t, y = np.array([0, 5, 3, 3]), np.array([0, 8, 4, 5])
    rows = {
        "when": pa.array([START + HOUR * int(each) for each in t], pa.timestamp("us", "UTC")),
        "lat": (lats.astype(np.float64) * (1 + 1e-10))[y],
        "v": [0.1, 0.2, 0.3, 0.4],
    }

    write_rows(frame(spark, rows), repository, ["v"], dimensions=["when", "lat"])

    expected = np.full((6, 9), -1, np.float32)
    expected[t, y] = np.array(rows["v"], np.float32)
    found: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(found["v"][:], expected)
    rows["lat"] = rows["lat"] + 0.02
    near = {"lat": 0.03, "time": dt.timedelta(minutes=1)}
    with pytest.raises(InvalidInputError, match="none of the 9 places"):
        write_rows(frame(spark, rows), repository, ["v"], dimensions=["when", "lat"])
    write_rows(frame(spark, rows), repository, ["v"], dimensions=["when", "lat"], tolerance=near)


def test_plans_have_no_function_called_by_row(spark: Any) -> None:
    """Rows meet Python in Arrow batches only, before and behind one exchange."""
    cells = Cells(
        axes=(),
        columns=(),
        blocks=None,  # type: ignore[arg-type]  # no row is ever placed
        rules=CellRules(duplicates="error", order_by=None, skip_nulls=False),
        order_type=None,
        merged=frozenset(),
        task_count=2,
    )
    plan = shuffled(spark.range(10), cells)._jdf.queryExecution().toString()

    assert "MapInArrow" in plan
    assert "Exchange" in plan
    assert not any(each in plan for each in ("BatchEvalPython", "ArrowEvalPython", "PythonUDF("))
