"""Spark's views have the rows of the Arrow tables, and their plans read what they must, without Python."""

from __future__ import annotations

import itertools
import random
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icechunk_arrow.spark
from icechunk_arrow.core.chunks import HAS_CHECKS, HAS_CRC, WIDE
from icechunk_arrow.core.coords import encode_one
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_arrow.formats.manifest import schema_of
from icechunk_arrow.spark.quoting import spark_root
from icechunk_arrow.tables.schemas import TABLES, with_repository
from icechunk_arrow.tables.sql import SPARK
from tests.sql.model import Model, in_order
from tests.sql.repositories import Filled, add_array, fill, new_repository, refer
from tests.sql.test_pruning import LARGE_FILES
from tests.sql.test_pruning import fill as fill_large
from tests.sql.test_random import random_history
from tests.sql.test_tables import NOT_OF_THE_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.spark
GROUP_ROWS = 16_384
LITERAL = "${spark.app.name} ' \"`a`*[b]\n;-- ß"


def strange_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spark") / "it's [a] *; {x}? \\ ${y}" / "year=2024"
    folder.parent.mkdir()
    return folder


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(strange_folder(tmp_path_factory), wide=True)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(strange_folder(tmp_path_factory), wide=False)


@pytest.fixture(scope="module")
def attached(spark: Any, filled: Filled) -> Iterator[str]:
    icechunk_arrow.spark.attach(spark, filled.repository, "varied")
    yield "varied"
    icechunk_arrow.spark.detach(spark, "varied")


@pytest.fixture(scope="module")
def both(spark: Any, filled: Filled, narrow: Filled) -> Iterator[str]:
    """Both repositories together; one has a name that is a danger to whoever does not quote it."""
    places: dict[str, Any] = {LITERAL: filled.repository, "narrow": narrow.root}
    icechunk_arrow.spark.attach(spark, places, "both")
    yield "both"
    icechunk_arrow.spark.detach(spark, "both")


@pytest.fixture(scope="module")
def large(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = fill_large(tmp_path_factory.mktemp("pruning") / "r")
    icechunk_arrow.spark.attach(spark, repository, "w")
    yield spark
    icechunk_arrow.spark.detach(spark, "w")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return in_order(table.to_pylist())


def _plain(kind: pa.DataType) -> str:
    """A type without the names of list items and of the zone, which Spark chooses."""
    return re.sub(r"list<\w+: ", "list<", str(kind)).replace(" not null", "").split(", tz=")[0]


def by_view(spark: Any, view: str, schema: pa.Schema) -> pa.Table:
    """Rows of a view in declared types; a view with others does not pass."""
    table = spark.table(view).toArrow()
    assert table.column_names == schema.names
    assert [_plain(kind) for kind in table.schema.types] == [_plain(kind) for kind in schema.types]
    return table.cast(schema)


def scanned(frame: Any) -> tuple[int, int]:
    """Files and rows that a query's scans read, by Spark's own counts."""
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    counts = [0, 0]
    for place in range(leaves.size()):
        metrics = leaves.apply(place).metrics()
        if metrics.contains("numFiles"):
            counts[0] += metrics.apply("numFiles").value()
            counts[1] += metrics.apply("numOutputRows").value()
    return counts[0], counts[1]


@pytest.mark.parametrize("name", TABLES)
def test_views_hold_what_arrow_tables_hold(
    spark: Any, filled: Filled, attached: str, name: str
) -> None:
    """Every table has the same rows, columns and types in Spark as in Arrow."""
    table = by_view(spark, f"{attached}_{name}", TABLES[name])

    assert table.num_rows > 0
    assert rows_of(table) == rows_of(filled.repository.tables(name))


@pytest.mark.parametrize("name", TABLES)
def test_plans_have_no_python(spark: Any, attached: str, name: str) -> None:
    """Rows are read and made by Spark itself, manifests by its vectorised reader."""
    [(plan,)] = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {attached}_{name}").collect()

    assert not re.search("python|pandas|arroweval|externalrdd", plan, re.IGNORECASE)
    assert ("FileScan parquet" in plan) == (name in {"chunks", "arrays", "files", "changes"})
    assert "Batched: false" not in plan


def test_snapshots_and_changes_can_be_chosen(spark: Any, filled: Filled) -> None:
    """By tag and since a branch; as of a time at which there were no chunks."""
    repository = filled.repository
    times = {
        row["snapshot"]: row["written_at"] for row in repository.tables("snapshots").to_pylist()
    }
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"tag": "after chunks"}, "side; drop"),
        ({"as_of": times[filled.snapshots[1]]}, None),
    ]
    for chosen, since in cases:
        shown = icechunk_arrow.spark.attach(spark, filled.root, "then", **chosen, since=since)
        for name in ("chunks", "nodes", "snapshots"):
            table = by_view(spark, f"then_{name}", TABLES[name])
            assert rows_of(table) == rows_of(repository.tables(name, **chosen)), name
        changes = by_view(spark, "then_changes", TABLES["changes"])
        assert rows_of(changes) == rows_of(repository.tables("changes", **chosen, since=since))
        assert set(shown.snapshots) == {str(filled.root)}
        icechunk_arrow.spark.detach(spark, "then")


