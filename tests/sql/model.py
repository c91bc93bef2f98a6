"""What the tables of a repository must hold, worked out slowly: row by row, from the files themselves.

Reads with pyarrow and JSON alone, as schemas/README.md says; nothing of the package decides what is in a row.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import yaml

from tests.conformance.foreign.coordinates import indexes

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
ITEM_BYTES = {"uint8": 1, "int32": 4, "float64": 8, "numpy.datetime64": 8}


@dataclass(frozen=True)
class Model:
    """One repository on a local disk."""

    root: Path

    def table(self, name: str, snapshot: str, before: str = "") -> list[Row]:
        """The rows of a table of a snapshot; of its changes since another one."""
        if name == "changes":
            return self.changes(before, snapshot)
        if name in {"refs", "config"}:
            rows: list[Row] = getattr(self, name)()
            return rows
        rows = getattr(self, name)(snapshot)
        return (
            rows
            if name in {"snapshots", "operations"}
            else [{**row, "snapshot": snapshot} for row in rows]
        )

    # -- one snapshot

    def _structure(self, snapshot: str) -> list[Row]:
        rows: list[Row] = pq.read_table(self.root / f"s/{snapshot}.parquet").to_pylist()
        return rows

    def _footer(self, snapshot: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = pq.read_metadata(self.root / f"s/{snapshot}.parquet").metadata
        return found

    def nodes(self, snapshot: str) -> list[Row]:
        patches = json.loads(self._footer(snapshot).get(b"icechunk.extensions", b"{}"))
        return [
            self._node(row, patches.get(str(row["id"]), {}).get("set", {}))
            for row in self._structure(snapshot)
        ]

    def _node(self, row: Row, patch: Row) -> Row:
        path = row["path"]
        array = row["array_metadata"]
        found: Row = {
            "path": path,
            "name": path.split("/")[-1],
            "parent": None if path == "/" else "/".join(path.split("/")[:-1]) or "/",
            "type": row["type"],
            "node_id": row["id"],
            "attributes": self._attributes(row),
        }
        names = (
            "shape",
            "chunk_shape",
            "grid",
            "data_type",
            "codecs",
            "fill_value",
            "dimension_names",
        )
        if array is None:
            return found | dict.fromkeys((*names, "grid_chunk_count", "logical_bytes"))
        kind = patch.get("data_type", array["data_type"])
        edges = array["chunk_grid"]["configuration"]["chunk_shape"]
        counts = [-(-n // edge) for n, edge in zip(array["shape"], edges, strict=True)]
        if "chunk_grid" in patch:
            counts = [
                _count(n, spec)
                for n, spec in zip(
                    array["shape"],
                    patch["chunk_grid"]["configuration"]["chunk_shapes"],
                    strict=True,
                )
            ]
        size = ITEM_BYTES.get(kind if isinstance(kind, str) else kind["name"])
        codecs = [
            {"name": c["name"]}
            if c["configuration"] is None
            else {"name": c["name"], "configuration": json.loads(c["configuration"])}
            for c in array["codecs"]
        ]
        return found | {
            "shape": array["shape"],
            "chunk_shape": edges,
            "grid": array["chunk_grid"]["name"],
            "data_type": kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":")),
            "codecs": json.dumps(
                patch.get("codecs", codecs), separators=(",", ":"), ensure_ascii=False
            ),
            "fill_value": array["fill_value"].decode(),
            "dimension_names": array["dimension_names"],
            "grid_chunk_count": prod(counts) if prod(counts) < 2**63 else None,
            "logical_bytes": None
            if size is None or prod(array["shape"]) * size >= 2**63
            else prod(array["shape"]) * size,
        }

    def _attributes(self, row: Row) -> str | None:
        reference = row["attrs_reference"]
        data = row["inline_attrs"]
        if reference is not None:
            data = pq.read_table(self.root / "a" / reference["attrs_file"])["attributes"][
                reference["row"]
            ].as_py()
        return None if data is None else data.decode()

    def attribute_files(self, snapshot: str) -> set[str]:
        """Names of the files with large attributes."""
        references = [row["attrs_reference"] for row in self._structure(snapshot)]
        return {each["attrs_file"] for each in references if each is not None}

    def _rows(self, snapshot: str) -> list[Row]:
        """Every chunk, with its bytes where they are inline."""
        found = []
        for node in self._structure(snapshot):
            for entry in node["inventories"] or ():
                table = pq.read_table(self.root / "i" / entry["inventory_file"]).to_pylist()
                for row in table[entry["row"] :]:
                    if row["array_id"] != node["id"]:
                        break
                    found.append(self._chunk(node, entry, row))
        return found

    def _chunk(self, node: Row, entry: Row, row: Row) -> Row:
        file = row["chunk_file"]
        kind = "inline" if file is None else "virtual" if "/" in file else "native"
        return {
            "path": node["path"],
            "node_id": node["id"],
            "index": indexes(row["coord"]),
            "coord": row["coord"],
            "kind": kind,
            "location": f"file://{self.root}/c/{file}" if kind == "native" else file,
            "offset": row["offset"],
            "length": row["length"],
            "etag": row.get("etag"),
            "last_modified": row.get("last_modified"),
            "crc32c": row.get("crc32c"),
            "manifest": entry["inventory_file"].removesuffix(".parquet"),
            "inline_data": row["inline_data"],
        }

    def chunks(self, snapshot: str) -> list[Row]:
        return [
            {k: v for k, v in row.items() if k != "inline_data"} for row in self._rows(snapshot)
        ]

    def arrays(self, snapshot: str) -> list[Row]:
        chunks = defaultdict(list)
        for row in self.chunks(snapshot):
            chunks[row["path"]].append(row)
        found = []
        for node in self.nodes(snapshot):
            if node["type"] == "group":
                continue
            rows = chunks[node["path"]]
            kinds = Counter(row["kind"] for row in rows)
            stored = sum(row["length"] for row in rows)
            logical, grid = node["logical_bytes"], node["grid_chunk_count"]
            ratio = None
            if stored and grid and logical is not None:
                ratio = float(logical) * len(rows) / grid / stored
            found.append(
                {
                    "path": node["path"],
                    "node_id": node["node_id"],
                    "grid_chunk_count": grid,
                    "chunk_count": len(rows),
                    "missing": None if grid is None else grid - len(rows),
                    "inline_chunks": kinds["inline"],
                    "native_chunks": kinds["native"],
                    "virtual_chunks": kinds["virtual"],
                    "stored_bytes": stored,
                    "logical_bytes": logical,
                    "compression_ratio": ratio,
                    "files": len({row["location"] for row in rows} - {None}),
                    "manifests": len({row["manifest"] for row in rows}),
                }
            )
        return found

    def manifests(self, snapshot: str) -> list[Row]:
        """All but the set and its limit, which the settings decide."""
        held = defaultdict(list)
        for node in self._structure(snapshot):
            for entry in node["inventories"] or ():
                name = entry["inventory_file"]
                ids = pq.read_table(self.root / "i" / name, columns=["array_id"])[
                    "array_id"
                ].to_pylist()
                extent = [{"start": start, "stop": stop} for start, stop in entry["extent"]]
                held[name].append(
                    {
                        "path": node["path"],
                        "node_id": node["id"],
                        "row": entry["row"],
                        "row_count": ids.count(node["id"]),
                        "extent": extent,
                        "dense": bool(entry["flags"] & 1),
                        "has_inline": bool(entry["flags"] & 2),
                        "has_native": bool(entry["flags"] & 4),
                        "has_virtual": bool(entry["flags"] & 8),
                    }
                )
        return [
            {
                "manifest": name.removesuffix(".parquet"),
                "size_bytes": (self.root / "i" / name).stat().st_size,
                "row_count": sum(each["row_count"] for each in arrays),
                "array_count": len(arrays),
                "arrays": sorted(arrays, key=lambda each: each["row"]),
            }
            for name, arrays in held.items()
        ]

    def files(self, snapshot: str) -> list[Row]:
        by_file = defaultdict(list)
        for row in self.chunks(snapshot):
            if row["location"] is not None:
                by_file[row["location"]].append(row)
        return [
            {
                "location": location,
                "kind": rows[0]["kind"],
                "bytes_referenced": sum(row["length"] for row in rows),
                "chunk_count": len(rows),
                "array_count": len({row["node_id"] for row in rows}),
                "first_byte": min(row["offset"] for row in rows),
                "last_byte": max(row["offset"] + row["length"] for row in rows) - 1,
            }
            for location, rows in by_file.items()
        ]

    # -- a history

    def _facts(self, snapshot: str) -> Row:
        found: Row = json.loads(self._footer(snapshot)[b"icechunk.snapshot"])
        return found

    def history(self, snapshot: str) -> list[str]:
        """Ids of a snapshot and all before it, newest first."""
        found = [snapshot]
        while history := self._facts(found[-1])["short_term_history"]:
            found.append(history[0]["id"])
        return found

    def snapshots(self, snapshot: str) -> list[Row]:
        found = []
        for each, parent in pairwise([*self.history(snapshot), None]):
            assert each is not None
            facts = self._facts(each)
            manifests = self.manifests(each)
            found.append(
                {
                    "snapshot": each,
                    "parent": parent,
                    "written_at": datetime.fromisoformat(facts["metadata"]["written_at"]),
                    "message": facts["metadata"]["message"],
                    "properties": json.dumps(
                        facts["properties"], ensure_ascii=False, separators=(",", ":")
                    ),
                    "branch": facts["branch"],
                    "sequence": facts["sequence"],
                    "chunk_count": len(self._rows(each)),
                    "stored_bytes": sum(row["length"] for row in self._rows(each)),
                    "manifest_count": len(manifests),
                    "manifest_bytes": sum(row["size_bytes"] for row in manifests),
                }
            )
        return found

    def operations(self, snapshot: str) -> list[Row]:
        found = []
        for each in self.history(snapshot)[:-1]:
            for row in pq.read_table(self.root / f"t/{each}.parquet").to_pylist()[1:]:
                extent, coord, manifest = row["extent"], row["coord"], row["manifest"]
                found.append(
                    {
                        "snapshot": each,
                        "ordinal": row["id"],
                        **{
                            name: row[name]
                            for name in (
                                "operation",
                                "effect",
                                "path",
                                "from_path",
                                "node_id",
                                "node_type",
                            )
                        },
                        "index": None if coord is None else indexes(coord),
                        "coord": coord,
                        "manifest": None if manifest is None else manifest.removesuffix(".parquet"),
                        "extent": None
                        if extent is None
                        else [{"start": a, "stop": b} for a, b in extent],
                        "chunk_count": row["chunk_count"],
                        **{name: row.get(name) for name in ("keys", "shape_before", "shape_after")},
                    }
                )
        return found

    def refs(self) -> list[Row]:
        found = []
        for folder in (self.root / "refs").iterdir():
            kind, _, name = folder.name.partition(".")
            if kind == "tag":
                if not (folder / "deleted.json").exists():
                    snapshot = json.loads((folder / "ref.json").read_bytes())["snapshot"]
                    found.append(
                        {"type": "tag", "name": name, "snapshot": snapshot, "sequence": None}
                    )
                continue
            entries = sorted(folder.glob("*.json"))
            if not entries:  # not ours
                continue
            newest = json.loads(entries[0].read_bytes())
            if not newest.get("deleted"):
                found.append(
                    {
                        "type": kind,
                        "name": name,
                        "snapshot": newest["snapshot"],
                        "sequence": len(entries) - 1,
                    }
                )
        return found

    def config(self) -> list[Row]:
        found: list[Row] = []

        def walk(above: str, value: Any) -> None:
            if isinstance(value, dict) and value:
                for name, each in value.items():
                    walk(f"{above}.{name}" if above else name, each)
            else:
                found.append(
                    {
                        "key": above,
                        "value": json.dumps(value, ensure_ascii=False, separators=(",", ":")),
                    }
                )

        walk("", yaml.safe_load((self.root / "config.yaml").read_bytes()))
        return found

    # -- two snapshots

    def changes(self, before: str, after: str) -> list[Row]:
        found = [
            {
                **dict.fromkeys(CHANGE_COLUMNS),
                **row,
            }
            for row in self._node_changes(before, after)
        ]
        paths = {node["node_id"]: node["path"] for node in self.nodes(after)}
        sides = [
            {(row["node_id"], row["coord"]): row for row in self._rows(each)}
            for each in (before, after)
        ]
        for key in sides[0].keys() | sides[1].keys():
            old, new = sides[0].get(key), sides[1].get(key)
            some = new or old
            assert some is not None
            if old is not None and new is not None and _same(old, new):
                continue
            change = (
                "chunk_added"
                if old is None
                else "chunk_removed"
                if new is None
                else "chunk_replaced"
            )
            found.append(
                {
                    "path": paths.get(some["node_id"], some["path"]),
                    "change": change,
                    "node_id": some["node_id"],
                    "node_type": "array",
                    "from_path": None,
                    "index": some["index"],
                    "coord": some["coord"],
                    **{
                        f"{side}_{name}": None if row is None else row[name]
                        for side, row in (("before", old), ("after", new))
                        for name in ("kind", "location", "offset", "length")
                    },
                }
            )
        return [{**row, "from_snapshot": before, "to_snapshot": after} for row in found]

    def _node_changes(self, before: str, after: str) -> list[Row]:
        sides = [{node["node_id"]: node for node in self.nodes(each)} for each in (before, after)]
        found = []
        for node_id in sides[0].keys() | sides[1].keys():
            old, new = sides[0].get(node_id), sides[1].get(node_id)
            some = new or old
            assert some is not None
            what = {
                "path": some["path"],
                "node_id": node_id,
                "node_type": some["type"],
                "from_path": None,
            }
            if old is None or new is None:
                found.append({**what, "change": "created" if old is None else "deleted"})
                continue
            if old["path"] != new["path"]:
                found.append({**what, "change": "moved", "from_path": old["path"]})
            names = (
                "shape",
                "chunk_shape",
                "grid",
                "data_type",
                "codecs",
                "fill_value",
                "dimension_names",
            )
            if any(old[name] != new[name] for name in names):
                found.append({**what, "change": "metadata"})
            if old["attributes"] != new["attributes"]:
                found.append({**what, "change": "attributes"})
        return found


CHANGE_COLUMNS = (
    *("path", "change", "node_id", "node_type", "from_path", "index", "coord"),
    *("before_kind", "before_location", "before_offset", "before_length"),
    *("after_kind", "after_location", "after_offset", "after_length"),
)


def _same(old: Row, new: Row) -> bool:
    names = ("kind", "location", "offset", "length", "etag", "last_modified", "inline_data")
    return all(old[name] == new[name] for name in names)


def _count(length: int, spec: Any) -> int:
    """How many chunks of given edges it takes to cover a length."""
    if isinstance(spec, int):
        return -(-length // spec)
    edges = [
        edge
        for each in spec
        for edge in ([each[0]] * each[1] if isinstance(each, list) else [each])
    ]
    covered = count = 0
    while covered < length:
        covered, count = covered + edges[count], count + 1
    return count


def in_order(rows: list[Row]) -> list[Row]:
    """Rows in an order that does not depend on where they come from."""
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
