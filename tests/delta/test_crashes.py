"""A publisher that is killed leaves the table as it was, or as it was to become."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.delta import publish, published
from tests.delta.inventories import check_shows, rows_of_repository, rows_of_table
from tests.delta.test_publish import set_values
from tests.places import written

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.delta
ROOT = Path(__file__).parents[2]


def run_publisher(repo: Repository, table: Path, *words: str) -> subprocess.Popen[str]:
    """Start a publisher that leads a process group, Java included; it is ready when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.delta.publisher", repo.url, str(table), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: Iterator[str] = iter(process.stdout.readline, "")
    assert any(line == "ready\n" for line in said), "the publisher did not start"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a publisher and its Java; it may have ended already."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    ended(process)


def ended(process: subprocess.Popen[str]) -> int:
    """Wait for a publisher's end, and say how it ended."""
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


def test_a_kill_behind_the_commit_is_harmless(spark: Any, tmp_path: Path) -> None:
    """What was committed before the kill is found by the next publisher, which writes nothing."""
    repo, table = Repository.create(tmp_path / "r"), tmp_path / "t"
    head = written(repo)
    process = run_publisher(repo, table, "die")

    assert ended(process) == -signal.SIGKILL
    assert published(spark, table) == {"r": head}
    done = publish(spark, {"r": repo}, table)["r"]
    assert (done.changed, done.version) == (False, 1)
    check_shows(spark, table, repo, head, "r")


@pytest.mark.storm
def test_kills_at_any_point(spark: Any, tmp_path: Path) -> None:
    """After each kill the table shows one of the two snapshots in full, and in the end the newest."""
    repo, table, random = Repository.create(tmp_path / "r"), tmp_path / "t", Random(11)
    before = written(repo)
    publish(spark, {"r": repo}, table)
    began = time.monotonic()
    process = run_publisher(repo, table)
    ready = time.monotonic()
    set_values(repo, slice(0, 2), 100)
    assert ended(process) == 0
    span = time.monotonic() - ready
    print(f"start {ready - began:.1f} s, publishing {span:.1f} s")
    before = published(spark, table)["r"]
    kept = 0
    for value in range(4):
        after = set_values(repo, slice(2 * (value % 4), 2 * (value % 4) + 2), value)
        process = run_publisher(repo, table)
        time.sleep(random.uniform(0.4, 1.1) * span)
        kill(process)
        shown = published(spark, table)["r"]
        assert shown in {before, after}
        assert rows_of_table(spark, table, "r") == rows_of_repository(repo, shown)
        kept += shown == before
        before = shown
    print(f"{kept} of 4 kills came before the commit")
    head = repo.lookup_branch("main")
    publish(spark, {"r": repo}, table)
    assert published(spark, table) == {"r": head}
    check_shows(spark, table, repo, head, "r")
