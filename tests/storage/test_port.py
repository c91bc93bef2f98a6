"""The contract: every place keeps every promise of ``icechunk_arrow.storage.port``."""

from __future__ import annotations

import os
import pickle
import secrets
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.scratch import UnsafeStorageWarning
from icechunk_arrow.storage.secrets import secrets_kept
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

ODD_KEYS = [
    "a b/c d",
    "quote'\"/x",
    "[1]/*?.parquet",
    "100%/%20%2F",
    "grüße/Ωmega/日本",
    "plus+&=;#hash",
    "trailing./dots..x",
    "new\nline",
    "~tilde/$HOME/{}",
    "x" * 200,
]
WRONG_KEYS = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\0b", "\ud800"]
READS: dict[str, Callable[[Storage, str], object]] = {
    "get": lambda storage, key: storage.get(key),
    "get_range": lambda storage, key: storage.get_range(key, 0, 5),
    "get_range of nothing": lambda storage, key: storage.get_range(key, 0, 0),
    "get_tail": lambda storage, key: storage.get_tail(key, 5),
    "get_tail of nothing": lambda storage, key: storage.get_tail(key, 0),
    "get_versioned": lambda storage, key: storage.get_versioned(key),
}


@dataclass
class Place:
    """A fresh place, and how to get more handles on it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: StorageSettings = field(default_factory=StorageSettings)

    def open(self) -> Storage:
        return open_storage(self.url, self.options, settings=self.settings)


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def no_rename(*_: object, **__: object) -> None:
    raise OSError(38, "Function not implemented")


@pytest.fixture(
    params=[
        "memory",
        "local",
        "local without syncing",
        "local without links",
        "local in place",
        pytest.param("s3", marks=pytest.mark.s3),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    match request.param:
        case "memory":
            return Place(f"memory://{secrets.token_hex(8)}")
        case "local":
            return Place(str(tmp_path / "root"))
        case "local without syncing":
            return Place(str(tmp_path / "root"), settings=StorageSettings(durable=False))
        case "local without links":
            monkeypatch.setattr(os, "link", no_links)
            return Place(str(tmp_path / "root"))
        case "local in place":
            monkeypatch.setattr(os, "link", no_links)
            monkeypatch.setattr(disk, "rename_new", no_rename)
            warnings.simplefilter("ignore", UnsafeStorageWarning)
            return Place(str(tmp_path / "root"), {"exclusive_create": "unsafe"})
        case _:
            server = request.getfixturevalue("s3")
            return Place(request.getfixturevalue("s3_url"), server.storage_options)


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.open()


def keys(storage: Storage, prefix: str = "", **limit: int) -> list[str]:
    return [found.key for found in storage.list(prefix, **limit)]


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_what_was_put_is_read(place: Place, storage: Storage, size: int) -> None:
    """A put object is read whole, through the same handle and another one, after a sync."""
    data = os.urandom(size)
    storage.put("c/one", data, {"kind": "chunk"})
    storage.sync()

    assert data == storage.get("c/one")
    assert data == place.open().get("c/one")


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"", b"abc", b""],
        [b"ab", bytearray(b"cd"), memoryview(b"ef")],
        [bytes([n % 256]) * 7 for n in range(3000)],
        [memoryview(b"abcdefgh")[::2], memoryview(b"12345678").cast("H")],
    ],
)
def test_pieces_follow_each_other(storage: Storage, pieces: list[Any]) -> None:
    """Data in pieces of any buffer kind is written in order, without gaps."""
    storage.put("c/pieces", pieces)

    assert b"".join(bytes(piece) for piece in pieces) == storage.get("c/pieces")


def test_one_buffer_of_any_kind_is_written(storage: Storage) -> None:
    """A bytearray or a view is one piece, not a sequence of numbers; it is copied."""
    data = bytearray(b"abc")
    storage.put("c/array", data)
    storage.put("c/view", memoryview(data)[1:])
    data[:] = b"\0\0\0"

    assert storage.get("c/array") == b"abc"
    assert storage.get("c/view") == b"bc"


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 4, b"0123"),
        (3, 4, b"3456"),
        (8, 4, b"89"),
        (10, 4, b""),
        (500, 4, b""),
        (0, 2**40, b"0123456789"),
        (3, 0, b""),
        (2**62, 1, b""),
    ],
)
def test_ranges_end_where_the_object_ends(
    storage: Storage, start: int, length: int, expected: bytes
) -> None:
    """A range is exact, shorter at the object's end, and empty behind it; no length is believed."""
    storage.put("c/digits", b"0123456789")

    assert expected == storage.get_range("c/digits", start, length)


