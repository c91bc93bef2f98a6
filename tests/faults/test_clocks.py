"""Clocks that are set by years, on one machine or between two: histories stay in order, or commits say why not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import Repository, RepositoryNotFoundError, SnapshotNotFoundError, StorageError
from icechunk_arrow.storage import clock
from icechunk_arrow.storage.local import LocalStorage
from tests.places import UNSYNCED, make_array, read_array, written
from tests.promises import required

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.core.snapshot import SnapshotInfo

TODAY = datetime(2026, 7, 1, 12, tzinfo=UTC)
MOMENTS = [
    datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    datetime(2000, 2, 29, tzinfo=UTC),
    TODAY,
    TODAY + timedelta(minutes=6),
    datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),  # too many seconds for 32 bits
    datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC),  # without a sign
    datetime(2262, 4, 11, 23, 47, 17, tzinfo=UTC),  # too many nanoseconds for 64
    datetime(2500, 1, 1, tzinfo=UTC),
]


class Machine(clock.Clock):
    """A clock that is set by hand and goes on by a millisecond whenever somebody looks."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment
        self.jump: tuple[int, datetime] | None = None
        """After so many looks it is set."""

    def now(self) -> datetime:
        if self.jump is not None:
            looks, moment = self.jump
            self.jump = (looks - 1, moment) if looks else None
            if not looks:
                self.moment = moment
        self.moment += timedelta(milliseconds=1)
        return self.moment


@contextmanager
def machines(own: Machine, place: Machine | None = None) -> Iterator[None]:
    """Let a process have a clock, and the place the same one or another."""
    server = own if place is None else place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "in_use", own)
        patch.setattr(LocalStorage, "time_of_put", lambda self, key: server.now())
        yield


def commit(repo: Repository, number: int, branch: str = "main") -> str:
    session = repo.writable_session(branch)
    session.set_document(
        f"/n{number}", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    )
    return session.commit(f"commit {number}")


def check_history(repo: Repository, branch: str = "main") -> list[SnapshotInfo]:
    """Times rise, in files and tables; whoever asks for a time gets the newest snapshot not after it."""
    infos = list(repo.ancestry(branch=branch))
    times = [info.written_at for info in infos]
    assert all(later > earlier for later, earlier in pairwise(times))
    rows = repo.tables("snapshots", branch=branch).to_pylist()
    assert {row["written_at"] for row in rows} >= set(times)
    for info in infos:
        assert repo.readonly_session(branch, as_of=info.written_at).snapshot_id == info.id
    for before, after in zip(infos[1:], infos, strict=False):
        just_before = after.written_at - timedelta(microseconds=1)
        assert repo.readonly_session(branch, as_of=just_before).snapshot_id == before.id
    with pytest.raises(SnapshotNotFoundError, match=f"its first is from {times[-1].year}"):
        repo.readonly_session(branch, as_of=times[-1] - timedelta(microseconds=1))
    return infos


@pytest.mark.parametrize("catalog", ["branches", "state"])
@pytest.mark.parametrize("seed", range(3))
def test_a_history_under_clocks_that_jump(tmp_path: Path, seed: int, catalog: str) -> None:
    """Between commits and in the midst of them a machine's clock is set by years, ahead and back."""
    rng = Random(f"{seed} clocks")
    own = Machine(rng.choice(MOMENTS))
    with machines(own):
        repo = Repository.create(tmp_path / "r", catalog=catalog, storage_settings=UNSYNCED)
        made, refused = 1, 0
        for number in range(12):
            own.moment = rng.choice(MOMENTS)
            if rng.random() < 0.5:
                own.jump = rng.randrange(6), rng.choice(MOMENTS)
            session = repo.writable_session("main")
            session.set_document(f"/n{number}", b'{"zarr_format": 3, "node_type": "group"}')
            try:
                session.commit(f"commit {number}")
            except StorageError as error:
                if "Set the clock right, and commit again" not in str(error):
                    raise
                refused += 1
                own.jump = None
                session.commit(f"commit {number}")
            own.jump = None
            made += 1
            if rng.random() < 0.2:
                repo = Repository.open(tmp_path / "r", storage_settings=UNSYNCED)
        infos = check_history(repo)
        assert len(infos) == made
        repo.create_branch("b", infos[3].id)
        own.moment = MOMENTS[0]
        commit(repo, 99, "b")
        check_history(repo, "b")
        if catalog == "branches":
            repo.export_state()
            state = json.loads((tmp_path / "r/state.json").read_text())
            stamps = [each["timestamp-ms"] for each in state["snapshots"]]
            assert stamps == sorted(stamps)
            known: set[str] = set()
            for each in state["snapshots"]:
                assert each.get("parent-snapshot-id") in {None, *known}, "a parent comes first"
                known.add(each["snapshot-id"])
    print(f"{made} commits, {refused} refused")