def test_casts_are_checked_whatever_the_session_says(spark: Any, filled: Filled) -> None:
    """Where Spark does not check casts, the views do, and have the same rows."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        icechunk_arrow.spark.attach(spark, filled.repository, "lax")
        [(plan,)] = spark.sql("EXPLAIN EXTENDED SELECT offset FROM lax_chunks").collect()
        found = by_view(spark, "lax_chunks", TABLES["chunks"])
        icechunk_arrow.spark.detach(spark, "lax")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")

    assert "raise_error" in plan
    assert rows_of(found) == rows_of(filled.repository.tables("chunks"))


@pytest.mark.parametrize("name", TABLES)
def test_several_repositories_are_united(
    spark: Any, filled: Filled, narrow: Filled, both: str, name: str
) -> None:
    """Every view of several repositories begins with the name of the row's."""
    found = rows_of(by_view(spark, f"{both}_{name}", with_repository(TABLES[name])))
    expected = [
        {"repository": label, **row}
        for label, each in ((LITERAL, filled), ("narrow", narrow))
        for row in each.repository.tables(name).to_pylist()
    ]

    assert found == in_order(expected)


def test_random_histories(spark: Any) -> None:
    """Tables of repositories that somebody did anything with are what the slow model says."""
    seeds = {
        f"{number}: {random.randrange(2**32)}": rows for number, rows in enumerate([3, 12, 1000])
    }
    with ExitStack() as stack:
        histories = {
            label: stack.enter_context(random_history(int(label.split()[1]), rows))
            for label, rows in seeds.items()
        }
        places: dict[str, Any] = {label: each.repository for label, each in histories.items()}
        icechunk_arrow.spark.attach(spark, places, "random")
        for name in TABLES:
            found = rows_of(by_view(spark, f"random_{name}", with_repository(TABLES[name])))
            expected = [
                {"repository": label, **row}
                for label, each in histories.items()
                for row in Model(each.root).table(name, *reversed(each.snapshots[-2:]))
            ]
            plain = [{k: v for k, v in row.items() if k not in NOT_OF_THE_MODEL} for row in found]
            assert in_order(plain) == in_order(expected), (name, seeds)
        icechunk_arrow.spark.detach(spark, "random")


def test_commits_that_did_nothing_hide_no_others(spark: Any, tmp_path: Path) -> None:
    """A log without operations is a piece without rows, of which Spark makes the end of a table."""
    repository = new_repository(tmp_path / "r")
    for number in range(4):
        session = repository.writable_session("main")
        if number % 2:
            add_array(session, f"a{number}", (3,))
        session.commit(f"{number}", allow_empty=True)
    icechunk_arrow.spark.attach(spark, repository, "quiet")
    found = by_view(spark, "quiet_operations", TABLES["operations"])
    icechunk_arrow.spark.detach(spark, "quiet")

    assert found.num_rows > 2
    assert rows_of(found) == rows_of(repository.tables("operations"))


def test_names_are_plain_data(spark: Any, tmp_path: Path) -> None:
    """Paths and folders with whatever Spark replaces, escapes or ends a text at, are themselves."""
    repository = new_repository(tmp_path / "a`b${z}", rows=2)
    session = repository.writable_session("main")
    add_array(session, LITERAL, (20,))
    refer(session, f"/{LITERAL}", [(n,) for n in range(20)])
    session.commit(LITERAL)
    icechunk_arrow.spark.attach(spark, repository, "plain")
    chunks = spark.table("plain_chunks")
    found = chunks.where(chunks["path"] == f"/{LITERAL}").toArrow().cast(TABLES["chunks"])
    icechunk_arrow.spark.detach(spark, "plain")

    assert found.num_rows == 20
    assert rows_of(found) == rows_of(repository.tables("chunks"))


