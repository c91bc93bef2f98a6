"""Killed in mid-write: tasks, executors, drivers, streams. History has the commit or not, and values are right."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icechunk_arrow.spark
from icechunk_arrow import Repository
from tests.spark.clusters import parent_of, processes_below, standalone, start_driver, wait_for
from tests.spark.drivers import CHUNK_BYTES, PARTITIONS, PER_PARTITION, array_spec
from tests.spark.frames import check_manifests, check_only_orphans, new_repository, references_of
from tests.spark.test_streaming import add_file, by_format, by_function, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.storm]

COUNT = PARTITIONS * PER_PARTITION
AT_ONCE = 64
"""Chunks of a megabyte that a task gathers before it writes them."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the array that slow tasks write."""
    repository = Repository.create(tmp_path / "r")
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", **array_spec())
    session.commit("create")
    return tmp_path / "r"


def check(root: Path, *, committed: bool) -> set[str]:
    """The array has every chunk once, or nothing; give the files that are left over, which the query lists."""
    repository = Repository.open(root)
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[0] == ("write chunks" if committed else "create")
    assert len(messages) == (3 if committed else 2)
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    found = np.asarray(array[...]).reshape(COUNT, CHUNK_BYTES)
    wanted = np.arange(COUNT) % 251 if committed else np.full(COUNT, 255)
    assert (found == wanted[:, None]).all()
    check_manifests(root, repository)
    return check_only_orphans(root, repository, set())


def marks(folder: Path) -> dict[str, int]:
    """Tell which tasks wait in the middle, and in which process."""
    return {
        path.name: int(path.read_text())
        for path in folder.glob("at-*-[0-9]*")
        if path.suffix != ".tmp"
    }


def wait_for_middle(tmp_path: Path) -> dict[str, int]:
    """Wait until both tasks have written something, and wait."""

    def in_the_middle() -> dict[str, int]:
        written = sum(1 for _ in (tmp_path / "r" / "c").glob("*"))
        found = marks(tmp_path / "marks")
        return found if written >= PARTITIONS * AT_ONCE and len(found) >= PARTITIONS else {}

    found: dict[str, int] = wait_for(in_the_middle, "tasks in mid-write")
    return found


def executor_of(pid: int, driver: int) -> int:
    """Find the executor that a Python worker belongs to."""
    commands = processes_below(driver)
    while "CoarseGrainedExecutorBackend" not in commands[pid]:
        pid = parent_of(pid)
    return pid


@pytest.mark.parametrize(("way", "victim"), [("function", "worker"), ("format", "executor")])
def test_a_part_of_a_cluster_is_killed(tmp_path: Path, root: Path, way: str, victim: str) -> None:
    """A task's Python process, or an executor, dies in mid-write: tasks run again, and all is there once."""
    (tmp_path / "marks").mkdir()
    with start_driver(
        tmp_path,
        "chunks",
        str(root),
        str(tmp_path / "marks"),
        way,
        settings={"spark.master": "local-cluster[2,1,1024]"},
    ) as driver:
        found = wait_for_middle(tmp_path)
        pid = found["at-0-0"]
        below = processes_below(driver.pid)
        assert pid in below
        if victim == "worker":
            for each in [each for each in below if parent_of(each) == parent_of(pid)]:
                os.kill(each, signal.SIGKILL)
        else:
            os.kill(executor_of(pid, driver.pid), signal.SIGKILL)
        wait_for(lambda: "at-0-1" in marks(tmp_path / "marks"), "the second attempt")
        (tmp_path / "marks" / "go").touch()
        driver.wait()
    left = check(root, committed=True)
    assert any(key.startswith("c/") for key in left), "the killed attempt had written"


@pytest.mark.parametrize("way", ["function", "format"])
def test_speculation(tmp_path: Path, root: Path, way: str) -> None:
    """A task that takes too long is tried on the other host as well: one of them counts, the other is left over."""
    (tmp_path / "marks").mkdir()
    with (
        standalone(tmp_path / "cluster") as (master, _),
        start_driver(
            tmp_path,
            "chunks",
            str(root),
            str(tmp_path / "marks"),
            way,
            "first",
            settings={
                "spark.master": master,
                "spark.executor.memory": "512m",
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.multiplier": "1.1",
                "spark.speculation.quantile": "0.1",
            },
        ) as driver,
    ):
        wait_for(
            lambda: "at-0-1" in marks(tmp_path / "marks"),
            "a speculative attempt",
        )
        driver.wait()
    assert any(key.startswith("c/") for key in check(root, committed=True))


