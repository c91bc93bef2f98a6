"""A network that cuts, resets, refuses and loses answers: every commit is made, once, and read right."""

from __future__ import annotations

import errno
import gc
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import numpy as np
import pytest
import yarl
import zarr
from aiohttp import http_exceptions
from multidict import CIMultiDict, CIMultiDictProxy

from icechunk_arrow import Repository, StorageError
from icechunk_arrow.storage import s3 as s3_module
from icechunk_arrow.storage.failures import Kind, classify
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings
from icechunk_arrow.storage.source_files import SourceFiles
from tests.faults.proxy import FaultProxy, Spoil, fault_proxy, seeded
from tests.ingest.files import weather_file
from tests.places import make_array, read_array
from tests.storage.fake_s3 import fake_s3
from tests.storage.web import Page, web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers import S3Server
    from tests.storage.fake_s3 import FakeS3

QUICK = StorageSettings(retry_tries=8, retry_backoff_seconds=0.01, timeout_seconds=20)
HASTY = StorageSettings(retry_tries=8, retry_backoff_seconds=0.01, timeout_seconds=1)
COMMITS = 12
UNNOTICED = {Spoil.FLIPPED, Spoil.OTHER_FILE, Spoil.STALE}
"""What a place can believe: seals and checksums are for that, and catalogs that distrust listings."""
TOLD = {Spoil.REDIRECTED, Spoil.MISLED}
"""Errors at once: no try would help."""
OVERCOME = [spoil for spoil in Spoil if spoil not in UNNOTICED | TOLD]
EVERYTHING = dict.fromkeys(OVERCOME, 0.015)
OVER_HTTP = [spoil for spoil in OVERCOME if spoil not in {Spoil.SHORT, Spoil.LONGER}]
"""What can be noticed of a whole file without any checksum."""
WHOLE_FOR_HTTP = {Spoil.SHORT, Spoil.LONGER}


def _raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    error.__cause__ = cause
    return error


def _response_error(status: int) -> aiohttp.ClientResponseError:
    url = yarl.URL("http://h/x")
    asked = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(asked, (), status=status)


@pytest.mark.parametrize(
    "error",
    [
        _raised(
            aiohttp.ClientPayloadError("not completed"),
            http_exceptions.ContentLengthError("Not enough data"),
        ),
        http_exceptions.TransferEncodingError("Not enough data"),
        http_exceptions.BadStatusLine("HTT"),
        _raised(
            _response_error(400),
            http_exceptions.BadHttpMessage("Invalid header"),
        ),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientOSError(errno.ECONNRESET, "reset"),
        _raised(FileNotFoundError("http://h/x"), aiohttp.ServerTimeoutError()),
        ConnectionResetError(),
    ],
    ids=repr,
)
def test_what_no_server_said_is_no_status(error: BaseException) -> None:
    """An answer that did not come whole may come next time, whatever number its exception carries."""
    assert classify(error).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Kind.OTHER), (403, Kind.DENIED), (404, Kind.MISSING)]
)
def test_what_a_server_said_is_its_status(status: int, kind: Kind) -> None:
    """A refusal that came whole stays one."""
    said = _response_error(status)

    assert classify(said).kind is kind
    assert classify(_raised(FileNotFoundError("x"), said)).kind is kind


@pytest.fixture
def fake() -> Iterator[tuple[FaultProxy, dict[str, Any], FakeS3]]:
    """A proxy before a small server in this process, which spoils nothing yet."""
    s3_module._proven.clear()
    with fake_s3() as server, fault_proxy(server.endpoint, lambda *_: None) as proxy:
        yield proxy, {**server.storage_options, "endpoint_url": proxy.endpoint}, server


@pytest.mark.parametrize("spoil", OVERCOME, ids=lambda spoil: spoil.name)
def test_each_fault_alone_is_overcome(
    fake: tuple[FaultProxy, dict[str, Any], FakeS3], spoil: Spoil
) -> None:
    """Every second request is spoilt: all operations do what they should, and nothing is done twice."""
    proxy, options, server = fake
    storage = open_storage("s3://bucket/p", options, settings=HASTY)
    storage.require_writable()
    turns = iter(range(10**6))
    proxy.plan = lambda *_: spoil if next(turns) % 2 == 0 else None
    proxy.whole = lambda _: server.objects["p/k"]
    data = bytes(range(256)) * 40

    storage.put("k", data)
    for _ in range(4):
        assert storage.get_range("k", 300, 100) == data[300:400]
        assert storage.get_tail("k", 100) == (data[-100:], len(data))
    if spoil not in WHOLE_FOR_HTTP:  # checksums are for that
        assert storage.get("k") == data
        assert [found.key for found in storage.list()] == ["k"]
    assert storage.exists("k")
    assert not storage.exists("none")
    storage.delete(["k"])
    proxy.plan = lambda *_: None
    assert not storage.exists("k")
    assert proxy.spoilt[spoil] >= 4


