"""Reads a repository with DuckDB alone, as schemas/README.md says; prints what it holds as JSON.

Everything is read by SQL: references, Parquet files, and the bytes of chunks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import duckdb

from tests.conformance.foreign.coordinates import indexes

NEWEST = """
select content::json->>'snapshot' from read_text('{root}/refs/branch.main/*.json')
order by filename limit 1"""

NODES = """
create table nodes as
select id, path, array_metadata.shape as shape, inventories, decode(inline_attrs) as attributes,
       attrs_reference.attrs_file as attrs_file, attrs_reference.row as attrs_row
from read_parquet('{root}/s/{snapshot}.parquet')"""

ENTRIES = """
create table entries as
select id as array_id, path, entry.inventory_file as file, entry.flags & 112 as form
from (select id, path, unnest(inventories) as entry from nodes)"""

ROWS = """
insert into chunks
select array_id, coord, inline_data, chunk_file, "offset", length
from read_parquet([{files}]) as rows
semi join entries on entries.array_id = rows.array_id and entries.form = {form}"""

BYTES = """
select path, coord, hex(inline_data) as inline, chunk_file, "offset", length
from chunks join nodes on nodes.id = chunks.array_id"""

PART = """
select hex(from_hex(substr(hex(content), 1 + 2 * ?, 2 * ?))) from read_blob(?)"""


def main(root: str) -> dict[str, Any]:
    con = duckdb.connect()
    snapshot = one(con, NEWEST.format(root=root))
    con.execute(NODES.format(root=root, snapshot=snapshot))
    con.execute(ENTRIES)
    con.execute(
        "create table chunks (array_id uinteger, coord blob, inline_data blob, chunk_file varchar,"
        ' "offset" ubigint, length ubigint)'
    )
    for (form,) in con.execute("select distinct form from entries").fetchall():
        files = con.execute("select distinct file from entries where form = ?", [form]).fetchall()
        names = ", ".join(f"'{root}/i/{name}'" for (name,) in files)
        con.execute(ROWS.format(files=names, form=form))
    found: dict[str, Any] = {}
    for path, shape, inline, file, row in con.execute(
        "select path, shape, attributes, attrs_file, attrs_row from nodes"
    ).fetchall():
        text = inline
        if file is not None:
            text = one(
                con,
                f"select decode(attributes) from read_parquet('{root}/a/{file}',"
                f" file_row_number=true) where file_row_number = {row}",
            )
        attributes = None if text is None else json.loads(text)
        found[path] = {"attributes": attributes, "shape": shape, "chunks": {}}
    for path, coord, inline, file, offset, length in con.execute(BYTES).fetchall():
        place = ",".join(map(str, indexes(coord)))
        assert place not in found[path]["chunks"], "a chunk stands there twice"
        found[path]["chunks"][place] = payload(con, root, inline, file, offset, length)
    return found


def payload(con: Any, root: str, inline: str | None, file: str, offset: int, length: int) -> Any:
    if inline is not None:
        return inline.lower()
    if length >= 1 << 31:
        return [file, offset, length]
    place = file.removeprefix("file://") if "/" in file else f"{root}/c/{file}"
    return one(con, PART, offset, length, place).lower()


def one(con: Any, query: str, *values: Any) -> Any:
    return con.execute(query, list(values)).fetchone()[0]


print(json.dumps(main(sys.argv[1])))