@pytest.mark.parametrize(
    ("length", "expected"), [(3, b"789"), (10, b"0123456789"), (99, b"0123456789"), (0, b"")]
)
def test_tails_come_with_the_size(storage: Storage, length: int, expected: bytes) -> None:
    """The last bytes and the whole size come together."""
    storage.put("c/digits", b"0123456789")

    assert (expected, 10) == storage.get_tail("c/digits", length)


def test_an_empty_object_has_ranges_and_a_tail(storage: Storage) -> None:
    """An object without bytes is there, and reads as no bytes."""
    storage.put("c/empty", b"")

    assert storage.exists("c/empty")
    assert storage.get("c/empty") == b""
    assert storage.get_range("c/empty", 0, 5) == b""
    assert storage.get_tail("c/empty", 5) == (b"", 0)
    assert [found.size_bytes for found in storage.list("c/")] == [0]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("key", ["absent", "c/absent", "c", "c/one/below"])
def test_what_is_not_there_is_not_found(
    storage: Storage, read: Callable[[Storage, str], object], key: str
) -> None:
    """Reading what is missing, a folder, or below an object raises an error with the key."""
    storage.put("c/one", b"x")

    with pytest.raises(ObjectNotFoundError) as caught:
        read(storage, key)

    assert caught.value.key == key  # type: ignore[attr-defined]
    assert not storage.exists(key)


def test_a_place_that_was_never_written_is_empty(storage: Storage) -> None:
    """Nothing is there, and nothing fails."""
    assert not storage.exists("a")
    assert keys(storage) == []
    assert list(storage.list_folders()) == []
    storage.delete(["a", "b/c"])
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")


def test_creation_happens_once(place: Place, storage: Storage) -> None:
    """The second creation is refused and changes nothing, through any handle."""
    storage.create("refs/branch.main/ZZZZZZZZ.json", b"first")

    for handle in (storage, place.open()):
        with pytest.raises(AlreadyExistsError) as caught:
            handle.create("refs/branch.main/ZZZZZZZZ.json", b"second")
        assert caught.value.key == "refs/branch.main/ZZZZZZZZ.json"  # type: ignore[attr-defined]
    assert storage.get("refs/branch.main/ZZZZZZZZ.json") == b"first"


def test_creation_after_deletion(storage: Storage) -> None:
    """A name that was deleted is free."""
    storage.create("refs/one", b"first")
    storage.delete(["refs/one"])
    storage.create("refs/one", b"second")

    assert storage.get("refs/one") == b"second"


def test_replacement_needs_the_present_token(place: Place, storage: Storage) -> None:
    """Whoever read the present content may replace it; whoever read an older one may not."""
    storage.create("state.json", b"1")
    data, token = storage.get_versioned("state.json")
    storage.replace("state.json", b"2", token)

    assert data == b"1"
    assert storage.get("state.json") == b"2"
    with pytest.raises(PreconditionFailedError):
        place.open().replace("state.json", b"3", token)
    assert storage.get("state.json") == b"2"
    other = place.open()
    other.replace("state.json", b"4", other.get_versioned("state.json")[1])
    assert storage.get("state.json") == b"4"
    assert storage.get_range("state.json", 0, 9) == b"4"


