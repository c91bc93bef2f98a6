"""What people import: names, weight, errors that travel."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import icechunk_arrow
from icechunk_arrow import Repository, errors
from icechunk_arrow.session import ENGINE_WORDS

HEAVY = ("pandas", "pyspark", "duckdb", "s3fs", "pyarrow.dataset", "xarray")


def test_all_is_sorted_and_complete() -> None:
    """``__all__`` names what can be imported, in order, and nothing that is not there."""
    names = icechunk_arrow.__all__

    assert sorted(names) == names
    assert [name for name in names if not hasattr(icechunk_arrow, name)] == []


def run(code: str) -> str:
    """Run code in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_nothing_heavy() -> None:
    """Importing the package imports no library at all; a session none that only some people need."""
    code = f"""
import sys, icechunk_arrow
print([n for n in ("numpy", "pyarrow", "zarr", "importlib.metadata") if n in sys.modules])
from icechunk_arrow import *
print([n for n in {HEAVY!r} if n in sys.modules])
"""

    assert run(code).splitlines() == ["[]", "[]"]


def test_names_come_when_they_are_asked_for() -> None:
    """Every name is listed before it is imported, is the one of its module, and no other name is made up."""
    code = """
import icechunk_arrow
print(set(icechunk_arrow.__all__) <= set(dir(icechunk_arrow)), "Repository" in vars(icechunk_arrow))
from icechunk_arrow import Repository
import icechunk_arrow.repository
print(Repository is icechunk_arrow.repository.Repository, "Repository" in vars(icechunk_arrow))
print(icechunk_arrow.zarr.IcechunkStore is icechunk_arrow.IcechunkStore)
"""

    assert run(code).splitlines() == ["True False", "True True", "True"]
    with pytest.raises(AttributeError, match="has no attribute 'Repositroy'"):
        _ = icechunk_arrow.Repositroy  # type: ignore[attr-defined]


def test_homes_of_names_are_those_that_type_checkers_see() -> None:
    """The table of homes, the imports for type checkers and ``__all__`` name the same things."""
    tree = ast.parse(Path(icechunk_arrow.__file__).read_text())
    seen = {
        alias.name: each.module
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("icechunk_arrow")
        for alias in each.names
    }
    lazily = {name: f"icechunk_arrow.{home}" for name, home in icechunk_arrow._HOME_OF.items()}

    assert {n: home for n, home in seen.items() if home != "icechunk_arrow.errors"} == lazily
    assert {*seen, "__version__"} == set(icechunk_arrow.__all__)


WHOLE_WAY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise RuntimeError("pandas is imported")  # pyarrow would take an ImportError for an answer

sys.meta_path.insert(0, Refuse())
import duckdb, numpy, zarr
import icechunk_arrow, icechunk_arrow.duckdb
from icechunk_arrow.cli.app import app
from icechunk_arrow.core.columns import from_values
import pyarrow as pa

place = {place!r}
repo = icechunk_arrow.Repository.create(place)
session = repo.writable_session("main")
array = zarr.create_array(session.store, name="a", shape=(100, 100), chunks=(10, 10), dtype="f4")
array[:] = numpy.arange(10000).reshape(100, 100)
session.commit("one")
session = repo.writable_session("main")
zarr.open_array(session.store, path="a")[0:10, 0:10] = 1
session.set_references("/a", pa.Table.from_pydict({{
    "index": from_values([[9, 9], [9, 8]], pa.list_(pa.int64())),
    "location": from_values(["file:///nowhere/b.nc"] * 2, pa.string()),
    "offset": from_values([0, 10], pa.int64()),
    "length": from_values([10, 10], pa.int64()),
}}))
session.commit("two")
repo = icechunk_arrow.Repository.open(place)
assert zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[0, 0] == 1
assert len(list(repo.ancestry(branch="main"))) == 3
for name in ("nodes", "manifests", "snapshots", "refs", "operations", "config", "chunks", "files"):
    assert repo.tables(name).num_rows, name
for name in ("gaps", "growth", "largest_chunks"):
    repo.inspect(name)
repo.rewrite_manifests("main", "tidy", dry_run=True)
repo.compact_chunks("main", "gather")
with duckdb.connect() as con:
    icechunk_arrow.duckdb.attach(con, repo, "weather")
    assert con.execute("select count(*) from weather.chunks").fetchall() == [(100,)]
    con.sql("from weather.arrays").to_arrow_reader().read_all()
for line in ("log", "ls", "branches", "show"):
    words = [line, place + "/config.yaml" if line == "show" else place]
    if line == "show":
        repo.save_config()
    for form in ("table", "json"):
        app([*words, "--format", form], standalone_mode=False)
print("pandas" in sys.modules)
"""


def test_the_whole_way_needs_no_pandas(tmp_path: Path) -> None:
    """Creating, writing, committing, opening, reading, SQL, tables and commands never try to import pandas."""
    assert run(WHOLE_WAY.format(place=f"{tmp_path}/r")).splitlines()[-1] == "False"


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_survive_pickling(name: str) -> None:
    """An error raised in another process arrives with its message and its facts."""
    kind = getattr(errors, name)
    facts = {"snapshot": "S", "conflicts": ("c",)} if name == "RebaseFailedError" else {}
    error = kind("what, where, and the way out", **facts)
    back = pickle.loads(pickle.dumps(error))

    assert type(back) is kind
    assert str(back) == "what, where, and the way out"
    assert back.__dict__ == error.__dict__


def test_errors_are_what_python_expects() -> None:
    """Errors can be caught as the built-in kinds that people know."""
    assert issubclass(errors.NotFoundError, KeyError)
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.StorageError, OSError)
    assert issubclass(errors.ReadOnlyError, PermissionError)
    assert issubclass(errors.ReadOnlyError, ValueError)
    assert issubclass(errors.AlreadyExistsError, FileExistsError)
    assert all(issubclass(getattr(errors, n), errors.IcechunkArrowError) for n in errors.__all__)


def test_completion_shows_what_callers_use(tmp_path: Path) -> None:
    """Words of the engine are there for the package, and not offered; each of them is one."""
    session = Repository.create(tmp_path / "repo").writable_session("main")
    offered = {name for name in dir(session) if not name.startswith("_")}

    assert not offered & ENGINE_WORDS
    assert all(hasattr(session, name) for name in ENGINE_WORDS)
    assert offered == {
        *(
            "all_or_nothing",
            "array_paths",
            "branch",
            "chunk_coordinates",
            "chunk_references",
            "clear_array",
        ),
        *(
            "commit",
            "config",
            "delete_nodes",
            "discard_changes",
            "fork",
            "has_chunks",
            "manifests",
            "merge",
        ),
        *("has_uncommitted_changes", "merge_written", "move", "node_paths", "read_only", "rebase"),
        *(
            "set_encoded_chunks",
            "set_references",
            "snapshot_id",
            "status",
            "storage_url",
            "store",
            "table",
        ),
    }
