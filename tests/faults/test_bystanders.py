"""A user's old files in a repository's folder, whatever is done there, and whoever refuses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from icechunk_arrow import ConflictDetector, Repository, RepositoryConfig
from icechunk_arrow.cli.app import app
from icechunk_arrow.errors import AlreadyExistsError, ConflictError, IcechunkArrowError
from icechunk_arrow.storage import disk, scratch
from icechunk_arrow.storage.scratch import SCRATCH
from tests.bystanders import AMONG, HEX, SEEN, UNSEEN, Bystanders
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from collections.abc import Iterator

CATALOGS = ["branches", "state"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with files of its user in all places that one could think of."""
    found = Bystanders(tmp_path / "elsewhere")
    found.plant(tmp_path / "project", SEEN, UNSEEN, AMONG)
    found.plant(tmp_path / "taken", {"config.yaml": b"database: prod\n", "tmp/x": b"x"})
    yield tmp_path / "project"
    found.check()
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} >= {HEX, "letter.txt"}


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_life_beside_old_files(project: Path, catalog: str) -> None:
    """Creation, commits, races, compaction, branches and tags, and many of them, touch nothing of the user's."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = Repository.create(project, config=config, catalog=catalog)
    with pytest.raises(AlreadyExistsError):
        Repository.create(project, config=config, catalog=catalog)
    for value in range(10):
        written(repo, value, name=f"a{value}")
    first = repo.lookup_branch("main")
    late = repo.writable_session("main")
    make_array(late.store, "late")[...] = 3
    written(repo, 4, name="early")
    with pytest.raises(ConflictError):
        late.commit("lost")
    late.commit("late", rebase_with=ConflictDetector())

    def race(number: int) -> None:
        session = Repository.open(project).writable_session("main")
        make_array(session.store, f"racer{number}")[...] = number
        session.commit("race", rebase_with=ConflictDetector())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(8)))
    repo.compact_chunks("main", "compact")
    repo.rewrite_manifests("main", "rewrite")
    repo.create_branch("other", first)
    repo.reset_branch("other", repo.lookup_branch("main"))
    repo.delete_branch("other")
    repo.create_tag("v1", first)
    repo.delete_tag("v1")
    repo.save_config()
    if catalog == "branches":
        repo.export_state()

    assert (read_array(Repository.open(project), "racer5") == 5).all()
    assert repo.list_branches() == {"main"}


def test_a_commit_that_fails_touches_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a full disk nor a refused link makes anybody clean up what is not ours."""
    Repository.create(project)
    for name in ("write_pieces", "sync_file"):
        session = Repository.open(project).writable_session("main")
        make_array(session.store)[...] = 1

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(disk, name, full)
            with pytest.raises(IcechunkArrowError):
                session.commit("no")
    written(Repository.open(project))


@pytest.mark.alone
def test_a_refused_creation_leaves_a_project_as_it_is(project: Path) -> None:
    """Where a repository's name is taken nothing is written at all, and nothing swept."""
    taken = project.parent / "taken"
    before = sorted(taken.rglob("*"))
    for config in (None, RepositoryConfig(inline_chunk_threshold_bytes=1)):
        with pytest.raises(AlreadyExistsError, match=r"config\.yaml"):
            Repository.create(taken, config=config)
        with pytest.raises(IcechunkArrowError, match=r"config\.yaml"):
            Repository.open_or_create(taken, config=config)

    assert sorted(taken.rglob("*")) == before
    repo = Repository.create(project)
    leftover = project / SCRATCH / f"unfinished-{'0a' * 12}"
    leftover.write_bytes(b"of a crash")
    os.utime(leftover, (0, 0))
    with pytest.raises(AlreadyExistsError):
        Repository.create(project)
    assert leftover.exists()
    written(repo)
    assert not leftover.exists(), "a commit has removed it"


def test_the_command_init_beside_old_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``icechunk-arrow init .`` in a project makes a repository there, or says no, and touches nothing."""
    monkeypatch.chdir(project)

    assert CliRunner().invoke(app, ["init", "."]).exit_code == 0
    assert CliRunner().invoke(app, ["init", "."]).exit_code != 0
    monkeypatch.chdir(project.parent / "taken")
    assert CliRunner().invoke(app, ["init", "."]).exit_code != 0


@pytest.mark.alone
def test_a_hostile_repository_cannot_send_a_writer_elsewhere(project: Path) -> None:
    """A repository that came with a link in place of the scratch folder is not written, and the error names it."""
    victim = project.parent / "victim"
    victim.mkdir()
    for name in (f"unfinished-{HEX}", f"{'0' * 32}.lock", "letter.txt"):
        (victim / name).write_bytes(b"mine")
        os.utime(victim / name, (0, 0))
    repo = Repository.create(project.parent / "hostile")
    scratch = project.parent / "hostile" / SCRATCH
    shutil.rmtree(scratch)
    scratch.symlink_to(victim)

    session = Repository.open(project.parent / "hostile").readonly_session("main")
    assert list(session.node_paths()) == ["/"] or session.node_paths() == []
    with pytest.raises(IcechunkArrowError, match=SCRATCH):
        Repository.open(project.parent / "hostile").writable_session("main")
    with pytest.raises(IcechunkArrowError, match=SCRATCH):
        repo.create_branch("b", repo.lookup_branch("main"))
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == {
        f"unfinished-{HEX}": b"mine",
        f"{'0' * 32}.lock": b"mine",
        "letter.txt": b"mine",
    }


def test_a_writer_that_is_killed_leaves_what_the_next_one_takes_away(tmp_path: Path) -> None:
    """Unfinished files of a crash have names that are swept, once they are old."""
    Repository.create(tmp_path / "r")
    script = (
        "import os, sys\n"
        "from icechunk_arrow import Repository\n"
        "from icechunk_arrow.storage import local\n"
        "session = Repository.open(sys.argv[1]).writable_session('main')\n"
        "local.give_name = lambda *_: os._exit(9)\n"
        "session.commit('never', allow_empty=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(tmp_path / "r")]
    assert subprocess.run(command, env=environment, check=False, timeout=60).returncode == 9
    unfinished = [
        path
        for path in (tmp_path / "r" / SCRATCH).iterdir()
        if scratch._UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]
    assert len(unfinished) == 1
    written(Repository.open(tmp_path / "r"), name="young")
    assert unfinished[0].exists(), "somebody may still be at it"
    os.utime(unfinished[0], (0, 0))
    written(Repository.open(tmp_path / "r"), name="old")
    assert not unfinished[0].exists()
