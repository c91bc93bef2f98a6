"""What DuckDB itself says of a query: which files, row groups and rows it read."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Scanned", "scanned"]


@dataclass(frozen=True)
class Scanned:
    """The reads of all Parquet scans of one query."""

    files: int
    row_groups: int
    rows: int
    columns: frozenset[str]


def scanned(con: Any, query: str) -> Scanned:
    """Run a query with DuckDB's profiler, and add up what its Parquet scans did."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        con.execute("PRAGMA enable_profiling = 'json'")
        con.execute(f"PRAGMA profiling_output = '{output}'")
        con.execute(query).fetchall()
        con.execute("PRAGMA disable_profiling")
        profile = json.loads(output.read_text())
    scans = [
        each for each in _operators(profile) if each["extra_info"].get("Function") == "READ_PARQUET"
    ]
    return Scanned(
        files=sum(int(each["extra_info"].get("Total Files Read", 0)) for each in scans),
        row_groups=sum(each.get("row_groups_scanned", 0) for each in scans),
        rows=sum(each.get("rows_scanned", 0) for each in scans),
        columns=frozenset(
            name for each in scans for name in _listed(each["extra_info"].get("Projections"))
        ),
    )


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _operators(node: dict[str, Any]) -> list[dict[str, Any]]:
    children = node.get("operator", []) + node.get("children", [])
    own = [node] if "extra_info" in node else []
    return own + [each for child in children for each in _operators(child)]