def test_a_path_leaves_out_files(large: Any) -> None:
    """A large array's query opens its own files, a small one's those that small ones share."""
    everything = scanned(large.sql("SELECT sum(offset) FROM w_chunks"))
    wind = scanned(large.sql("SELECT sum(length) FROM w_chunks WHERE path = '/wind'"))
    small = scanned(large.sql("SELECT sum(length) FROM w_chunks WHERE path = '/small-3-1'"))
    summary = scanned(large.sql("SELECT chunk_count FROM w_arrays WHERE path = '/wind'"))

    assert everything == (2 * LARGE_FILES + 6, 2 * 260_000 + 18 * 20)
    assert wind == (LARGE_FILES, 260_000)
    assert small == (6, 18 * 20)
    assert summary == wind


def test_a_box_leaves_out_files_and_row_groups(large: Any) -> None:
    """Only the files whose extents meet it are opened, and of these the row groups that can hold it are read."""
    one = scanned(
        large.sql("SELECT location FROM w_chunks_in('/wind', array(100, 7), array(101, 8))")
    )
    rows = large.sql("SELECT index FROM w_chunks_in('/wind', array(64, 999), array(67, 1000))")
    small = scanned(large.sql("SELECT length FROM w_chunks_in('/small-3-1', array(0), array(20))"))
    nothing = scanned(large.sql("SELECT length FROM w_chunks_in('/wind', array(300), array(400))"))

    assert one[0] == 1
    assert 0 < one[1] <= GROUP_ROWS
    assert sorted(row[0] for row in rows.collect()) == [[64, 999], [65, 999], [66, 999]]
    assert scanned(rows)[0] < LARGE_FILES
    assert small[0] == 1
    assert nothing == (0, 0)


@pytest.mark.parametrize(
    "condition",
    [
        "coord = w_coord_encode(w_chunk_of('/wind', array(100, 7)))",
        "coord = w_coord_encode(array(100, 7))",
        "coord >= w_coord_encode(array(100, 7)) AND coord < w_coord_encode(array(100, 8))",
    ],
)
def test_a_coordinate_leaves_out_row_groups(large: Any, condition: str) -> None:
    """Of sixteen row groups one is read; of an index, which cannot, all are."""
    query = f"SELECT index, location FROM w_chunks WHERE path = '/wind' AND {condition}"
    by_index = "SELECT index FROM w_chunks WHERE path = '/wind' AND index = array(100L, 7L)"
    files, rows = scanned(large.sql(query))

    assert (files, 0 < rows <= GROUP_ROWS) == (LARGE_FILES, True)
    assert [(row[0], row[1]) for row in large.sql(query).collect()] == [
        ([100, 7], "s3://b/wind/100.nc")
    ]
    assert scanned(large.sql(by_index)) == (LARGE_FILES, 260_000)
    assert [row[0] for row in large.sql(by_index).collect()] == [[100, 7]]


def test_counting_reads_no_columns(large: Any) -> None:
    """A count needs footers alone."""
    [(plan,)] = large.sql("EXPLAIN SELECT count(*) FROM w_chunks WHERE path = '/wind'").collect()

    assert "ReadSchema: struct<>" in plan


def test_coordinates_are_encoded_and_decoded(spark: Any, attached: str) -> None:
    """As the files have them, in every width and with many dimensions; what cannot be is an error."""
    edges = (0, 63, 64, 16383, 16384, 2**30 - 1, 2**30, 2**62 - 1)
    asked = ((), *((each,) for each in edges), edges, (*edges, 5, 70, 2**40), (1,) * 16)
    frame = spark.createDataFrame([(list(each),) for each in asked], "indices ARRAY<BIGINT>")
    frame.createOrReplaceTempView("asked")
    for source in (
        "asked",
        f"(SELECT array({', '.join(f'{each}L' for each in edges)}) AS indices)",
    ):
        rows = spark.sql(
            f"SELECT indices, c, {attached}_coord_decode(c) "
            f"FROM (SELECT indices, {attached}_coord_encode(indices) AS c FROM {source})"
        ).collect()
        assert len(rows) in {len(asked), 1}
        for indices, coord, again in rows:
            assert (bytes(coord), again) == (encode_one(tuple(indices)), indices)
    for wrong in ("-1", f"{2**62}L", "NULL", f"1, {2**62}L", "1" + ", 1" * 16):
        with pytest.raises(Exception, match=r"a chunk index is a number|up to 16 indices"):
            spark.sql(f"SELECT {attached}_coord_encode(array({wrong}))").collect()