def test_overwriting_asks_nobody(place: Place, storage: Storage) -> None:
    """Whatever is there, afterwards the new content is, whole; it is an ordinary object otherwise."""
    key = "refs/branch.main/hint.json"
    for content in (b"1", b"22", b""):
        storage.overwrite(key, content)
        assert place.open().get(key) == content

    assert [info.key for info in storage.list("refs/")] == [key]


def test_the_time_of_a_put_is_the_place_s(storage: Storage) -> None:
    """Near enough to ours on this machine, where the place says it at all."""
    storage.put("s/one", b"1")
    there = storage.time_of_put("s/one")

    assert there is None or abs(there - datetime.now(UTC)) < timedelta(minutes=1)


def test_what_vanished_cannot_be_replaced(storage: Storage) -> None:
    """Replacing an object that is gone fails and does not bring it back."""
    storage.create("state.json", b"1")
    _, token = storage.get_versioned("state.json")
    storage.delete(["state.json"])

    with pytest.raises(PreconditionFailedError):
        storage.replace("state.json", b"2", token)
    assert not storage.exists("state.json")


def test_listings_are_sorted_across_folders(storage: Storage) -> None:
    """Keys come in the order of their code points, whatever folders they are in."""
    names = ["a-b", "a/x", "a/b/c", "a0", "a.b/z", "b", "a/b-c", "B", "é", "z/é", "a!/1"]
    for name in names:
        storage.put(name, b"x")

    assert sorted(names) == keys(storage)
    assert sorted(names)[:4] == keys(storage, limit=4)
    assert keys(storage, limit=0) == []
    assert keys(storage, "a/") == ["a/b-c", "a/b/c", "a/x"]
    assert keys(storage, "a/", limit=1) == ["a/b-c"]
    assert keys(storage, "a/b/") == ["a/b/c"]
    assert keys(storage, "nothing/") == []


def test_listings_know_sizes_and_times(storage: Storage) -> None:
    """Each object comes with its size and, where known, the time of its writing in UTC."""
    storage.put("c/one", b"12345")

    (found,) = storage.list("c/")

    assert found.size_bytes == 5
    assert found.modified is not None
    assert found.modified.tzinfo is not None
    assert abs(found.modified - datetime.now(UTC)) < timedelta(minutes=5)


def test_folders_are_listed_by_name(storage: Storage) -> None:
    """Only folders directly below, by bare name, sorted; objects do not count."""
    for key in (
        "refs/branch.main/1",
        "refs/branch.a b/1/2",
        "refs/tag.v1/ref.json",
        "refs/x",
        "c/1",
    ):
        storage.put(key, b"x")

    assert list(storage.list_folders()) == ["c", "refs"]
    assert list(storage.list_folders("refs/")) == ["branch.a b", "branch.main", "tag.v1"]
    assert list(storage.list_folders("c/")) == []
    assert list(storage.list_folders("nothing/")) == []


def test_listing_goes_on_behind_a_page(storage: Storage) -> None:
    """More objects than an object store gives at once are all listed, once, in order."""
    names = [f"c/{number:05d}" for number in range(1100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: storage.put(name, b""), reversed(names)))

    assert names == keys(storage, "c/")
    assert names[:1050] == keys(storage, "c/", limit=1050)
    storage.delete(names[1:])
    assert names[:1] == keys(storage)


