"""What a local place says when the system refuses a call, and what it makes of times that nobody expects."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.errors import ReadOnlyError, StorageError
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.scratch import SCRATCH
from tests.places import written

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = 86_400.0
UNFINISHED = f"unfinished-{'0a' * 12}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def refuse(number: int, ends: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a call about one path."""

    def refused(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).endswith(ends):
            raise OSError(number, os.strerror(number), path)
        return call(path, *given, **more)

    return refused


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_listing_says_what_it_could_not_look_at(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file of which the system tells nothing is an error that names it."""
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    monkeypatch.setattr(os, "lstat", refuse(number, "c/1", os.lstat))

    with pytest.raises(StorageError, match=rf"c/1.*cannot be read: {os.strerror(number)}"):
        list(storage.list())


def test_views_say_what_they_could_not_look_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of which the system tells nothing is named, in a message of ours."""
    duckdb = pytest.importorskip("duckdb")
    from icechunk_arrow.duckdb import attach

    written(Repository.create(root))
    (manifest,) = (path.name for path in (root / "i").iterdir())
    monkeypatch.setattr(os, "lstat", refuse(errno.EIO, manifest, os.lstat))
    with (
        duckdb.connect() as connection,
        pytest.raises(StorageError, match=f"{manifest} of .* cannot be read: Input/output error"),
    ):
        attach(connection, root, "r")


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "No space left.*make room"),
        (errno.EMFILE, "Too many open files.*ulimit -n"),
        (errno.EFBIG, "File too large.*ulimit -f"),
        (errno.EDQUOT, "Disk quota exceeded.*make room"),
        (errno.ESTALE, "Stale file handle.*open the repository anew"),
    ],
)
def test_what_can_be_done_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    """Where a user can do something about it the message says what, and names the place."""
    storage = LocalStorage(root)
    storage.create("refs/1", b"x")
    monkeypatch.setattr(os, "writev", refuse(number, "", os.writev))

    with pytest.raises(StorageError, match=f"'refs/2' in {root} cannot be written: {way_out}"):
        storage.create("refs/2", b"x")


def test_what_a_volume_lacks_for_a_while_it_has_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle that was refused links or locks once does without them no longer than it must."""
    LocalStorage(root).create("state.json", b"1")
    storage = LocalStorage(root)
    token = storage.get_versioned("state.json")[1]

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def refused_names(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as bad:
        bad.setattr(fcntl, "flock", refused)
        bad.setattr(os, "link", refused_names)
        bad.setattr(disk, "rename_new", refused_names)
        with pytest.raises(ReadOnlyError, match="hard links"):
            storage.create("refs/1", b"x")
        with pytest.raises(ReadOnlyError, match="cannot lock"):
            storage.replace("state.json", b"2", token)

    storage.create("refs/1", b"x")
    storage.replace("state.json", b"2", token)
    assert storage.capabilities.create
    assert storage.capabilities.replace


def test_times_that_no_calendar_has(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file system may keep any number as a time: such files are listed, without one."""
    memory = Path("/dev/shm")  # it keeps numbers that a disk's file system has no room for
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    with folder as name:
        check_times(Path(name))


def check_times(root: Path) -> None:
    storage = LocalStorage(root)
    for number, moment in enumerate([1 << 40, -(1 << 40), 0, 1 << 31, 9_223_372_037]):
        storage.put(f"c/{number}", b"x")
        os.utime(root / f"c/{number}", (moment, moment))
    kept = [(root / f"c/{number}").stat().st_mtime for number in range(5)]

    found = [info.modified for info in storage.list("c/")]

    assert [each and each.timestamp() for each in found] == [
        moment if abs(moment) < 60_000_000_000 else None for moment in kept
    ]
    assert storage.time_of_put("c/2") is not None
    storage.time_of_put("c/0")
    storage.tidy()


def holding(root: Path) -> subprocess.Popen[bytes]:
    """Have another process write a file that it does not finish."""
    script = (
        "import sys\n"
        "from icechunk_arrow.storage.local import LocalStorage\n"
        "storage = LocalStorage(sys.argv[1])\n"
        "with storage._scratch.file(b'x') as unfinished:\n"
        "    print(unfinished.name, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.parametrize("years", [-56, -1, 1, 70])
def test_what_is_in_use_is_not_left_over(root: Path, years: int) -> None:
    """A clock that was set by years makes a file old while somebody writes it: it stays, until he has gone."""
    (root / SCRATCH).mkdir(parents=True)
    with holding(root) as writer:
        assert writer.stdout is not None
        unfinished = root / SCRATCH / writer.stdout.readline().decode().strip()
        moment = max(time.time() + years * 365 * DAY, 0)
        os.utime(unfinished, (moment, moment))
        LocalStorage(root).tidy()
        assert unfinished.exists()
        writer.kill()
    assert unfinished.exists(), "it was killed before it could remove it"
    LocalStorage(root).tidy()
    assert not unfinished.exists()


def test_where_nothing_can_be_locked_age_alone_decides(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks nobody can tell: what is a day old goes, and what is from the future stays."""
    folder = root / SCRATCH
    folder.mkdir(parents=True)
    later = f"unfinished-{'0b' * 12}"
    for name, days in ((UNFINISHED, -2), (later, 2)):
        (folder / name).write_bytes(b"x")
        moment = time.time() + days * DAY
        os.utime(folder / name, (moment, moment))

    def no_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    LocalStorage(root).tidy()
    assert [path.name for path in folder.iterdir()] == [later]
