"""What only object stores do: failures on the wire, tries, conditions, places without commits."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from icechunk_arrow.errors import (
    AlreadyExistsError,
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage import s3 as s3_module
from icechunk_arrow.storage.failures import pause_seconds
from icechunk_arrow.storage.fsspec import FsspecStorage
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.s3 import S3Storage
from icechunk_arrow.storage.secrets import Address
from icechunk_arrow.storage.settings import StorageSettings
from tests.storage.fake_s3 import Fault, fake_s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.storage.port import Storage
    from tests.servers import S3Server
    from tests.storage.fake_s3 import FakeS3

QUICK = StorageSettings(retry_tries=3, retry_backoff_seconds=0.01, timeout_seconds=5)


@pytest.fixture
def server() -> Iterator[FakeS3]:
    s3_module._proven.clear()  # a port may come back, with a server of other manners behind it
    with fake_s3() as state:
        yield state


@pytest.fixture
def storage(server: FakeS3) -> Storage:
    found = open_storage("s3://bucket/p", server.storage_options, settings=QUICK)
    found.require_writable()
    assert server.objects == {}, "the probe was not removed"
    return found


READS: dict[str, Callable[[Storage], object]] = {
    "get": lambda storage: storage.get("k"),
    "get_range": lambda storage: storage.get_range("k", 1, 2),
    "get_tail": lambda storage: storage.get_tail("k", 2),
    "get_versioned": lambda storage: storage.get_versioned("k"),
    "exists": lambda storage: storage.exists("k"),
    "list": lambda storage: list(storage.list()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_each_reading_is_one_request(
    server: FakeS3, storage: Storage, read: Callable[[Storage], object]
) -> None:
    """Nothing is asked twice, looked up first, or asked for its size before."""
    server.objects["p/k"] = b"0123"
    read(storage)

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503, code="SlowDown"),
        Fault(status=500, code="InternalError"),
        Fault(status=500),
        Fault(status=502),
        Fault(status=429),
        Fault(status=400, code="RequestTimeout"),
        Fault(cut=True),
    ],
    ids=str,
)
def test_what_may_go_well_next_time_is_tried_again(
    server: FakeS3, storage: Storage, fault: Fault
) -> None:
    """Throttling, failures of the server and cut connections are asked again, and it goes well."""
    server.objects["p/k"] = b"0123"
    for read, expected in (
        (storage.get, b"0123"),
        (lambda key: storage.get_range(key, 1, 2), b"12"),
        (lambda key: storage.get_tail(key, 1), (b"3", 4)),
        (lambda _: [found.key for found in storage.list()], ["k"]),
        (storage.exists, True),
    ):
        if fault.status == 400 and read == storage.exists:
            continue  # the answer to a HEAD has no body, so nothing tells it from other refusals
        server.faults.extend([fault, fault])
        server.requests.clear()
        assert expected == read("k")
        assert len(server.requests) == 3
    server.faults.append(fault)
    storage.put("new", b"x")
    assert server.objects["p/new"] == b"x"


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "InvalidArgument"), (403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (404, "")],
)
def test_a_refusal_is_not_asked_again(
    server: FakeS3, storage: Storage, status: int, code: str
) -> None:
    """What the client did wrong stays wrong: one request, one error of ours."""
    server.faults.append(Fault(status=status, code=code))
    with pytest.raises(IcechunkArrowError) as caught:
        storage.get("k")

    assert len(server.requests) == 1
    assert isinstance(caught.value, ObjectNotFoundError if status == 404 else StorageError)


def test_tries_are_bounded(server: FakeS3, storage: Storage) -> None:
    """After the last try the error names the object, the tries and what the server said."""
    server.faults.extend([Fault(status=503, code="SlowDown")] * 10)
    with pytest.raises(StorageError, match=r"'k'.*on purpose.*tried 3 times"):
        storage.get("k")

    assert len(server.requests) == 3


def test_waiting_is_bounded(server: FakeS3) -> None:
    """A server that does not answer is given up after the time-out, as often as there are tries."""
    settings = StorageSettings(retry_tries=2, retry_backoff_seconds=0.01, timeout_seconds=0.3)
    storage = open_storage("s3://bucket/p", server.storage_options, settings=settings)
    server.faults.extend([Fault(seconds=3600)] * 2)  # whoever waits for the answer waits too long
    with pytest.raises(StorageError, match="tried 2 times"):
        storage.get("k")

    assert len(server.requests) == 2


def test_nobody_there_is_a_storage_error() -> None:
    """A port where nobody listens is told as such, after the tries."""
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    storage = open_storage("s3://bucket/p", options, settings=QUICK)

    with pytest.raises(StorageError, match="tried 3 times"):
        storage.get("k")


def test_pauses_double_up_to_the_longest() -> None:
    """Pauses grow, never beyond the setting, and chance only shortens them, by half at most."""
    settings = StorageSettings(retry_backoff_seconds=0.1, retry_backoff_max_seconds=1.0)

    assert [pause_seconds(n, settings, 0.0) for n in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pause_seconds(1, settings, 1.0) == 0.05
    assert pause_seconds(5000, settings, 0.0) == 1.0


@pytest.mark.parametrize(
    "fault",
    [Fault(status=412), Fault(status=412, code="PreconditionFailed")],
    ids=["bare", "with a code"],
)
def test_a_412_means_taken_or_changed(server: FakeS3, storage: Storage, fault: Fault) -> None:
    """With or without a code, without the name of the condition, after one request."""
    server.faults.append(fault)
    with pytest.raises(AlreadyExistsError):
        storage.create("k", b"1")
    server.faults.append(fault)
    with pytest.raises(PreconditionFailedError):
        storage.replace("k", b"1", '"token"')

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "fault",
    [Fault(status=409, code="ConditionalRequestConflict"), Fault(status=409)],
    ids=["with a code", "bare"],
)
def test_a_409_is_asked_again_and_then_means_taken(
    server: FakeS3, storage: Storage, fault: Fault
) -> None:
    """A conflict leaves open who won: another try tells; when none does, somebody else has it."""
    server.faults.append(fault)
    storage.create("k", b"1")
    assert server.objects["p/k"] == b"1"

    token = storage.get_versioned("k")[1]
    server.faults.append(fault)
    storage.replace("k", b"2", token)
    assert server.objects["p/k"] == b"2"

    server.faults.extend([fault] * 3)
    with pytest.raises(AlreadyExistsError):
        storage.create("l", b"1")
    server.faults.extend([fault] * 3)
    with pytest.raises(PreconditionFailedError):
        storage.replace("k", b"3", '"token"')
    assert not server.faults


def test_a_conflict_of_an_unconditional_write_is_asked_again(
    server: FakeS3, storage: Storage
) -> None:
    """A gateway before a file system says so while a folder is removed under the object."""
    fault = Fault(status=409, code="ExistingObjectIsDirectory")
    server.faults.append(fault)
    storage.put("k", b"1")
    assert server.objects["p/k"] == b"1"

    server.faults.extend([fault] * 3)
    with pytest.raises(StorageError, match="ExistingObjectIsDirectory"):
        storage.put("l", b"2")
    assert not server.faults
    assert "p/l" not in server.objects


@pytest.mark.parametrize(
    "fault", [Fault(obeys=True, cut=True), Fault(obeys=True, status=500)], ids=str
)
def test_a_lost_answer_shows_as_taken_by_our_own(
    server: FakeS3, storage: Storage, fault: Fault
) -> None:
    """The server created, the answer was lost: the next try is refused, reading finds our own."""
    server.faults.append(fault)
    with pytest.raises(AlreadyExistsError):
        storage.create("k", b"ours")
    assert storage.get("k") == b"ours"

    token = storage.get_versioned("k")[1]
    server.faults.append(fault)
    with pytest.raises(PreconditionFailedError):
        storage.replace("k", b"ours too", token)
    assert storage.get("k") == b"ours too"


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_conditions_is_found_out(server: FakeS3, ignored: str) -> None:
    """Success for everybody would lose commits: such a server is refused, naming the condition."""
    server.heeds -= {ignored}
    storage = open_storage("s3://bucket/p", server.storage_options, settings=QUICK)

    if ignored == "If-None-Match":
        with pytest.raises(ReadOnlyError, match="If-None-Match"):
            storage.create("k", b"1")
        assert not storage.capabilities.create
    else:
        storage.create("k", b"1")
        with pytest.raises(ReadOnlyError, match="If-Match"):
            storage.replace("k", b"2", storage.get_versioned("k")[1])
        assert not storage.capabilities.replace
    assert "p/k" not in server.objects or server.objects["p/k"] == b"1"


def test_a_server_is_tried_once(server: FakeS3, storage: Storage) -> None:
    """The conditions of a server are tried once per process, not by every handle and creation."""
    assert server.probes == 4
    storage.create("k", b"1")
    open_storage("s3://bucket/p", server.storage_options, settings=QUICK).create("l", b"1")

    assert server.probes == 4


def test_a_server_that_ignores_ranges_is_read_right(server: FakeS3, storage: Storage) -> None:
    """The whole object instead of a part of it is noticed, and cut."""
    server.ranges = False
    server.objects["p/k"] = b"0123456789"

    assert storage.get_range("k", 3, 2) == b"34"
    assert storage.get_range("k", 8, 9) == b"89"
    assert storage.get_tail("k", 3) == (b"789", 10)


def test_a_limited_listing_asks_for_no_more(server: FakeS3, storage: Storage) -> None:
    """One key wanted, one key asked for."""
    for number in range(5):
        server.objects[f"p/refs/{number}"] = b"x"
    assert [found.key for found in storage.list("refs/", limit=1)] == ["refs/0"]

    assert len(server.requests) == 1
    assert "max-keys=1&" in server.requests[0] + "&"


def test_markers_of_folders_are_not_objects(server: FakeS3, storage: Storage) -> None:
    """Empty objects that consoles make to show a folder are not listed, nor counted by a limit."""
    for name in ("p/", "p/refs/", "p/refs/1", "p/refs/2"):
        server.objects[name] = b""

    assert [found.key for found in storage.list("refs/", limit=2)] == ["refs/1", "refs/2"]
    assert [found.key for found in storage.list(limit=1)] == ["refs/1"]


def test_a_deletion_that_failed_in_part_is_told(server: FakeS3, storage: Storage) -> None:
    """Success of the request is not success for each object in it."""
    server.objects.update({f"p/{name}": b"x" for name in "abc"})
    server.undeletable["p/b"] = "AccessDenied"
    with pytest.raises(ReadOnlyError, match=r"'b'.*AccessDenied"):
        storage.delete(["a", "b", "c"])

    assert set(server.objects) == {"p/b"}


def test_a_throttled_deletion_is_asked_again_for_the_rest(server: FakeS3, storage: Storage) -> None:
    """Only what the server could not get to is asked for again."""
    server.objects.update({f"p/{name}": b"x" for name in "abc"})
    server.undeletable["p/b"] = "SlowDown"
    storage.delete(["a", "b", "c"])

    assert server.objects == {}
    assert len(server.requests) == 2


def test_only_ascii_goes_into_metadata(storage: Storage) -> None:
    """HTTP headers hold nothing else."""
    with pytest.raises(InvalidInputError, match="ASCII"):
        storage.put("k", b"x", {"kind": "ß"})


@pytest.mark.s3
def test_metadata_stands_beside_the_object(s3: S3Server, s3_url: str) -> None:
    """What was given with a put is what S3 gives with the object, small or in parts."""
    storage = open_storage(s3_url, s3.storage_options)
    storage.put("k", b"x", {"kind": "manifest", "magic": "49434841"})

    fs = fsspec.filesystem("s3", **s3.storage_options)
    assert fs.metadata(f"{s3_url}/k") == {"kind": "manifest", "magic": "49434841"}


@pytest.mark.s3
def test_large_objects_go_in_parts(
    s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts make the object that was put, with its metadata; a failed part leaves nothing."""
    monkeypatch.setattr(s3_module, "_PART_BYTES", 5 * 2**20)
    storage = open_storage(s3_url, s3.storage_options)
    data = os.urandom(12 * 2**20 + 1)
    storage.put("k", [data[:7], data[7:]], {"kind": "chunk"})

    assert data == storage.get("k")
    assert data[-5:] == storage.get_tail("k", 5)[0]
    fs = fsspec.filesystem("s3", **s3.storage_options)
    assert fs.metadata(f"{s3_url}/k") == {"kind": "chunk"}
    assert fs.info(f"{s3_url}/k")["ETag"].endswith('-3"')