@pytest.mark.parametrize("years", [-30, -1, 1, 30])
def test_two_machines_do_not_agree(tmp_path: Path, years: int) -> None:
    """A machine whose clock is not that of the place commits nothing, and makes no repository; others go on."""
    place = Machine(TODAY)
    wrong = Machine(TODAY + timedelta(days=365 * years))
    with machines(wrong, place), pytest.raises(StorageError, match=str(wrong.moment.year)):
        Repository.create(tmp_path / "r")
    with machines(Machine(TODAY), place):
        right = Repository.create(tmp_path / "r")
        first = commit(right, 1)
    with machines(wrong, place):
        session = Repository.open(tmp_path / "r").writable_session("main")
        make_array(session.store)[...] = 7
        with pytest.raises(StorageError, match=r"this machine's clock says .* Set the clock right"):
            session.commit("wrong")
        assert right.lookup_branch("main") == first
    with machines(Machine(TODAY), place):
        session.commit("right")
        assert read_array(right)[0, 0] == 7
        assert [info.written_at.year for info in right.ancestry(branch="main")] == [TODAY.year] * 3


@pytest.mark.parametrize("year", [1, 1969, 9001, 9999])
def test_years_that_no_reader_takes_for_one(tmp_path: Path, year: int) -> None:
    """Such a clock makes no snapshot, as nobody could read it; once it is set right a session commits."""
    own = Machine(datetime(year, 6, 1, tzinfo=UTC))
    with machines(own):
        with pytest.raises(StorageError, match=f"clock.*{year}.*set the clock right"):
            Repository.create(tmp_path / "r")
        with pytest.raises(RepositoryNotFoundError):
            Repository.open(tmp_path / "r")
        own.moment = TODAY
        repo = Repository.create(tmp_path / "r")
        own.moment = datetime(year, 6, 1, tzinfo=UTC)
        session = repo.writable_session("main")
        make_array(session.store)[...] = 7
        if year > TODAY.year:
            with pytest.raises(StorageError, match=f"clock.*{year}.*set the clock right"):
                session.commit("ours")
        own.moment = TODAY
        session.commit("ours")
        assert read_array(Repository.open(tmp_path / "r"))[0, 0] == 7


SCRIPT = """
import sys
from icechunk_arrow import Repository
repo = Repository.open(sys.argv[1])
session = repo.writable_session("main")
session.set_document("/" + sys.argv[2], b'{"zarr_format": 3, "node_type": "group"}')
session.commit(sys.argv[2])
"""


def with_faketime(moment: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["faketime", "-f", moment, sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_processes_under_faketime(tmp_path: Path) -> None:
    """A process whose clock is years from that of the disk reads everything, and is told why it does not commit."""
    if shutil.which("faketime") is None:
        assert not required("faketime"), "faketime is promised, and is not there"
        pytest.skip("faketime is not installed")
    root = tmp_path / "r"
    first = written(Repository.create(root))
    for moment in ("-20y", "+15y", "+200y"):
        done = with_faketime(moment, "-c", SCRIPT, str(root), "x")
        assert re.search(
            r"StorageError: this machine's clock says .* Set the clock right", done.stderr
        )
        said = with_faketime(
            moment, "-m", "icechunk_arrow.cli", "log", str(root), "--format", "json"
        )
        assert json.loads(said.stdout)[0]["snapshot"] == first, said.stderr
        made = with_faketime(moment, "-m", "icechunk_arrow.cli", "init", str(tmp_path / "new"))
        assert (made.returncode, made.stderr.count("\n")) == (1, 1), made.stderr
        assert "Set the clock right" in made.stderr
    done = with_faketime("+1m", "-c", SCRIPT, str(root), "later")
    assert not done.returncode, done.stderr

    assert check_history(Repository.open(root))[0].message == "later"