@pytest.mark.parametrize("spoil", [Spoil.REDIRECTED, Spoil.MISLED])
def test_no_bucket_leads_elsewhere(
    fake: tuple[FaultProxy, dict[str, Any], FakeS3], spoil: Spoil
) -> None:
    """Where a redirect leads nobody goes, neither to read nor with what is to be written: it is an error."""
    proxy, options, server = fake
    storage = open_storage("s3://bucket/p", options, settings=HASTY)
    storage.require_writable()
    storage.put("k", b"here")
    passed = len(server.requests)
    proxy.plan = lambda *_: spoil
    asks: list[Callable[[], object]] = [
        lambda: storage.get("k"),
        lambda: storage.exists("k"),
        lambda: list(storage.list()),
        lambda: storage.put("new", b"there"),
        lambda: storage.create("newer", b"there"),
        lambda: storage.delete(["k"]),
    ]
    for ask in asks * 6:
        with pytest.raises(StorageError, match=r"s3://bucket/p"):
            ask()
    assert not proxy.strayed
    assert len(server.requests) == passed


def test_a_repository_is_read_over_a_bad_network(tmp_path: Path) -> None:
    """Plain HTTP with a fifth of all answers spoilt: all values are right, whatever the branch is called."""
    repo = Repository.create(tmp_path / "r")
    session = repo.writable_session("main")
    values = np.arange(64, dtype="i4").reshape(8, 8)
    make_array(session.store)[...] = values
    session.commit("values")
    repo.create_branch("ü %41?#", session.snapshot_id)
    with web() as site, fault_proxy(site.endpoint, lambda *_: None) as proxy:
        for file in (tmp_path / "r").rglob("*"):
            if file.is_file():
                key = quote(f"a b/{file.relative_to(tmp_path)}")
                site.pages[f"/{key}"] = Page(data=file.read_bytes())
        proxy.plan = seeded(3, dict.fromkeys(OVER_HTTP, 0.03))
        for _ in range(10):
            found = Repository.open(f"{proxy.endpoint}/a%20b/r", storage_settings=HASTY)
            assert (read_array(found, branch="ü %41?#") == values).all()
    assert proxy.spoilt.total() > 10
    assert all("%25" not in path or "%2541" in path for path in site.paths)


@pytest.mark.parametrize("failures", [1, 100])
def test_a_failure_keeps_no_file_open(tmp_path: Path, failures: int) -> None:
    """Overcome or told, it leaves no circle with an HDF5 file in it: who collects that can wait for ever."""
    h5py = pytest.importorskip("h5py")
    held: list[weakref.ref[Any]] = []
    with web() as site, fault_proxy(site.endpoint, lambda *_: None) as proxy:
        site.pages["/w.nc"] = Page(data=weather_file(tmp_path / "w.nc").read_bytes())
        files = SourceFiles({})

        def read() -> None:
            with (
                files.opened(f"{proxy.endpoint}/w.nc") as opened,
                h5py.File(tmp_path / "w.nc") as file,  # another one that they have open
            ):
                held.append(weakref.ref(file))
                left = iter(range(failures))
                proxy.plan = lambda *_: Spoil.BUSY if next(left, None) is not None else None
                opened.read(100)

        gc.collect()
        gc.disable()
        try:
            with nullcontext() if failures == 1 else pytest.raises(StorageError) as caught:
                read()
            del caught
            assert proxy.spoilt[Spoil.BUSY]
            assert held[0]() is None
        finally:
            gc.enable()


