"""Arrays as frames of Spark: values and types as Spark gives them, plans, and snapshots that stay."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.spark import read_array

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

COUNT = 1500
NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def plan_of(frame: Any) -> str:
    """The whole plan of a frame as text."""
    return str(frame._jdf.queryExecution().toString())


def columns_of_all_types() -> dict[str, Any]:
    """One array of each type, with extremes, NaN and missing times."""
    random = np.random.default_rng(1)
    found: dict[str, Any] = {}
    for dtype in NUMBERS:
        kind = np.dtype(dtype)
        if kind.kind == "f":
            values = random.normal(size=COUNT).astype(kind)
            values[:3] = np.nan, np.inf, -np.inf
        else:
            info = np.iinfo(kind)
            values = random.integers(info.min, info.max, COUNT, kind, endpoint=True)
            values[:2] = info.min, info.max
        found[dtype] = values
    found["b"] = random.random(COUNT) > 0.5
    found["c"] = (random.normal(size=COUNT) + 1j * random.normal(size=COUNT)).astype("c16")
    moments = random.integers(-(10**15), 10**15, COUNT) // 10 * 10
    found["t"] = moments.view("M8[us]").astype("M8[ms]")
    found["t"][5] = np.datetime64("NaT", "us")
    found["d"] = random.integers(-(10**9), 10**9, COUNT).view("m8[s]")
    found["s"] = np.array([f"größe {n % 7}" * (n % 3) for n in range(COUNT)], "T")
    found["u"] = np.array([f"ab{n % 9}" for n in range(COUNT)], "U4")
    found["y"] = np.array([b"x%d" % (n % 9) for n in range(COUNT)], "S4")
    return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, dict[str, Any]]:
    """A repository with an array of every type on one grid."""
    repo = Repository.create(tmp_path_factory.mktemp("types") / "repo")
    session = repo.writable_session("main")
    values = columns_of_all_types()
    for name, column in values.items():
        array = zarr.create_array(
            session.store,
            name=name,
            shape=column.shape,
            chunks=(400,),
            dtype=str if column.dtype.kind == "T" else column.dtype,
            dimension_names=["x"],
        )
        array[...] = column
    session.commit("made")
    return repo, values


def test_every_type_arrives(spark: Any, everything: tuple[Repository, dict[str, Any]]) -> None:
    """Values of all types are in Spark what they are in numpy, in any zone; nothing runs per row."""
    repo, values = everything
    frame = read_array(spark, repo, list(values), partition_bytes=20_000)
    types = {name: kind for name, kind in frame.dtypes if name != "x"}
    casts = ["unix_micros(t) AS t" if name == "t" else f"`{name}`" for name in frame.columns]
    rows = frame.selectExpr(*casts).sort("x").collect()

    assert types == {
        "i1": "tinyint", "i2": "smallint", "i4": "int", "i8": "bigint", "u1": "smallint", "u2": "int",
        "u4": "bigint", "u8": "decimal(20,0)", "f2": "float", "f4": "float", "f8": "double", "b": "boolean",
        "c": "struct<real:double,imag:double>", "t": "timestamp", "d": "interval day to second",
        "s": "string", "u": "string", "y": "binary",
    }  # fmt: skip
    assert [row["x"] for row in rows] == list(range(COUNT))
    expected = {name: column.tolist() for name, column in values.items()}
    expected["u8"] = list(map(Decimal, expected["u8"]))
    expected["t"] = [
        None if np.isnat(each) else int(each.astype("M8[us]").astype("i8")) for each in values["t"]
    ]
    expected["d"] = [timedelta(seconds=int(each.astype("i8"))) for each in values["d"]]
    for name in values:
        found: list[Any] = [row[name] for row in rows]
        if name == "c":
            found = [complex(each.real, each.imag) for each in found]
        if name == "y":
            found = list(map(bytes, found))
        assert list(map(repr, found)) == list(map(repr, expected[name])), name
    plan = plan_of(frame)
    assert "MapInArrow" in plan
    assert "EvalPython" not in plan
    assert "InPandas" not in plan
    assert frame.rdd.getNumPartitions() == 4


def test_a_frame_stays_with_its_snapshot(spark: Any, tmp_path: Path) -> None:
    """Commits after a frame was made do not show in it; others are read by branch, tag, id and session."""
    repo = Repository.create(tmp_path / "repo")
    ids = []
    for number in (1, 2):
        session = repo.writable_session("main")
        array = zarr.create_array(
            session.store, name="a", shape=(3, 2), chunks=(1, 2), dtype="i4", overwrite=True
        )
        array[...] = number
        ids.append(session.commit(f"{number}"))
        if number == 1:
            repo.create_tag("first", ids[0])
            frame = read_array(spark, str(tmp_path / "repo"), "a", where="dim_0 <> 1")
            chunks = read_array(spark, repo, "a", layout="chunks", columns=["values", "index"])
    reader = repo.readonly_session(snapshot_id=ids[0])

    assert [row.a for row in frame.collect()] == [1] * 4
    assert sorted((list(row[1]), list(row[0])) for row in chunks.collect()) == [
        ([n, 0], [1, 1]) for n in range(3)
    ]
    united = read_array(spark, repo, "a").where("dim_0 = 0").selectExpr("'now' AS w", "a")
    which: list[tuple[str, dict[str, Any]]] = [
        ("tag", {"tag": "first"}),
        ("id", {"snapshot_id": ids[0]}),
        ("branch", {"branch": "main"}),
    ]
    for name, how in which:
        more = read_array(spark, repo, "a", **how).where("dim_0 = 0").selectExpr(f"'{name}'", "a")
        united = united.unionAll(more)
    united = united.unionAll(read_array(spark, reader, "a").where("dim_0=0").selectExpr("'s'", "a"))
    assert {(row.w, row.a) for row in united.collect()} == {
        ("now", 2), ("tag", 1), ("id", 1), ("branch", 2), ("s", 1),
    }  # fmt: skip


def test_what_executors_cannot_read_is_refused(spark: Any, tmp_path: Path) -> None:
    """Memory, uncommitted changes, and two answers to which snapshot are errors before any job."""
    repo = Repository.create(tmp_path / "repo")
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(0,), dtype="i4")
    with pytest.raises(InvalidInputError, match="do not see what a writable session has changed"):
        read_array(spark, session, "a")
    reader = repo.readonly_session(snapshot_id=session.commit("made"))
    with pytest.raises(InvalidInputError, match="a session has its snapshot"):
        read_array(spark, reader, "a", branch="main")
    with pytest.raises(InvalidInputError, match="memory of this process"):
        read_array(spark, Repository.create("memory://read-array"), "a")
    assert read_array(spark, reader, "a").count() == 0
