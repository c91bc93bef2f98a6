"""Reads a repository with Spark alone, as schemas/README.md says; prints what it holds as JSON,
one line for each repository.

Everything is read by Spark's own readers: text, Parquet, and binaryFile for the bytes of chunks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from tests.conformance.foreign.coordinates import indexes

NEWEST = """
select get_json_object(value, '$.snapshot')
from text.`{root}/refs/branch.main` order by _metadata.file_name limit 1"""

NODES = """
select cast(id as bigint) as id, path, cast(array_metadata.shape as array<bigint>) as shape, inventories,
       decode(inline_attrs, 'UTF-8') as attributes, attrs_reference.attrs_file as attrs_file
from parquet.`{root}/s/{snapshot}.parquet`"""

ENTRIES = """
select id as array_id, path, entry.inventory_file as file, entry.flags & 112 as form
from (select id, path, explode(inventories) as entry from nodes)"""

ROWS = """
select rows.array_id, path, coord, inline_data, chunk_file, `offset`, cast(length as bigint) as length
from rows join nodes on nodes.id = rows.array_id
where rows.array_id in (select array_id from entries where form = {form})"""

BYTES = """
select path, hex(coord), chunk_file, cast(`offset` as bigint), length,
       hex(case when inline_data is not null then inline_data
                else substring(content, try_cast(`offset` + 1 as int), try_cast(length as int)) end)
from chunks left join files on files.name = chunks.chunk_file"""


def main(spark: Any, root: str) -> dict[str, Any]:
    snapshot = spark.sql(NEWEST.format(root=root)).first()[0]
    spark.sql(NODES.format(root=root, snapshot=snapshot)).createOrReplaceTempView("nodes")
    spark.sql(ENTRIES).createOrReplaceTempView("entries")
    chunks: Any = None
    for (form,) in spark.sql("select distinct form from entries").collect():
        files = spark.sql(f"select distinct file from entries where form = {form}").collect()
        spark.read.parquet(*(f"{root}/i/{name}" for (name,) in files)).createOrReplaceTempView(
            "rows"
        )
        part = spark.sql(ROWS.format(form=form))
        chunks = part if chunks is None else chunks.union(part)
    chunks.createOrReplaceTempView("chunks")
    names = [name for (name,) in spark.sql(
        "select distinct chunk_file from chunks where chunk_file is not null and length < 2147483648"
    ).collect()]  # fmt: skip
    places = [name if "/" in name else f"{root}/c/{name}" for name in names]
    blobs = spark.read.format("binaryFile").load(places)
    blobs.createOrReplaceTempView("blobs")
    spark.sql(
        "select content, case when path like '%/c/%' then element_at(split(path, '/'), -1)"
        " else regexp_replace(path, '^file:/+', 'file:///') end as name from blobs"
    ).createOrReplaceTempView("files")
    attributes: dict[tuple[str, int], str] = {}
    for (file,) in spark.sql(
        "select distinct attrs_file from nodes where attrs_file is not null"
    ).collect():
        table = spark.read.parquet(f"{root}/a/{file}")
        rows = table.selectExpr("id", "decode(attributes, 'UTF-8')").collect()
        attributes |= {(file, number): text for number, text in rows}
    found: dict[str, Any] = {}
    for number, path, shape, inline, file in spark.sql(
        "select id, path, shape, attributes, attrs_file from nodes"
    ).collect():
        text = inline if file is None else attributes[file, number]
        parsed = None if text is None else json.loads(text)
        found[path] = {"attributes": parsed, "shape": shape, "chunks": {}}
    for path, coord, file, offset, length, data in spark.sql(BYTES).collect():
        place = ",".join(map(str, indexes(bytes.fromhex(coord))))
        assert place not in found[path]["chunks"], "a chunk stands there twice"
        large = length >= 1 << 31
        found[path]["chunks"][place] = [file, offset, length] if large else data.lower()
    return found


session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
for place in sys.argv[1:]:
    print(json.dumps(main(session, place)))
session.stop()