@pytest.mark.s3
def test_a_missing_bucket_is_told(s3: S3Server) -> None:
    """It is neither an empty place nor a missing object."""
    storage = open_storage("s3://no-such-bucket/x", s3.storage_options, settings=QUICK)

    for call in (
        lambda: storage.get("k"),
        lambda: list(storage.list()),
        lambda: storage.put("k", b"x"),
        lambda: storage.create("k", b"x"),
    ):
        with pytest.raises(StorageError, match="no such bucket; make it first"):
            call()


@pytest.mark.s3
def test_wrong_keys_are_told(s3: S3Server, s3_url: str) -> None:
    """Wrong credentials fail with what the server said; they do not stand in the text."""
    options = {**s3.storage_options, "secret": "wrong-secret"}
    storage = open_storage(s3_url, options, settings=QUICK)

    for call in (lambda: storage.get("k"), lambda: storage.put("k", b"x")):
        with pytest.raises((StorageError, ReadOnlyError)) as caught:
            call()
        assert "wrong-secret" not in str(caught.value)


@pytest.mark.s3
def test_many_requests_are_in_flight(s3: S3Server, s3_url: str) -> None:
    """64 threads read and write at once through one handle."""
    storage = open_storage(s3_url, s3.storage_options)

    def work(number: int) -> bytes:
        storage.put(f"c/{number}", f"{number}".encode())
        return storage.get(f"c/{number}")

    with ThreadPoolExecutor(64) as pool:
        assert [f"{n}".encode() for n in range(200)] == list(pool.map(work, range(200)))


