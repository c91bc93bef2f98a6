"""Plain web servers: read-only, with and without ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.errors import ObjectNotFoundError, ReadOnlyError, StorageError
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings
from tests.servers import served
from tests.storage.fake_s3 import fake_s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

CONTENT = {"digits": b"0123456789", "empty": b"", "a b/[1] 100%/ü?#": b"odd name"}
QUICK = StorageSettings(retry_tries=2, retry_backoff_seconds=0.01, timeout_seconds=5)


@pytest.fixture(params=["with ranges", "without ranges"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "with ranges":
        with fake_s3() as state:
            state.objects.update({f"p/{name}": data for name, data in CONTENT.items()})
            yield open_storage(f"{state.endpoint}/bucket/p", settings=QUICK)
    else:
        for name, data in CONTENT.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        with served(tmp_path) as url:
            yield open_storage(url, settings=QUICK)


def test_a_web_server_is_read(storage: Storage) -> None:
    """Whole objects, ranges and tails are right, whether the server knows ranges or not."""
    for name, data in CONTENT.items():
        assert data == storage.get(name)
        assert storage.exists(name)
    assert storage.get_range("digits", 3, 4) == b"3456"
    assert storage.get_range("digits", 8, 4) == b"89"
    assert storage.get_range("digits", 0, 10**15) == b"0123456789"
    assert storage.get_range("digits", 10, 4) == b""
    assert storage.get_range("digits", 50, 4) == b""
    assert storage.get_range("digits", 3, 0) == b""
    assert storage.get_tail("digits", 3) == (b"789", 10)
    assert storage.get_tail("digits", 30) == (b"0123456789", 10)
    assert storage.get_tail("digits", 0) == (b"", 10)
    assert storage.get_range("empty", 0, 4) == b""
    assert storage.get_tail("empty", 4) == (b"", 0)


def test_what_is_not_there_is_not_found(storage: Storage) -> None:
    """A 404 is a missing object."""
    assert not storage.exists("none")
    for read in (storage.get, lambda key: storage.get_range(key, 0, 1)):
        with pytest.raises(ObjectNotFoundError):
            read("none")


def test_the_web_is_read_only_and_has_no_listing(storage: Storage) -> None:
    """Writing and listing say what is missing instead of guessing from web pages."""
    assert not storage.capabilities.create
    assert not storage.capabilities.limited_listing
    for write in (
        storage.require_writable,
        lambda: storage.put("x", b"x"),
        lambda: storage.create("x", b"x"),
        lambda: storage.replace("digits", b"x", "token"),
        lambda: storage.delete(["digits"]),
    ):
        with pytest.raises(ReadOnlyError, match="plain HTTP can be read only"):
            write()
    for ask in (storage.list, storage.list_folders):
        with pytest.raises(StorageError, match="no listing"):
            ask()
    assert storage.get("digits") == b"0123456789"
