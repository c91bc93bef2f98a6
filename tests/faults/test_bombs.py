"""Whatever a stranger's file says, it takes no more memory and time than whoever opened it allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import CorruptFileError, OversizedFileError, Repository
from tests.faults.bombs import BOMBS
from tests.faults.hostile import Victim
from tests.faults.measured import MeasuredReader, reading_process
from tests.faults.repositories import contents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 64 << 20
MOST_SECONDS = 2.0
"""As for all that is hostile; of work, since other processes may have the processor meanwhile."""


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


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredReader]:
    """A process that reads repositories, warm from a sound one."""
    with reading_process() as found:
        sound = Victim(tmp_path_factory.mktemp("sound"))
        assert found.call(read_everything, str(sound.root), None).error is None
        yield found


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository, to be altered."""
    return Victim(tmp_path)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(reader: MeasuredReader, victim: Victim, name: str) -> None:
    """Each is refused by name, in time, and takes little more than the limit that the reader chose."""
    key = BOMBS[name](victim)
    for limit_bytes, most_bytes in ((LIMIT, 2 * LIMIT + (64 << 20)), (None, 512 << 20)):
        found = reader.call(read_everything, str(victim.root), limit_bytes)

        assert isinstance(found.error, CorruptFileError), found.error
        assert key in str(found.error)
        assert found.seconds < MOST_SECONDS
        assert found.peak_bytes < most_bytes, f"{found.peak_bytes >> 20} MiB"


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
    assert caught.value.limit_bytes == 1 << 20