@pytest.mark.s3
def test_a_forked_child_connects_anew(s3: S3Server, s3_url: str) -> None:
    """A handle used before a fork works in the child too."""
    script = (
        "import json, os, sys\n"
        "from icechunk_arrow.storage.open import open_storage\n"
        "storage = open_storage(sys.argv[1], json.loads(os.environ['OPTIONS']))\n"
        "storage.put('c/1', b'x')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    storage.create('refs/1', storage.get('c/1'))\n"
        "    os._exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, s3_url],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OPTIONS": json.dumps(s3.storage_options),
        },
        timeout=60,
        check=False,
    )

    assert done.returncode == 7
    assert open_storage(s3_url, s3.storage_options).get("refs/1") == b"x"


def test_the_persons_own_settings_stay(server: FakeS3) -> None:
    """What stands in storage_options is not overridden by ours."""
    config = {"read_timeout": 1.5, "max_pool_connections": 3, "retries": {"max_attempts": 2}}
    options = {**server.storage_options, "config_kwargs": config}
    storage = S3Storage(Address("s3://bucket/p", options, QUICK))

    found = storage._fs.config_kwargs
    assert config == {name: found[name] for name in config}
    assert found["connect_timeout"] == 5


@pytest.fixture
def plain() -> Iterator[FsspecStorage]:
    """Any file system that promises nothing: fsspec's own in memory."""
    fs = fsspec.filesystem("memory")
    yield FsspecStorage(Address("memory://plain/place", {}, QUICK))
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def test_any_file_system_reads_lists_and_deletes(plain: FsspecStorage) -> None:
    """What every file system can do works through the protocol."""
    names = ["a-b", "a/x", "a/b/c", "a0", "c/[1]*?.x"]
    for name in names:
        plain.put(name, [b"0123", b"456789"], {"kind": "x"})
    plain.sync()

    assert plain.get("a/x") == b"0123456789"
    assert plain.get_range("a/x", 3, 4) == b"3456"
    assert plain.get_range("a/x", 8, 4) == b"89"
    assert plain.get_range("a/x", 50, 4) == b""
    assert plain.get_range("a/x", 5, 0) == b""
    assert plain.get_tail("a/x", 3) == (b"789", 10)
    assert plain.get_tail("a/x", 30) == (b"0123456789", 10)
    assert plain.get_versioned("a/x")[0] == b"0123456789"
    assert sorted(names) == [found.key for found in plain.list()]
    assert [found.key for found in plain.list("a/", limit=1)] == ["a/b/c"]
    assert {found.size_bytes for found in plain.list()} == {10}
    assert all(found.modified is not None for found in plain.list())
    assert list(plain.list_folders()) == ["a", "c"]
    assert not list(plain.list("none/"))
    assert not list(plain.list_folders("none/"))
    assert plain.exists("a/x")
    assert not plain.exists("a")
    assert not plain.exists("none")
    for read in (plain.get, plain.get_versioned, lambda key: plain.get_tail(key, 1)):
        with pytest.raises(ObjectNotFoundError):
            read("none")
        with pytest.raises(ObjectNotFoundError):
            read("a")
    plain.delete(["a/x", "none", "a/b/c"])
    assert [found.key for found in plain.list()] == ["a-b", "a0", "c/[1]*?.x"]