BOXES: list[tuple[str, list[int | None], list[int | None]]] = [
    ("/virtual", [3, 4], [5, 9]),
    ("/virtual", [None, 28], [None, None]),
    ("/virtual", [29], []),
    ("/virtual", [], [1, None]),
    ("/virtual", [5, 5], [5, 9]),
    ("/virtual", [-7, 2**62], [2**63 - 1, 2**63 - 1]),
    ("/virtual", [0, 0, 0], [9, 9, 9]),
    ("/deep", [1, None, 1], [None, 3, 2, None, 3]),
    ("/sparse", [63], [4999]),
    ("/far", [70_000], [2**31 - 1]),
    ("/too many", [2**39, 2**39], [2**39 + 1]),
    ("/scalar", [], []),
    ("/empty", [], []),
    ("/it's none", [], []),
]


def _inside(index: list[int], lower: list[int | None], upper: list[int | None]) -> bool:
    if max(len(lower), len(upper)) > len(index):
        return False
    above = all(low is None or at >= low for at, low in zip(index, lower, strict=False))
    return above and all(top is None or at < top for at, top in zip(index, upper, strict=False))


def _longs(values: list[int | None]) -> str:
    listed = ", ".join("NULL" if each is None else f"{each}L" for each in values)
    return f"CAST(array({listed}) AS ARRAY<BIGINT>)"


def test_chunks_in_a_box(spark: Any, filled: Filled, attached: str) -> None:
    """A box of any shape gives the chunks in it: bounds may be missing, negative, beyond the grid, or too many."""
    rows = filled.repository.tables("chunks").to_pylist()
    parts = [
        f"SELECT {number} AS box, * FROM {attached}_chunks_in(cast(X'{path.encode().hex()}' AS STRING), "
        f"{_longs(lower)}, {_longs(upper)})"
        for number, (path, lower, upper) in enumerate(BOXES)
    ]
    found = spark.sql(" UNION ALL ".join(parts)).toArrow()
    boxes = found["box"].to_pylist()
    table = found.drop_columns(["box"]).cast(TABLES["chunks"])
    for number, (path, lower, upper) in enumerate(BOXES):
        mine = table.filter(pa.array([each == number for each in boxes]))
        expected = [
            row for row in rows if row["path"] == path and _inside(row["index"], lower, upper)
        ]
        assert rows_of(mine) == in_order(expected), (path, lower, upper)


def test_chunks_of_positions(spark: Any, filled: Filled, attached: str, both: str) -> None:
    """The chunk of an element is what the package says, in unequal grids too; none is null."""
    asked = [
        (path, [int(part) for part in place])
        for path, places in {
            "/unequal": itertools.product(range(-1, 11), range(8)),
            "/virtual": [(3, 29), (30, 0), (5,), (1, 1, 1)],
            "/sparse": [(4 * 4999 + 3,), (0,)],
            "/far": [(2**31 - 1, 99_999)],
            "/scalar": [()],
            "/no size": [(0, 0)],
            "/nothing": [(0,)],
        }.items()
        for place in places
    ]
    frame = spark.createDataFrame(asked, "path STRING, place ARRAY<BIGINT>")
    frame.createOrReplaceTempView("asked")
    found = spark.sql(
        f"SELECT path, place, {attached}_chunk_of(path, place), {both}_chunk_of('narrow', path, place) FROM asked"
    ).collect()
    assert len(found) == len(asked)
    session = filled.repository.readonly_session("main")
    for path, place, chunk, narrow_chunk in found:
        view = session.find_array(path)
        expected = None
        if view is not None and len(place) == len(view.grid.axes):
            lengths = [axis.extent for axis in view.grid.axes]
            if all(0 <= at < length for at, length in zip(place, lengths, strict=True)):
                expected = list(view.grid.chunk_of(place))
        assert chunk == expected, (path, place)
        assert narrow_chunk == (None if path == "/far" else expected)
    coord = f"{attached}_coord_encode({attached}_chunk_of('/virtual', array(3, 4)))"
    query = f"SELECT index FROM {attached}_chunks WHERE path = '/virtual' AND coord = {coord}"
    assert [row[0] for row in spark.sql(query).collect()] == [[3, 4]]
    query = f"SELECT repository, index FROM {both}_chunks_in('/virtual', array(3, 4), array(4, 5))"
    rows = sorted(tuple(row) for row in spark.sql(query).collect())
    assert rows == [(LITERAL, [3, 4]), ("narrow", [3, 4])]


@pytest.mark.parametrize("form", list(itertools.product([0, WIDE], [0, HAS_CHECKS], [0, HAS_CRC])))
def test_columns_are_declared_as_spark_reads_them(
    spark: Any, tmp_path: Path, form: tuple[int, int, int]
) -> None:
    """Manifests are opened with types that are not looked up in them: the ones that would be found there."""
    schema = schema_of(sum(form))
    pq.write_table(schema.empty_table(), tmp_path / "m.parquet")
    declared = ", ".join(f"`{each.name}` {SPARK.type(each.type)}" for each in schema)
    found = spark.read.parquet(str(tmp_path / "m.parquet")).schema

    assert spark.createDataFrame([], declared).schema.simpleString() == found.simpleString()