@pytest.mark.parametrize("way", ["function", "format"])
def test_the_driver_is_killed_before_the_commit(tmp_path: Path, root: Path, way: str) -> None:
    """With tasks in mid-write: there is no commit, files that are there are listed, a repetition is right."""
    (tmp_path / "marks").mkdir()
    with start_driver(
        tmp_path,
        "chunks",
        str(root),
        str(tmp_path / "marks"),
        way,
        settings={"spark.master": "local[2]"},
    ) as driver:
        wait_for_middle(tmp_path)
        driver.kill()
    left = check(root, committed=False)
    assert any(key.startswith("c/") for key in left)
    with start_driver(
        tmp_path,
        "chunks",
        str(root),
        str(tmp_path / "marks"),
        way,
        "go",
        settings={"spark.master": "local[2]"},
    ) as driver:
        driver.wait()
    assert check(root, committed=True) >= left


def test_the_driver_is_killed_after_the_commit(tmp_path: Path, root: Path) -> None:
    """The commit stays, and nothing is left over."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "marks" / "go").touch()
    with start_driver(
        tmp_path,
        "chunks",
        str(root),
        str(tmp_path / "marks"),
        "function",
        "stay",
        settings={"spark.master": "local[2]"},
    ) as driver:
        wait_for(lambda: "committed" in driver.output(), "the commit")
        driver.kill()
    assert check(root, committed=True) == set()


def test_the_driver_is_killed_at_any_time(tmp_path: Path, root: Path) -> None:
    """Around the commit, at times of chance: the commit is there with everything, or nothing of it is."""
    (tmp_path / "marks").mkdir()
    chance = random.Random(6)
    with start_driver(
        tmp_path,
        "chunks",
        str(root),
        str(tmp_path / "marks"),
        "format",
        settings={"spark.master": "local[2]"},
    ) as driver:
        wait_for_middle(tmp_path)
        (tmp_path / "marks" / "go").touch()
        time.sleep(chance.random() * 2)
        driver.kill()
    messages = [info.message for info in Repository.open(root).ancestry(branch="main")]
    check(root, committed="write chunks" in messages)


@pytest.mark.parametrize("way", [by_format, by_function])
def test_a_stream_restarted_twenty_times(spark: Any, tmp_path: Path, way: Any) -> None:
    """A query that is stopped at times of chance, again and again, gives the array of one batch."""
    icechunk_arrow.spark.register(spark)
    batches = 12
    repository = new_repository(tmp_path / "r", a=(10 * batches,))
    for number in range(batches):
        add_file(tmp_path / "in", number)
    chance = random.Random(3)
    for _ in range(10):  # of each of the two ways
        writer = way(spark, tmp_path / "r", tmp_path / "in").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(chance.random() * 2.5)
        query.stop()
    run(way(spark, tmp_path / "r", tmp_path / "in"), tmp_path / "checkpoint")
    _check_stream(tmp_path, repository, batches)


def _check_stream(tmp_path: Path, repository: Repository, batches: int) -> None:
    rows = references_of(repository, "/a")
    assert [(row["index"], row["length"]) for row in rows] == [
        ([n], n // 10 + 1) for n in range(10 * batches)
    ]
    history = list(repository.ancestry(branch="main"))
    marked = [info.metadata.get("icechunk_arrow.stream_batch") for info in history]
    ids = [mark["batch_id"] for mark in marked if mark is not None]
    # after a kill Spark may take two files for one batch, so there may be fewer
    assert ids == list(range(len(ids) - 1, -1, -1)), "every batch is one commit"
    assert len(ids) > 1
    assert len({mark["query_id"] for mark in marked if mark is not None}) == 1
    check_manifests(tmp_path / "r", repository, one_write=False)
    check_only_orphans(tmp_path / "r", repository, set())


def test_drivers_of_a_stream_are_killed(tmp_path: Path) -> None:
    """Drivers killed at times of chance, before and after the commits of their batches, lose and repeat nothing."""
    batches = 8
    repository = new_repository(tmp_path / "r", a=(10 * batches,))
    for number in range(batches):
        add_file(tmp_path / "in", number)
    chance = random.Random(5)
    settings = {"spark.master": "local[2]"}
    folders = (str(tmp_path / each) for each in ("r", "in", "checkpoint"))
    job = ("stream", *folders, "format")
    for attempt in range(3):
        known = repository.lookup_branch("main")
        with start_driver(tmp_path, *job, settings=settings) as driver:
            wait_for(lambda known=known: repository.lookup_branch("main") != known, "a batch")  # type: ignore[misc]
            time.sleep(chance.random() * attempt)
            driver.kill()
    with start_driver(tmp_path, *job, settings=settings) as driver:
        assert "ended" in driver.wait()
    _check_stream(tmp_path, repository, batches)