def commit_through(
    proxy: FaultProxy,
    s3: S3Server,
    url: str,
    catalog: str,
    plan: Callable[[str, str], Spoil | None],
    commits: int = COMMITS,
) -> None:
    """Make commits through a proxy, and compare what is there afterwards without it."""
    options = {**s3.storage_options, "endpoint_url": proxy.endpoint}
    repo = Repository.create(url, storage_options=options, storage_settings=QUICK, catalog=catalog)
    session = repo.writable_session("main")
    make_array(session.store)
    session.commit("array")
    proxy.plan = plan
    expected = np.zeros((8, 8), "i4")
    ids = []
    for number in range(1, commits + 1):
        session = repo.writable_session("main")
        row = number % 8
        zarr.open_array(session.store, path="a")[row] = number
        expected[row] = number
        ids.append(session.commit(f"commit {number}"))
        assert (read_array(repo) == expected).all()
    proxy.plan = lambda *_: None
    plain = Repository.open(url, storage_options=s3.storage_options)
    assert (read_array(plain) == expected).all()
    assert [info.id for info in plain.ancestry(branch="main")][:-2] == ids[::-1]


@pytest.mark.s3
@pytest.mark.parametrize("catalog", ["branches", "state"])
@pytest.mark.parametrize("spoil", [Spoil.CUT, Spoil.LOST, None], ids=str)
def test_commits_are_made_once(
    s3: S3Server, s3_url: str, catalog: str, spoil: Spoil | None
) -> None:
    """With 15 % of answers cut or lost, or 21 % spoilt in every way, all commits are there, in order."""
    rates = EVERYTHING if spoil is None else {spoil: 0.15}
    with fault_proxy(s3.endpoint, lambda *_: None, silent_seconds=1, whole=s3.find_object) as proxy:
        commit_through(proxy, s3, s3_url, catalog, seeded(12, rates))
        assert proxy.spoilt.total() >= COMMITS


@pytest.mark.s3
@pytest.mark.parametrize("catalog", ["branches", "state"])
@pytest.mark.parametrize("spoil", [Spoil.CUT, Spoil.LOST, Spoil.FAILED], ids=str)
def test_the_deciding_write_is_recognised(
    s3: S3Server, s3_url: str, catalog: str, spoil: Spoil
) -> None:
    """Every first answer to the write that decides a commit is spoilt: the commit is one's own."""
    seen: set[int] = set()

    def plan(method: str, path: str) -> Spoil | None:
        decides = method == "PUT" and ("/refs/" in path or "state.json" in path)
        turn = len(proxy.passed)
        if decides and turn - 1 not in seen:
            seen.add(turn)
            return spoil
        return None

    with fault_proxy(s3.endpoint, lambda *_: None) as proxy:
        commit_through(proxy, s3, s3_url, catalog, plan)
        assert proxy.spoilt[spoil] >= COMMITS


@pytest.mark.s3
def test_a_write_whose_every_answer_is_lost_is_found(s3: S3Server, s3_url: str) -> None:
    """After the last try the outcome is open: reading tells that the commit was made."""
    with fault_proxy(s3.endpoint, lambda *_: None) as proxy:

        def plan(method: str, path: str) -> Spoil | None:
            return Spoil.LOST if method == "PUT" and "/refs/" in path else None

        commit_through(proxy, s3, s3_url, "branches", plan, commits=2)


@pytest.mark.s3
@pytest.mark.parametrize("spoil", [Spoil.CUT, Spoil.LOST, Spoil.FAILED], ids=str)
def test_a_large_object_whose_last_answer_is_lost(
    s3: S3Server, s3_url: str, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts were put together, nobody heard it: the object is there, and is not an error."""
    monkeypatch.setattr(s3_module, "_PART_BYTES", 5 * 2**20)
    data = bytes(11 * 2**20)
    with fault_proxy(s3.endpoint, lambda *_: None) as proxy:
        options = {**s3.storage_options, "endpoint_url": proxy.endpoint}
        storage = open_storage(s3_url, options, settings=QUICK)
        times = iter([spoil])
        proxy.plan = lambda method, path: (
            next(times, None) if method == "POST" and "uploadId" in path else None
        )
        storage.put("k", data)
        assert proxy.spoilt == {spoil: 1}
    assert open_storage(s3_url, s3.storage_options).get("k") == data


@pytest.mark.s3
def test_a_network_that_never_answers_whole_is_told(s3: S3Server, s3_url: str) -> None:
    """After the tries there is one of our errors, which says how often it was tried."""
    open_storage(s3_url, s3.storage_options).put("k", bytes(1000))
    with fault_proxy(s3.endpoint, lambda *_: Spoil.CUT) as proxy:
        options = {**s3.storage_options, "endpoint_url": proxy.endpoint}
        storage = open_storage(s3_url, options, settings=QUICK)
        with pytest.raises(StorageError, match=r"'k'.*tried 8 times"):
            storage.get("k")
