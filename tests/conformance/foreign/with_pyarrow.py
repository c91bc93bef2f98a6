"""Reads a repository with pyarrow alone, as schemas/README.md says; prints what it holds as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from tests.conformance.foreign.coordinates import indexes

MOST = 1 << 31


def main(root: Path) -> dict[str, Any]:
    newest = min((root / "refs/branch.main").iterdir())
    snapshot = json.loads(newest.read_bytes())["snapshot"]
    found = {}
    for node in pq.read_table(root / f"s/{snapshot}.parquet").to_pylist():
        attributes = node["inline_attrs"]
        if (reference := node["attrs_reference"]) is not None:
            table = pq.read_table(root / "a" / reference["attrs_file"])
            assert table["id"][reference["row"]].as_py() == node["id"]
            attributes = table["attributes"][reference["row"]].as_py()
        found[node["path"]] = {
            "attributes": None if attributes is None else json.loads(attributes),
            "shape": node["array_metadata"] and node["array_metadata"]["shape"],
            "chunks": dict(chunks(root, node)),
        }
    return found


def chunks(root: Path, node: dict[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for entry in node["inventories"] or ():
        table = pq.read_table(root / "i" / entry["inventory_file"])
        for row in table.slice(entry["row"]).to_pylist():
            if row["array_id"] != node["id"]:
                break
            place = ",".join(map(str, indexes(row["coord"])))
            found.append((place, payload(root, row)))
    assert len(dict(found)) == len(found), "a chunk stands there twice"
    return found


def payload(root: Path, row: dict[str, Any]) -> Any:
    if row["inline_data"] is not None:
        assert len(row["inline_data"]) == row["length"]
        return row["inline_data"].hex()
    name = row["chunk_file"]
    if row["length"] >= MOST:
        return [name, row["offset"], row["length"]]
    path = Path(urlsplit(name).path) if "/" in name else root / "c" / name
    with path.open("rb") as file:
        file.seek(row["offset"])
        return file.read(row["length"]).hex()


print(json.dumps(main(Path(sys.argv[1]))))
