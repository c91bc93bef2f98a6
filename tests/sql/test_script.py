"""The generated script is all that a plain DuckDB needs, and says nothing that it should not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import InvalidInputError, Repository
from icechunk_arrow.duckdb import sql_script
from tests.sql.model import Model
from tests.sql.repositories import STRANGE, fill, new_repository

if TYPE_CHECKING:
    from pathlib import Path

ALONE = """
import json, sys
for name in ("icechunk_arrow", "zarr", "pyarrow", "fsspec", "numpy"):
    sys.modules[name] = None  # whoever imports it fails
import duckdb
con = duckdb.connect()
con.execute(open(sys.argv[1]).read())
asked = [
    "SELECT path, chunk_count, stored_bytes, files FROM weather.arrays ORDER BY path",
    "SELECT count(*) FROM weather.chunks_in('/virtual', [2], [4])",
    "SELECT weather.chunk_of('/unequal', [9, 6]), weather.coord_decode(weather.coord_encode([1, 100]), 2)",
    "SELECT count(*) FROM weather.operations",
    "SELECT change, count(*) FROM weather.changes((SELECT %r), %r) GROUP BY 1 ORDER BY 1" % tuple(sys.argv[2:]),
]
print(json.dumps([con.execute(query).fetchall() for query in asked]))
"""


def test_it_works_without_this_package(tmp_path: Path) -> None:
    """DuckDB in a process where nothing else can be imported gives the model's numbers."""
    filled = fill(tmp_path / "r [1]", wide=False)
    script = tmp_path / "script.sql"
    script.write_text(sql_script(filled.repository, "weather"))
    parent, snapshot = filled.snapshots[-2:]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(script), parent, snapshot],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    arrays, box, [[chunk, decoded]], operations, changes = json.loads(done.stdout)

    model = Model(filled.root)
    expected = sorted(model.arrays(snapshot), key=lambda row: row["path"])
    names = ("path", "chunk_count", "stored_bytes", "files")
    assert arrays == [[row[name] for name in names] for row in expected]
    assert box == [[60]]
    assert (chunk, decoded) == ([4, 2], [1, 100])
    assert operations == [[len(model.operations(snapshot))]]
    assert changes == [["chunk_replaced", 31]]


def test_lines_are_lines(tmp_path: Path) -> None:
    """No control character of a name or message gets into the script: a shell reads its lines one by one."""
    filled = fill(tmp_path / "new\nline", wide=True)
    script = sql_script(filled.repository)
    forbidden = [c for c in script if ord(c) < 32 and c != "\n"]

    assert forbidden == []
    assert not [line for line in script.splitlines() if line.startswith(".")]
    assert STRANGE.replace("'", "''") not in script
    with pytest.raises(InvalidInputError, match="line"):
        sql_script(filled.repository, "a\n.shell name")


def test_a_place_that_no_script_can_read_is_refused() -> None:
    """What is in this process's memory stays there."""
    with pytest.raises(InvalidInputError, match="memory"):
        sql_script(new_repository("memory://script"))


def test_empty_repositories_have_scripts(tmp_path: Path) -> None:
    """A repository without nodes, and one without chunks."""
    import duckdb

    repository = Repository.create(tmp_path / "r")
    with duckdb.connect() as con:
        con.execute(sql_script(repository, "none"))
        for view in ("nodes", "chunks", "arrays", "files", "manifests", "operations"):
            assert con.execute(f"SELECT count(*) FROM none.{view}").fetchall() == [(0,)]
        [(first,)] = con.execute("SELECT snapshot FROM none.snapshots").fetchall()
        assert con.execute(f"SELECT * FROM none.changes('{first}', '{first}')").fetchall() == []
        with pytest.raises(duckdb.Error, match="this script knows the changes from"):
            con.execute(f"SELECT * FROM none.changes('{first}', 'main')").fetchall()