def test_deletion_is_no_error_twice(storage: Storage) -> None:
    """Deleting removes what is there and ignores what is not."""
    storage.put("c/one", b"1")
    storage.put("c/two", b"2")
    storage.delete(iter(["c/one", "c/none", "none/none", "c/one"]))
    storage.delete([])

    assert keys(storage) == ["c/two"]
    with pytest.raises(ObjectNotFoundError):
        storage.get("c/one")


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_names_are_plain_names(storage: Storage, key: str) -> None:
    """No character of a name is a pattern, an escape or a command."""
    storage.put(key, b"odd")
    storage.create(f"{key}.created", b"created")

    assert storage.get(key) == b"odd"
    assert storage.get_range(key, 1, 1) == b"d"
    assert storage.exists(key)
    assert {key, f"{key}.created"} == set(keys(storage))
    folder, slash, _ = key.rpartition("/")
    assert {key, f"{key}.created"} == set(keys(storage, folder + slash))
    storage.delete([key])
    assert [f"{key}.created"] == keys(storage)


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_wrong_names_are_refused_everywhere(storage: Storage, key: str) -> None:
    """A name that leads elsewhere, or nowhere, is refused before anything happens."""
    for call in (
        lambda: storage.get(key),
        lambda: storage.get_range(key, 0, 1),
        lambda: storage.get_tail(key, 1),
        lambda: storage.get_versioned(key),
        lambda: storage.put(key, b"x"),
        lambda: storage.create(key, b"x"),
        lambda: storage.replace(key, b"x", "token"),
        lambda: storage.exists(key),
        lambda: storage.delete([key]),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert keys(storage) == []


@pytest.mark.parametrize("prefix", ["a", "/", "a//", "../", "/a/"])
def test_wrong_prefixes_are_refused(storage: Storage, prefix: str) -> None:
    """A listing starts at a folder, and says so at once, not when it is read."""
    with pytest.raises(InvalidInputError):
        storage.list(prefix)
    with pytest.raises(InvalidInputError):
        storage.list_folders(prefix)


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1), (2**63, 1), (2**62, 2**62)])
def test_wrong_ranges_are_refused(storage: Storage, start: int, length: int) -> None:
    """No place counts from the end, or overflows."""
    storage.put("c/one", b"0123")

    with pytest.raises(InvalidInputError):
        storage.get_range("c/one", start, length)


def test_every_writable_place_says_what_it_can(storage: Storage) -> None:
    """These places commit: they create and replace, before and after they have tried it."""
    before = storage.capabilities
    storage.require_writable()
    after = storage.capabilities

    for capabilities in (before, after):
        assert capabilities.create
        assert capabilities.replace
    assert keys(storage) == []


def test_handles_are_shared_between_threads(storage: Storage) -> None:
    """Sixteen threads put, create, sync, read and list at once through one handle."""

    def work(number: int) -> bytes:
        data = bytes([number]) * 100
        storage.put(f"c/{number}", data)
        storage.sync()
        storage.create(f"refs/{number}", data)
        assert data == storage.get(f"refs/{number}")
        assert f"c/{number}" in keys(storage, "c/")
        return storage.get_range(f"c/{number}", 50, 100)

    with ThreadPoolExecutor(16) as pool:
        assert [bytes([n]) * 50 for n in range(48)] == list(pool.map(work, range(48)))


def test_one_thread_creates(storage: Storage) -> None:
    """Of many threads that create one name one wins, and its content stays."""

    def create(number: int) -> int | None:
        try:
            storage.create("refs/one", f"{number}".encode())
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(create, range(24)) if n is not None]

    assert [int(storage.get("refs/one"))] == winners


def test_handles_pickle(storage: Storage) -> None:
    """A pickled handle is one on the same place, with the same settings."""
    storage.put("c/one", b"1")
    with secrets_kept():
        copy = pickle.loads(pickle.dumps(storage))

    assert copy.get("c/one") == b"1"
    assert copy.url == storage.url
    copy.create("refs/one", b"2")
    assert storage.get("refs/one") == b"2"


def test_a_handle_shows_its_place_and_no_secret(place: Place, storage: Storage) -> None:
    """The repr names the place; keys do not stand in it."""
    assert place.url.partition("://")[2] in repr(storage)
    for secret in (place.options.get("key"), place.options.get("secret")):
        assert secret is None or secret not in repr(storage)