def test_a_file_system_that_promises_nothing_takes_no_commits(plain: FsspecStorage) -> None:
    """The error names what is missing, and nothing is created."""
    plain.put("a", b"1")
    for write in (
        plain.require_writable,
        lambda: plain.create("b", b"1"),
        lambda: plain.create("a", b"1"),
    ):
        with pytest.raises(ReadOnlyError, match="exclusive creation"):
            write()
    with pytest.raises(ReadOnlyError, match="replace"):
        plain.replace("a", b"2", plain.get_versioned("a")[1])

    assert not plain.capabilities.create
    assert not plain.capabilities.replace
    assert [found.key for found in plain.list()] == ["a"]
    assert plain.get("a") == b"1"


@pytest.mark.parametrize(
    ("protocol", "options"), [("gs", {"mode": "create"}), ("az", {"overwrite": False})]
)
def test_known_object_stores_create_with_one_condition(
    monkeypatch: pytest.MonkeyPatch, plain: FsspecStorage, protocol: str, options: dict[str, Any]
) -> None:
    """gcsfs and adlfs are asked for exclusive creation, each in its own words."""
    fs = plain._fs
    asked = []

    def pipe_file(path: str, data: bytes, **more: Any) -> None:
        asked.append(more)
        if fs.exists(path):
            raise FileExistsError(path)
        type(fs).pipe_file(fs, path, data)

    monkeypatch.setattr(fs, "protocol", (protocol, "other"))
    monkeypatch.setattr(fs, "pipe_file", pipe_file)
    plain.create("refs/1", b"1")
    with pytest.raises(AlreadyExistsError):
        plain.create("refs/1", b"2")

    assert asked == [options, options]
    assert plain.get("refs/1") == b"1"
