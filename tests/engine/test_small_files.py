"""Small files over what stands there: one's own is known again, and another's is not taken for it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeVar

import pytest

from icechunk_arrow import AlreadyExistsError, Repository, RepositoryConfig, StorageError
from icechunk_arrow.core.plain_yaml import LONGEST_YAML_BYTES
from icechunk_arrow.engine.small_files import create_small, write_small
from icechunk_arrow.formats.layout import CONFIG_KEY, STATE_KEY
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import through
from tests.faults.storage_wrappers import LosingStorage, WrappedStorage
from tests.places import written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

T = TypeVar("T")

KEY = "state.json"
LIMIT = 1 << 20


class NotingStorage(WrappedStorage):
    """Notes what is asked for, and how much comes back."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, str, int]] = []

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        found = effect()
        self.asked.append((operation, key, len(found) if isinstance(found, bytes) else 0))
        return found

    def reads(self, key: str) -> list[tuple[str, int]]:
        """The reads of a key."""
        return [(name, size) for name, asked, size in self.asked if asked == key and "get" in name]


@pytest.fixture
def place() -> LosingStorage:
    return LosingStorage(MemoryStorage(secrets.token_hex(6)))


@pytest.mark.parametrize("way", ["lost", "twice"])
@pytest.mark.parametrize("before", [None, b"before"])
def test_ones_own_file_is_known_again(place: LosingStorage, way: str, before: bytes | None) -> None:
    """Whether it was created or replaced."""
    if before is not None:
        place.inner.create(KEY, before)
    place.arm("create" if before is None else "replace", way)

    assert write_small(place, KEY, lambda _: b"mine", limit_bytes=LIMIT) == b"mine"
    assert place.inner.get(KEY) == b"mine"
    assert len(place.fired) == 1


@pytest.mark.parametrize("way", ["lost", "twice"])
def test_a_first_file_is_known_again(place: LosingStorage, way: str) -> None:
    """Also where nobody looked before."""
    place.arm("create", way)

    assert create_small(place, KEY, b"mine", limit_bytes=LIMIT) == b"mine"


@pytest.mark.parametrize("theirs", [b"theirs", b""])
@pytest.mark.parametrize("fails", [True, False])
def test_anothers_file_is_given_and_left(place: LosingStorage, fails: bool, theirs: bytes) -> None:
    """Whoever creates learns what stands there, with an answer or without."""
    if fails:
        place.arm("create", lambda: place.inner.create(KEY, theirs))
    else:
        place.inner.create(KEY, theirs)

    assert create_small(place, KEY, b"mine", limit_bytes=LIMIT) == theirs
    assert place.inner.get(KEY) == theirs


def test_what_another_wrote_is_decided_upon_anew(place: LosingStorage) -> None:
    """A writer that lost a race asks again what is to stand there."""
    place.inner.create(KEY, b"0")
    place.arm("replace", lambda: _replace(place.inner, b"5"))
    place.arm("replace", "lost")

    def next_number(found: bytes | None) -> bytes:
        assert found is not None
        return found if found == b"6" else b"%d" % (int(found) + 1)

    with pytest.raises(StorageError, match="no answer"):
        write_small(place, KEY, next_number, limit_bytes=LIMIT)
    assert write_small(place, KEY, next_number, limit_bytes=LIMIT) == b"6"


def _replace(storage: Storage, data: bytes) -> None:
    storage.replace(KEY, data, storage.get_versioned(KEY)[1])


def test_what_was_not_written_is_an_error(place: LosingStorage) -> None:
    """The error of the one request, and nothing is tried twice."""
    place.arm("create", "failed")

    with pytest.raises(StorageError, match="no answer"):
        create_small(place, KEY, b"mine", limit_bytes=LIMIT)
    assert not place.inner.exists(KEY)


def test_a_name_that_is_no_files_ends(tmp_path: Path) -> None:
    """A folder of that name is neither read nor written over, for ever."""
    (tmp_path / KEY).mkdir()
    storage = LocalStorage(tmp_path)

    with pytest.raises(AlreadyExistsError):
        write_small(storage, KEY, lambda _: b"mine", limit_bytes=LIMIT)
    with pytest.raises(AlreadyExistsError):
        create_small(storage, KEY, b"mine", limit_bytes=LIMIT)


def test_a_foreign_configuration_is_read_no_further_than_one_can_be(tmp_path: Path) -> None:
    """Creating a repository beside a file of that name costs no memory, however large the file is."""
    (tmp_path / CONFIG_KEY).write_bytes(b"#" * (20 * LONGEST_YAML_BYTES))
    found: list[NotingStorage] = []

    def wrap(inner: Storage) -> Storage:
        found.append(NotingStorage(inner))
        return found[-1]

    for config in (None, RepositoryConfig(checksum_chunks=False)):
        with through(wrap), pytest.raises(AlreadyExistsError, match=r"config\.yaml"):
            Repository.create(tmp_path, config=config)
        assert found[-1].reads(CONFIG_KEY) == [("get_range", LONGEST_YAML_BYTES + 1)]


def test_a_state_file_apart_is_read_once(tmp_path: Path) -> None:
    """Opening by the state file reads it to find the data, and compares what it read with them."""
    Repository.create(tmp_path / "data", catalog="state", state_url=tmp_path)
    written(Repository.open(tmp_path / "data", state_url=tmp_path))
    found: list[NotingStorage] = []

    def wrap(inner: Storage) -> Storage:
        found.append(NotingStorage(inner))
        return found[-1]

    with through(wrap):
        Repository.open(tmp_path)

    [state, data] = found
    assert [name for name, _ in state.reads(STATE_KEY)] == ["get_versioned"]
    assert data.reads(STATE_KEY) == []
