"""Whatever a stranger's file says, it takes no more memory and time than whoever opened it allows."""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import CorruptFileError, IcechunkArrowError, OversizedFileError, Repository
from tests.faults.bombs import BOMBS
from tests.faults.hostile import Victim
from tests.faults.repositories import contents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

LIMIT = 64 << 20
MOST_SECONDS = 2.0
"""As for all that is hostile; of work, since other processes may have the processor meanwhile."""


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def read_everything(root: str, limit_bytes: int | None) -> None:
    """Read as sessions, tables and logs do."""
    limits = {} if limit_bytes is None else {"decode_limit_bytes": limit_bytes}
    repo = Repository.open(root, **limits)  # type: ignore[arg-type]
    contents(repo.readonly_session("main"))
    repo.tables("snapshots")
    repo.tables("operations")
    files = repo._context.files
    snapshot = files.read_snapshot(repo.lookup_branch("main"))
    for name in snapshot.manifest_sizes:
        files.read_manifest(name)
    files.read_log(snapshot.id)


def worker(connection: Connection) -> None:
    """Read one repository after the other; say what came of it, how long it took, and how much memory."""
    while True:
        root, limit_bytes = connection.recv()
        Path("/proc/self/clear_refs").write_text("5")
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        begun = time.process_time()
        error: BaseException | None = None
        try:
            read_everything(root, limit_bytes)
        except BaseException as found:
            error = found if isinstance(found, IcechunkArrowError) else RuntimeError(repr(found))
        connection.send((error, time.process_time() - begun, _peak_bytes() - before))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A process that reads repositories, warm from a sound one."""
    context = get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    sound = Victim(tmp_path_factory.mktemp("sound"))
    ours.send((str(sound.root), None))
    error, _, _ = ours.recv()
    assert error is None
    yield ours
    process.kill()
    process.join()
    process.close()


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository, to be altered."""
    return Victim(tmp_path)


def ask(reader: Connection, victim: Victim, limit_bytes: int | None) -> tuple[Any, float, int]:
    reader.send((str(victim.root), limit_bytes))
    assert reader.poll(60), "it takes for ever"
    found: tuple[Any, float, int] = reader.recv()
    return found


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(reader: Connection, victim: Victim, name: str) -> None:
    """Each is refused by name, in time, and takes little more than the limit that the reader chose."""
    key = BOMBS[name](victim)
    error, seconds, peak = ask(reader, victim, LIMIT)

    assert isinstance(error, CorruptFileError), error
    assert key in str(error)
    assert seconds < MOST_SECONDS
    assert peak < 2 * LIMIT + (64 << 20), f"{peak >> 20} MiB"
    error, seconds, peak = ask(reader, victim, None)

    assert isinstance(error, CorruptFileError), error
    assert seconds < MOST_SECONDS
    assert peak < 512 << 20, f"{peak >> 20} MiB"


def test_the_limit_is_the_readers(tmp_path: Path) -> None:
    """A sound file that is larger than a small limit is refused by it, and read with a larger one."""
    repo = Repository.create(tmp_path / "r")
    session = repo.writable_session("main")
    for number in range(3000):
        session.set_document(f"/{number:05}", b'{"zarr_format": 3, "node_type": "group"}')
    snapshot = session.commit("many")

    assert Repository.open(tmp_path / "r").tables("nodes").num_rows == 3000
    with pytest.raises(OversizedFileError, match=f"s/{snapshot}.*decode_limit_bytes") as caught:
        Repository.open(tmp_path / "r", decode_limit_bytes=1 << 20).readonly_session("main")
    assert caught.value.limit_bytes == 1 << 20  # type: ignore[attr-defined]
