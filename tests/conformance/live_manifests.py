"""The live manifests of a snapshot as a stranger sees them: by pyarrow and DuckDB, without the package.

Owns the invariant that each chunk stands in exactly one live manifest, where its structure file says.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    Place = tuple[int, ...]
    Chunks = Mapping[str, set[Place]]

__all__ = ["LiveManifests", "place_of"]

DENSE = 1


@dataclass
class LiveManifests:
    """The manifests that a structure file names, with their rows."""

    ids: dict[str, int]
    """Of arrays, by path."""
    entries: list[tuple[int, dict[str, Any]]]
    """Array id and inventory."""
    rows: dict[str, list[tuple[int, Place]]]
    """By file name: array id and coordinates."""

    @classmethod
    def read(
        cls,
        get: Callable[[str], bytes],
        snapshot_id: str,
        known: dict[str, list[tuple[int, Place]]],
    ) -> LiveManifests:
        """Read a structure file and the manifests that it names; files once read are not read again."""
        nodes = pq.read_table(io.BytesIO(get(f"s/{snapshot_id}.parquet"))).to_pylist()
        entries = [(node["id"], each) for node in nodes for each in node["inventories"] or ()]
        names = {each["inventory_file"] for _, each in entries}
        for name in names - known.keys():
            table = pq.read_table(io.BytesIO(get(f"i/{name}")), columns=["array_id", "coord"])
            ids, coords = table["array_id"].to_pylist(), table["coord"].to_pylist()
            known[name] = list(zip(ids, map(place_of, coords), strict=True))
        return cls(
            ids={node["path"]: node["id"] for node in nodes if node["type"] == "array"},
            entries=entries,
            rows={name: known[name] for name in sorted(names)},
        )

    def check(self, chunks: Chunks) -> None:
        """Each chunk in one row of one manifest, within the extent that the inventory gives."""
        assert self.ids.keys() == chunks.keys()
        every = [row for rows in self.rows.values() for row in rows]
        assert len(every) == len(set(every)), "a chunk stands in two rows"
        assert set(every) == {(self.ids[path], p) for path, held in chunks.items() for p in held}
        said = [(array_id, each["inventory_file"]) for array_id, each in self.entries]
        assert len(said) == len(set(said))
        assert set(said) == {(i, name) for name, rows in self.rows.items() for i, _ in rows}
        for array_id, each in self.entries:
            self._check_entry(array_id, each)

    def _check_entry(self, array_id: int, entry: Mapping[str, Any]) -> None:
        held = self.rows[entry["inventory_file"]]
        assert held == sorted(held)
        mine = [number for number, (owner, _) in enumerate(held) if owner == array_id]
        assert mine == list(range(entry["row"], entry["row"] + len(mine)))
        places = [held[number][1] for number in mine]
        extent = [tuple(each) for each in entry["extent"]]
        assert extent == [(min(i), max(i) + 1) for i in zip(*places, strict=True)]
        full = list(itertools.product(*(range(start, stop) for start, stop in extent)))
        assert bool(entry["flags"] & DENSE) == (places == full)

    def meets(self, path: str, places: Iterable[Place]) -> bool:
        """Whether the smallest extent around places of an array meets that of some manifest."""
        around = [(min(i), max(i) + 1) for i in zip(*places, strict=True)]
        return any(
            all(a < d and c < b for (a, b), (c, d) in zip(around, each["extent"], strict=True))
            for array_id, each in self.entries
            if array_id == self.ids.get(path)
        )

    def count_by_duckdb(self, get: Callable[[str], bytes], folder: Path) -> tuple[int, int]:
        """Rows in all live files, and different chunks among them."""
        files = []
        for name in self.rows:
            file = folder / name
            file.write_bytes(get(f"i/{name}"))
            files.append(str(file))
        if not files:
            return 0, 0
        with duckdb.connect() as connection:
            found = connection.execute(
                "select count(*), count(distinct (array_id, coord)) from read_parquet($files)",
                {"files": files},
            ).fetchone()
        assert found is not None
        return found[0], found[1]


def place_of(coord: bytes) -> Place:
    """Read the integers of RFC 9000, section 16."""
    found = []
    while coord:
        size = 1 << (coord[0] >> 6)
        found.append(int.from_bytes(coord[:size], "big") & ((1 << (8 * size - 2)) - 1))
        coord = coord[size:]
    return tuple(found)
