"""Inspection queries have the same rows in Spark, with parameters bound as Spark binds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icechunk_arrow.spark
from icechunk_arrow.tables.inspecting import made_relations
from icechunk_arrow.tables.inspections import checked_parameters, find_inspection
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.model import in_order
from tests.sql.repositories import STRANGE, Filled, fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.spark
BUCKET = f"s3://bucket/{STRANGE}/".replace("\n", "")
OBSERVED = pa.table(
    {
        "location": [f"{BUCKET}{number}.nc" for number in range(3)],
        "etag": ["another", None, None],
        "size_bytes": pa.array([None, 200, 8000], pa.int64()),
    }
)
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("array_sizes", {}),
    ("missing_chunks", {}),
    ("missing_chunks", {"path": "/sparse"}),
    ("gaps", {}),
    ("gaps", {"dimension": 1}),
    ("gaps", {"path": "/deep", "dimension": 4}),
    ("coverage_by_file", {"path": f"/{STRANGE}/packed"}),
    ("coverage_by_file", {"path": "/virtual", "dimension": 1}),
    ("compression", {}),
    ("compression_by_codec", {}),
    ("fragmentation", {}),
    ("small_files", {"smaller_than_bytes": 101}),
    ("virtual_storage", {"depth": 0}),
    ("virtual_storage", {"depth": 2}),
    ("duplicate_ranges", {}),
    ("overlapping_ranges", {}),
    ("largest_chunks", {"count": 7}),
    ("largest_chunks", {"path": "/virtual", "count": 1000}),
    ("growth", {}),
    ("growth_by_array", {}),
    ("changes_by_array", {"since": "after chunks"}),
    ("references_to", {"location": BUCKET}),
    ("references_to", {"location": "file://"}),
    ("references_to", {"location": "' OR 1=1 --"}),
    ("changed_sources", {"observed_files": OBSERVED}),
    ("manifest_health", {}),
    ("unreferenced_files", {"observed_files": pa.table({"location": ["file:///stray", "s3://x"]})}),
]
EMPTY = {("references_to", "' OR 1=1 --")}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(tmp_path_factory.mktemp("inspect") / "it's [a] *; folder", wide=True)


@pytest.fixture(scope="module")
def attached(spark: Any, filled: Filled) -> Iterator[str]:
    icechunk_arrow.spark.attach(spark, filled.repository, "inspected")
    yield "inspected"
    icechunk_arrow.spark.detach(spark, "inspected")


def relation(filled: Filled, name: str, made: dict[str, pa.Table]) -> pa.Table:
    """A relation that no view is."""
    if name in made:
        return made[name]
    assert name == "all_rows", name
    rows = {
        (row["manifest"], row["node_id"], row["coord"]): row
        for each in filled.snapshots
        for row in filled.repository.tables("chunks", snapshot_id=each).to_pylist()
    }
    return pa.Table.from_pylist(list(rows.values()), schema=TABLES["chunks"])


@pytest.mark.parametrize(("name", "given"), ASKED)
def test_spark_gives_the_same(
    spark: Any, filled: Filled, attached: str, tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    """Rows and types over the attached views are those of ``repo.inspect``."""
    inspection = find_inspection(name)
    values = checked_parameters(inspection, given)
    made, _ = made_relations(filled.repository._context, inspection, filled.snapshots[-1], values)
    names = {"item_at": "try_element_at"}
    relations = {*inspection.relations, *({"observed_files"} & set(values))}
    for each in relations:
        if each in TABLES and each not in made:
            names[each] = f"{attached}_{each}"
            continue
        pq.write_table(relation(filled, each, made), tmp_path / f"{each}.parquet")
        spark.read.parquet(str(tmp_path / f"{each}.parquet")).createOrReplaceTempView(f"t_{each}")
        names[each] = f"t_{each}"
    bound = {}
    for parameter in inspection.parameters:
        if parameter.sql_type is not None:
            names[parameter.name] = f"CAST(:{parameter.name} AS {parameter.sql_type})"
            bound[parameter.name] = values[parameter.name]
    found = spark.sql(inspection.query(names), args=bound).toArrow()
    rows = in_order(found.cast(inspection.columns).to_pylist())

    assert found.column_names == inspection.columns.names
    assert bool(rows) != ((name, given.get("location")) in EMPTY)
    assert rows == in_order(filled.repository.inspect(name, **given).to_pylist())
