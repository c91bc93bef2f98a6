"""Readers that know only schemas/README.md find every chunk: pyarrow, DuckDB and Spark, each alone.

The readers are the programs in ``foreign/``. They run in a process of their own, in which neither this
package nor zarr can be imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from tests.conformance.places import Place
from tests.promises import required

if TYPE_CHECKING:
    from icechunk_arrow import Session

PROGRAMS = Path(__file__).parent / "foreign"
ALONE = """
import runpy, sys
for name in ("icechunk_arrow", "zarr", *sys.argv.pop(1).split(",")):
    sys.modules[name] = None  # whoever imports it fails
sys.path.insert(0, sys.argv.pop(1))  # where the program finds how coordinates are decoded
program = sys.argv[1]
del sys.argv[0]
runpy.run_path(program, run_name="__main__")
"""
SIZES = {"inline_chunk_threshold_bytes": 8, "packed_chunk_threshold_bytes": 64}


def run_alone(program: str, *roots: Path, without: str) -> list[dict[str, Any]]:
    """Run a reader on repositories, and give what it printed of each."""
    tests = str(PROGRAMS.parent.parent.parent)
    command = [sys.executable, "-I", "-c", ALONE, without, tests, str(PROGRAMS / program)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, *map(str, roots)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(roots) :]]


def fill(place: Place, folder: Path, *, wide: bool) -> dict[str, Any]:
    """Write chunks of every kind in several commits; give what a reader has to find."""
    place.create(**SIZES)
    expected: dict[str, Any] = {}
    session = place.session()
    group = zarr.create_group(session.store, attributes={"large": "ß" * 3000})
    expected["/"] = {"attributes": {"large": "ß" * 3000}, "shape": None, "chunks": {}}
    shapes = {
        "inline": ((3, 4), (1, 4)),
        "a/packed": ((70, 40), (1, 40)),
        "a/own file": ((2, 200), (1, 100)),
        "scalar": ((), ()),
        "sparse": ((20_000,), (4,)),
        "virtual": ((2, 80), (1, 1)),
        "left empty": ((0, 5), (1, 5)),
    }
    if wide:
        shapes["far"] = ((2**31, 100_000), (1, 1000))
    for name, (shape, chunks) in shapes.items():
        array = group.create_array(
            name, shape=shape, chunks=chunks, dtype="u1", compressors=None, fill_value=255
        )
        expected["/" + name] = {"attributes": {}, "shape": list(shape), "chunks": {}}
        assert array.shape == shape
    expected["/a"] = {"attributes": {}, "shape": None, "chunks": {}}
    group["a/packed"].attrs["text"] = "y" * 5000
    expected["/a/packed"]["attributes"] = {"text": "y" * 5000}
    session.commit("what there is")

    rng = np.random.default_rng(5)

    def write(session: Session, name: str, *coord: int) -> None:
        chunks = shapes[name][1]
        data = rng.integers(0, 255, chunks, dtype="u1")
        selection = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coord, chunks, strict=True))
        zarr.open_array(session.store, path=name)[selection if coord else ...] = data
        expected["/" + name]["chunks"][",".join(map(str, coord))] = data.tobytes().hex()

    session = place.session()
    for row in range(70):
        write(session, "a/packed", row, 0)
    for row in range(3):
        write(session, "inline", row, 0)
    for coord in ((0, 0), (0, 1), (1, 1)):
        write(session, "a/own file", *coord)
    write(session, "scalar")
    for index in (0, 63, 64, 200, 4999):
        write(session, "sparse", index)
    session.commit("chunks")

    session = place.session()
    for row in (5, 64, 69):  # some again, and some no more
        write(session, "a/packed", row, 0)
    write(session, "inline", 1, 0)
    session.store.delete_sync("a/own file/c/0/1")
    del expected["/a/own file"]["chunks"]["0,1"]
    session.commit("changed")

    session = place.session()
    refer(session, folder, expected["/virtual"]["chunks"])
    if wide:
        write(session, "far", 70_000, 3)
        write(session, "far", 2**31 - 1, 99)
        huge = (folder / "source.bin").as_uri()
        session.store.set_virtual_ref("far/c/0/0", huge, offset=2**33, length=2**32)
        expected["/far"]["chunks"]["0,0"] = [huge, 2**33, 2**32]
    session.commit("references")
    return expected


def refer(session: Session, folder: Path, chunks: dict[str, Any]) -> None:
    """Point to parts of a file, with and without a condition."""
    content = np.random.default_rng(6).bytes(5000)
    source = folder / "source.bin"
    source.write_bytes(content)
    places = [(row, column) for row in range(2) for column in range(80)]
    offsets = [(row * 80 + column) * 30 for row, column in places]
    columns: dict[str, Any] = {
        "index": pa.array([list(each) for each in places], pa.list_(pa.int64())),
        "location": [source.as_uri()] * len(places),
        "offset": offsets,
        "length": [25] * len(places),
        "etag": pa.array(["an etag" if row else None for row, _ in places], pa.string()),
    }
    session.set_references("/virtual", pa.table(columns))
    for (row, column), offset in zip(places, offsets, strict=True):
        chunks[f"{row},{column}"] = content[offset : offset + 25].hex()


@pytest.fixture
def repositories(tmp_path: Path) -> dict[Path, dict[str, Any]]:
    """A repository of narrow files and one with wide ones, with what there is to find."""
    found = {}
    for name in ("narrow", "wide"):
        (tmp_path / name).mkdir()
        root = tmp_path / name / "repository"
        found[root] = fill(Place(url=str(root)), tmp_path / name, wide=name == "wide")
    return found


Repositories = dict[Path, dict[str, Any]]


def test_pyarrow_alone_finds_every_chunk(repositories: Repositories) -> None:
    """Inline, packed, in a file of its own and virtual, of overwritten and deleted ones the last state."""
    for root, expected in repositories.items():
        assert run_alone("with_pyarrow.py", root, without="duckdb,pyspark") == [expected]


def test_duckdb_alone_finds_every_chunk(repositories: Repositories) -> None:
    """The same by SQL, down to the bytes of the chunks."""
    for root, expected in repositories.items():
        assert run_alone("with_duckdb.py", root, without="pyarrow,pyspark") == [expected]


@pytest.fixture
def spark_is_there() -> None:
    if importlib.util.find_spec("pyspark") is None:
        assert not required("spark"), "pyspark is not installed, and this run promises Spark"
        pytest.skip("pyspark is not installed")


@pytest.mark.spark
@pytest.mark.usefixtures("spark_is_there")
def test_spark_alone_finds_every_chunk(repositories: Repositories) -> None:
    """The same by Spark SQL and Spark's own readers."""
    found = run_alone("with_spark.py", *repositories, without="duckdb")
    assert found == list(repositories.values())


def test_what_the_readers_find_is_of_every_kind(repositories: Repositories) -> None:
    """The repositories hold narrow and wide files, and inline, native and virtual refs."""
    for root in repositories:
        files = {kind: [pq.ParquetFile(f) for f in (root / kind).iterdir()] for kind in "si"}
        wide = {
            kind: {f.metadata.metadata[b"icechunk.width"] == b"wide" for f in opened}
            for kind, opened in files.items()
        }
        assert (True in wide["s"]) == (True in wide["i"]) == (root.parent.name == "wide")
        assert False in wide["i"]
        flags = 0
        for file in files["s"]:
            for entries in file.read()["inventories"].to_pylist():
                for entry in entries or ():
                    flags |= entry["flags"]
        assert flags & 15 == 15


def test_the_readers_are_alone() -> None:
    """In the readers' process neither this package nor zarr can be imported."""
    for name in ("icechunk_arrow", "zarr"):
        code = f'import sys; sys.modules["{name}"] = None; import {name}'
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=False)
        assert b"ModuleNotFoundError" in done.stderr
        assert f'"{name}"' in ALONE
