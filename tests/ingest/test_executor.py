"""Work elsewhere: whatever does it, what comes in is the same; what knows Spark stands in two modules."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zarr

import icechunk_arrow.ingest
from icechunk_arrow import ingest
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.concatenation import Choices
from icechunk_arrow.ingest.executor import Threads, cut, part_count, write_parts
from icechunk_arrow.ingest.hdf5 import Hdf5File
from icechunk_arrow.ingest.netcdf import FileSet
from icechunk_arrow.ingest.options import IngestOptions
from icechunk_arrow.ingest.source import ScanOptions
from icechunk_arrow.ingest.spark import SparkExecutor
from tests.ingest.files import equal_trees, new_repository, opened, reopened, weather_files
from tests.test_architecture import imports_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow import Repository
    from icechunk_arrow.session import ForkSession

INGEST = Path(icechunk_arrow.ingest.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


def by_threads(paths: list[Path], repo: Repository, **words: Any) -> ingest.Ingested:
    """Bring files in without Spark."""
    options = IngestOptions(detect_changes=True, **words)
    scan = ScanOptions(concat_dim="time")
    choices = Choices(
        concat_dim="time",
        virtual=True,
        rewrite=frozenset({"rain"}),
        rewrite_below_bytes=1 << 20,
        chunks={},
        codecs=None,
    )
    files = FileSet(
        executor=Threads(3),
        urls=[f"file://{path}" for path in paths],
        open=partial(Hdf5File.open, options.files, scan),
        combine_attrs=None,
        choices=choices,
        options=options,
    )
    return files.take(repo)


def references_in(repo: Repository) -> list[dict[str, Any]]:
    """Give what is said of chunks, in the order of their places; files of the repository have other names."""
    names = ("path", "coord", "offset", "length", "etag")
    rows = repo.tables("chunks").to_pylist()
    found = [{name: row[name] for name in names} | {"at": row["location"]} for row in rows]
    virtual = [row for row in found if row["at"] is not None]
    return sorted(virtual, key=lambda row: (row["path"], row["coord"]))


@pytest.mark.spark
def test_threads_bring_in_what_spark_does(spark: Any, tmp_path: Path) -> None:
    """The same files, referred to and written: the same references, values, counts and progress."""
    paths = weather_files(tmp_path)
    one, other = (new_repository(tmp_path / name, tmp_path) for name in ("one", "other"))
    told: list[ingest.Progress] = []

    wanted = ingest.netcdf(spark, paths, one, concat_dim="time", rewrite=["rain"])
    found = by_threads(paths, other, on_progress=told.append)

    assert (found.arrays, found.chunk_count) == (wanted.arrays, wanted.chunk_count)
    assert references_in(other) == references_in(one)
    for group in (None, "soil", "soil/deep"):
        equal_trees(reopened(other, group), reopened(one, group))
    stages = dict.fromkeys(each.stage for each in told)
    assert list(stages) == ["looking at files", "referring to chunks", "writing values"]
    assert told[-1].share == 1


def executors(spark: Any) -> Iterator[Any]:
    """Give every executor there is."""
    yield Threads()
    yield SparkExecutor(spark)


def doubled(part: list[int]) -> list[int]:
    """Do some work."""
    if 99 in part:
        raise InvalidInputError("99 is too many", path="/somewhere")
    return [2 * each for each in part]


@pytest.mark.spark
def test_every_part_comes_with_its_value(spark: Any) -> None:
    """In any order; none is no work; an error comes as it was raised."""
    parts = cut(list(range(50)))
    for executor in executors(spark):
        found = sorted(executor.map(doubled, parts))
        assert found == [(part, doubled(part)) for part in parts]
        assert list(executor.map(doubled, [])) == []
        with pytest.raises(InvalidInputError, match="99 is too many") as caught:
            list(executor.map(doubled, [[1], [99]]))
        assert vars(caught.value)["path"] == "/somewhere"


def write_one(fork: ForkSession, part: list[int]) -> None:
    """Write a chunk for each number."""
    array = zarr.open_array(fork.store, path="a", mode="r+")
    for number in part:
        array[number] = number


@pytest.mark.spark
def test_parts_write_into_one_session(spark: Any, tmp_path: Path) -> None:
    """Each in a fork of its own, all of which are merged; another attempt at a part counts for nothing."""

    class Twice(Threads):
        """Does everything a second time."""

        def map(self, function: Any, parts: Any) -> Any:
            for _ in super().map(function, parts):
                pass
            yield from super().map(function, parts)

    for number, executor in enumerate((*executors(spark), Twice())):
        repo = new_repository(tmp_path / f"{number}", tmp_path)
        session = repo.writable_session("main")
        array: dict[str, Any] = {"shape": (40,), "chunks": (1,), "dtype": "u1"}
        zarr.create_array(session.store, name="a", fill_value=255, **array)
        assert write_parts(executor, session, write_one, cut(list(range(40)))) == 40
        session.commit("all")
        assert opened(repo, "a")[:].tolist() == list(range(40))


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 1000, 200_000])
def test_work_is_cut_into_parts_of_neighbours(count: int) -> None:
    """Nothing is lost, all cores have some, and parts are nearly equal; tables are cut alike."""
    parts = cut(range(count))
    assert [each for part in parts for each in part] == list(range(count))
    assert len(parts) == (part_count(count) if count else 0)
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
    table = pa.table({"x": pa.array(range(count), pa.int64())})
    assert [part["x"].to_pylist() for part in cut(table)] == [list(part) for part in parts]


def test_importing_it_starts_nothing() -> None:
    """Who only wants to know what there is needs neither Spark nor h5py."""
    code = "import sys, icechunk_arrow.ingest; print([n for n in ('pyspark', 'h5py') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
    assert callable(ingest.zarr)
    assert callable(ingest.netcdf)


WITH_SPARK = {"spark", "rows"}
WITH_AN_EXECUTOR = {"stores", "netcdf", "options", "__init__"}


@pytest.mark.parametrize("path", sorted(INGEST.glob("*.py")), ids=lambda path: path.stem)
def test_spark_stands_in_two_modules(path: Path) -> None:
    """Formats, agreement, concatenation and their tasks know nothing of Spark; functions know its executor."""
    found = imports_of(path)
    if path.stem not in WITH_SPARK:
        assert not {name for name in found if name.split(".")[0] == "pyspark"}
        assert "icechunk_arrow.spark.writing.tasks" not in found
    if path.stem not in WITH_SPARK | WITH_AN_EXECUTOR:
        assert not {name for name in found if name.startswith("icechunk_arrow.spark")}
        assert "icechunk_arrow.ingest.spark" not in found