def test_views_stay_until_they_are_refreshed(spark: Any, tmp_path: Path) -> None:
    """A commit is seen after ``refresh``, by frames made after it; ``detach`` leaves nothing."""
    before = {row["viewName"] for row in spark.sql("SHOW VIEWS").collect()}
    repository = new_repository(tmp_path / "r")
    icechunk_arrow.spark.attach(spark, tmp_path / "r", "live")
    for name in TABLES:
        empty = by_view(spark, f"live_{name}", TABLES[name])
        assert rows_of(empty) == rows_of(repository.tables(name)), name
    frame = spark.table("live_nodes")
    session = repository.writable_session("main")
    add_array(session, "new", (3,))
    newest = session.commit("a node")

    assert spark.table("live_nodes").count() == 0
    shown = icechunk_arrow.spark.refresh(spark, "live")
    assert list(shown.snapshots.values()) == [newest]
    assert spark.table("live_nodes").count() == 2
    assert frame.count() == 0
    assert spark.table("live_chunks").count() == spark.table("live_files").count() == 0
    icechunk_arrow.spark.detach(spark, "live")
    assert {row["viewName"] for row in spark.sql("SHOW VIEWS").collect()} == before
    assert not spark.catalog.functionExists("live_coord_encode")
    assert not spark.catalog.functionExists("live_chunks_in")
    with pytest.raises(Exception, match="live_known"):
        spark.sql("SELECT live_known")
    for action in (icechunk_arrow.spark.detach, icechunk_arrow.spark.refresh):
        with pytest.raises(NotFoundError, match="live"):
            action(spark, "live")


def test_a_file_that_has_gone_is_an_error(spark: Any, tmp_path: Path) -> None:
    """Even where the session ignores missing files: in a query, and with the snapshot's name in ``attach``."""
    repository = new_repository(tmp_path / "r")
    session = repository.writable_session("main")
    add_array(session, "a", (40,))
    refer(session, "/a", [(n,) for n in range(40)])
    found = session.commit("chunks")
    icechunk_arrow.spark.attach(spark, repository, "gone")
    manifest = repository.tables("manifests")["manifest"].to_pylist()[-1]
    (tmp_path / f"r/i/{manifest}.parquet").unlink()

    with pytest.raises(Exception, match=manifest):
        spark.sql("SELECT sum(length) FROM gone_chunks").collect()
    icechunk_arrow.spark.detach(spark, "gone")
    with pytest.raises(CorruptFileError, match=f"(?s){manifest}.*{found}"):
        icechunk_arrow.spark.attach(spark, repository, "gone")
    assert not spark.catalog.tableExists("gone_nodes")


def test_attaching_refuses_what_cannot_be(
    spark: Any, attached: str, filled: Filled, tmp_path: Path
) -> None:
    """Names that are taken or no names, nothing to attach, and places that Spark cannot read."""
    with pytest.raises(AlreadyExistsError, match="varied_nodes"):
        icechunk_arrow.spark.attach(spark, filled.repository, attached)
    for name in ("", "a b", "a`; drop", "${x}"):
        with pytest.raises(InvalidInputError, match="letters"):
            icechunk_arrow.spark.attach(spark, filled.repository, name)
    with pytest.raises(InvalidInputError, match="at least one"):
        icechunk_arrow.spark.attach(spark, {}, "none")
    held = new_repository(f"memory://{tmp_path.name}")
    with pytest.raises(InvalidInputError, match="memory"):
        icechunk_arrow.spark.attach(spark, held, "none")
    new_repository(tmp_path / "a:b[c]")
    with pytest.raises(InvalidInputError, match="colon"):
        icechunk_arrow.spark.attach(spark, tmp_path / "a:b[c]", "none")


def test_the_session_keeps_its_settings(spark: Any, tmp_path: Path) -> None:
    """Attaching sets how files are listed, and sets it back."""
    name = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(name)
    new_repository(tmp_path / "r")
    icechunk_arrow.spark.attach(spark, tmp_path / "r", "settings")
    icechunk_arrow.spark.detach(spark, "settings")

    assert spark.conf.get(name) == before == "32"


def test_buckets_have_the_name_that_spark_knows() -> None:
    """What others call s3 is s3a to Spark; every other place stays."""
    assert spark_root("s3://bucket/s3://x") == "s3a://bucket/s3://x"
    assert spark_root("file:///s3") == "file:///s3"
