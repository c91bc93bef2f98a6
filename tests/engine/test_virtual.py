"""Virtual chunks: what was allowed is read, as it was recorded; nothing else is touched or asked for."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icechunk_arrow import (
    IcechunkArrowError,
    InvalidInputError,
    NotAuthorizedError,
    NotFoundError,
    Repository,
    SourceChangedError,
    StorageError,
)
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.locations import fault_of_location, normal_location, suspects
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.engine.virtual import VirtualAccess, check_reference, lies_within
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.answers import bare_etag, micros_of
from icechunk_arrow.storage.external import difference
from icechunk_arrow.storage.settings import StorageSettings
from icechunk_arrow.zarr import VirtualChunkSpec
from tests.places import make_array
from tests.storage.web import Manner, Page, Web, web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import S3Server

DATA = bytes(range(200))
QUICK = StorageSettings(retry_tries=3, retry_backoff_seconds=0.01, timeout_seconds=5)


def read(allowed: Any, location: str, start: int = 10, length: int = 20, **facts: Any) -> bytes:
    """Read a range of a location, as a session does it."""
    ref = ChunkRef(file=location, offset=start, length=length, **facts)
    return VirtualAccess(allowed, QUICK).read(ref, 0, length)


# -- local files


@pytest.fixture(params=["one call", "walked"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file in a folder, beside a secret; opened in both ways."""
    if request.param == "walked":
        monkeypatch.setattr(disk, "_openat2", None)
    elif disk._openat2 is None:
        pytest.skip("this system has no openat2")
    folder = tmp_path / "allowed"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "file").write_bytes(DATA)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(bytes(200))
    return folder


def test_a_file_below_the_prefix_is_read(source: Path) -> None:
    """Also where empty parts stand in its path, and nothing is above the prefix."""
    for allowed, location in (
        (f"file://{source}", f"file://{source}/in/file"),
        (f"file://{source}/", f"file://{source}/in//file"),
        (f"file://{source}/in", f"file://{source}/in/file"),
        ("file:///", f"file://{source}/in/file"),
        ("LOCAL:///", f"local://{source}/in/file"),
    ):
        assert read([allowed], location) == DATA[10:30]


@pytest.mark.parametrize("kind", ["file", "folder", "folder above", "up and down", "itself"])
def test_no_link_below_the_prefix_is_followed(source: Path, kind: str) -> None:
    """Neither to a file nor to a folder, wherever it leads, also one that leads back inside."""
    leads = {
        "file": (source / "link", "../secret/file", "link"),
        "folder": (source / "link", "../secret", "link/file"),
        "folder above": (source / "in" / "link", "../../secret", "in/link/file"),
        "up and down": (source / "in" / "link", "../in/file", "in/link"),
        "itself": (source / "link", "link", "link"),
    }
    place, target, name = leads[kind]
    place.symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        read([f"file://{source}"], f"file://{source}/{name}")


def test_a_link_that_comes_later_is_met(source: Path, tmp_path: Path) -> None:
    """Nothing is remembered of folders that were found right."""
    access = VirtualAccess([f"file://{source}"], QUICK)
    ref = ChunkRef(file=f"file://{source}/in/file", length=10)
    assert access.read(ref, 0, 10) == DATA[:10]
    (source / "in").rename(source / "was")
    (source / "in").symlink_to(tmp_path / "secret")

    with pytest.raises(StorageError, match="symbolic link"):
        access.read(ref, 0, 10)


def test_the_prefix_itself_may_be_reached_through_links(source: Path, tmp_path: Path) -> None:
    """Somebody named it; where its link leads elsewhere later, that is read."""
    (tmp_path / "named").symlink_to(source)
    access = VirtualAccess([f"file://{tmp_path}/named"], QUICK)
    ref = ChunkRef(file=f"file://{tmp_path}/named/in/file", length=10)
    assert access.read(ref, 0, 10) == DATA[:10]

    other = tmp_path / "other" / "in"
    other.mkdir(parents=True)
    (other / "file").write_bytes(DATA[::-1])
    (tmp_path / "named").unlink()
    (tmp_path / "named").symlink_to(tmp_path / "other")
    assert access.read(ref, 0, 10) == DATA[::-1][:10]
    (other / "link").symlink_to("file")
    with pytest.raises(StorageError, match="symbolic link"):
        read([f"file://{tmp_path}/named"], f"file://{tmp_path}/named/in/link")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_only_files_are_read(source: Path, tmp_path: Path, kind: str) -> None:
    """A pipe makes nobody wait, a device gives nothing: the error says what it is."""
    allowed, location = f"file://{source}", f"file://{source}/x"
    if kind == "pipe":
        os.mkfifo(source / "x")
    elif kind == "folder":
        (source / "x").mkdir()
    elif kind == "device":
        allowed, location = "file:///dev", "file:///dev/zero"
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(source / "x"))
    with pytest.raises(StorageError, match="is not a file"):
        read([allowed], location)


def test_a_missing_file_is_told(source: Path) -> None:
    """Also where a folder is missing or is a file; a name that looks encoded is explained."""
    for name in ("none", "none/file", "in/file/x"):
        with pytest.raises(NotFoundError, match="does not exist"):
            read([f"file://{source}"], f"file://{source}/{name}")
    (source / "one two").write_bytes(DATA)
    with pytest.raises(NotFoundError, match="percent-encoded"):
        read([f"file://{source}"], (source / "one two").as_uri())


@pytest.mark.parametrize(
    "name", ["one two", "one%20two", "a?b", "a#b", "ü", "a+b", "[1]*", "a;..;b", "%"]
)
def test_the_name_of_a_local_file_is_taken_as_it_is(source: Path, name: str) -> None:
    """Nothing in it is decoded, and nothing has a meaning."""
    (source / name).write_bytes(DATA)

    assert read([f"file://{source}"], f"file://{source}/{name}") == DATA[10:30]


def test_no_descriptor_is_left(source: Path) -> None:
    """Neither a read nor a refusal keeps a file or folder open."""
    (source / "link").symlink_to("in")
    access = VirtualAccess([f"file://{source}"], QUICK)
    held = Path("/proc/self/fd")
    before = len(list(held.iterdir()))
    for name in ("in/file", "link/file", "none", "in", "in/file/x"):
        ref = ChunkRef(file=f"file://{source}/{name}", length=10)
        for _ in range(20):
            with contextlib.suppress(IcechunkArrowError):
                access.read(ref, 0, 10)

    assert len(list(held.iterdir())) == before


# -- the web


@pytest.fixture
def site() -> Iterator[Web]:
    """A server with a file."""
    with web() as state:
        state.pages["/data/file"] = Page(data=DATA)
        yield state


@pytest.mark.parametrize(
    "text",
    [
        "/data/one%20two.bin",
        "/data/one%2520two.bin",
        "/data/file?version=3&sig=a%2Bb%2F",
        "/data/%41%c3%bc",
        "/data//a//b",
        "//data/a",
        "/data/a+b;c=d,e~f!$&'()*",
        '/data/[x]{y}|^`"<>',
        "/data/",
    ],
)
def test_a_web_location_is_sent_as_it_stands(site: Web, text: str) -> None:
    """Escapes, query and all: one URL is one file."""
    site.pages[text] = Page(data=DATA)

    assert read([f"{site.endpoint}/"], site.endpoint + text) == DATA[10:30]
    assert site.paths == [text]


def test_hosts_are_compared_as_they_are_asked(site: Web) -> None:
    """Case of scheme and host, and a port that goes without saying, make no difference."""
    access = VirtualAccess(["HTTP://Example.ORG:80/a"], QUICK)
    for location in ("http://example.org/a/b", "HTTP://EXAMPLE.org:80/a/b"):
        assert access.allows(location)
    for location in (
        "https://example.org/a/b",
        "http://example.org:8080/a/b",
        "http://example.org/ab",
        "http://example.org/A/b",
        "http://example.org",
        "http://example.org.evil/a/b",
        "http://example.org@evil/a/b",
        "http://user@example.org/a/b",
        "http://user:x@example.org/a/b",
        "http://example.org/a/../c",
        "http://example.org/a/%2e%2E/c",
        "http://example.org/a/.%2e/c",
        "http://example.org/a/..%2fc",
        "http://example.org/a/x%2F..%2Fc",
        "http://example.org/a/..%5cc",
        "http://example.org/a/..;/c",
        "http://example.org/a/..?x",
        "http://example.org/a/x?y=/../c",
        "http://example.org/a\\b",
    ):
        assert not access.allows(location), location
    assert VirtualAccess(["http://[::1]:8000/"], QUICK).allows("http://[::1]:8000/x")
    assert read([f"{site.endpoint}/data"], f"HTTP{site.endpoint[4:]}/data/file") == DATA[10:30]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_needs_the_permission_of_its_target(site: Web, status: int) -> None:
    """Within a prefix it is followed; elsewhere nobody is asked, and the error names the target."""
    with web() as other:
        other.pages["/data/file"] = Page(data=DATA[::-1])
        location = f"{site.endpoint}/data/away"
        for target in ("file", "/data/file", f"{site.endpoint}/data/file"):
            site.pages["/data/away"] = Page(status=status, headers={"Location": target})
            assert read([f"{site.endpoint}/data"], location) == DATA[10:30]

        far = f"{other.endpoint}/data/file"
        site.pages["/data/away"] = Page(status=status, headers={"Location": far})
        with pytest.raises(NotAuthorizedError, match=f"redirected to '{far}'"):
            read([f"{site.endpoint}/data"], location)
        assert other.asked == []
        both = {
            f"{site.endpoint}/data": {"headers": {"Authorization": "ours"}},
            f"{other.endpoint}/data": {"headers": {"X-Other": "theirs"}},
        }
        assert read(both, location) == DATA[::-1][10:30]
        assert "Authorization" not in other.asked[0][1]
        assert other.asked[0][1]["X-Other"] == "theirs"


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://x/y", "/data/../etc", "//u:p@h/x", ""],
)
def test_a_redirect_leads_to_the_web_alone(site: Web, target: str) -> None:
    """Not to files, also where all of them are allowed, nor to what no location may be."""
    site.pages["/data/away"] = Page(status=302, headers={"Location": target})
    allowed = ["file:///", "ftp://x/", f"{site.endpoint}/", "http://h/"]
    if target == "":
        with pytest.raises(StorageError, match="redirected more than"):
            read(allowed, f"{site.endpoint}/data/away")
    elif target.startswith("/data"):
        with pytest.raises(NotFoundError):  # resolved before it is judged: it is within the prefix
            read(allowed, f"{site.endpoint}/data/away")
    else:
        with pytest.raises(NotAuthorizedError):
            read(allowed, f"{site.endpoint}/data/away")


def test_redirects_in_a_circle_end(site: Web) -> None:
    """After a few, with an error that says so."""
    site.pages["/data/a"] = Page(status=302, headers={"Location": "b"})
    site.pages["/data/b"] = Page(status=302, headers={"Location": "a"})
    with pytest.raises(StorageError, match="redirected more than"):
        read([site.endpoint], f"{site.endpoint}/data/a")

    assert len(site.asked) < 10


@pytest.mark.parametrize("manner", list(Manner), ids=str)
def test_what_a_server_does_wrong_gives_no_bytes(site: Web, manner: Manner) -> None:
    """The right bytes or an error, whatever the server makes of a range."""
    right = {Manner.NO_RANGES, Manner.NO_RANGES_CHUNKED}
    site.pages["/data/file"] = Page(data=DATA, manner=manner)
    if manner in right:
        assert read([site.endpoint], f"{site.endpoint}/data/file") == DATA[10:30]
    else:
        with pytest.raises(StorageError, match="file"):
            read([site.endpoint], f"{site.endpoint}/data/file")


def test_a_time_recorded_over_http_is_compared(site: Web) -> None:
    """With the answer's own time, in whole seconds; what is newer is refused."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    told = {"Last-Modified": format_datetime(moment, usegmt=True)}
    site.pages["/data/file"] = Page(data=DATA, headers=told)
    for recorded in (moment, moment + timedelta(milliseconds=5), moment + timedelta(days=1)):
        time = micros_of(recorded)
        assert (
            read([site.endpoint], f"{site.endpoint}/data/file", last_modified=time) == DATA[10:30]
        )
    assert len(site.asked) == 3
    for recorded in (moment - timedelta(seconds=1), moment - timedelta(milliseconds=5)):
        time = micros_of(recorded)
        with pytest.raises(SourceChangedError, match="modified at 2026-01-02 03:04:05"):
            read([site.endpoint], f"{site.endpoint}/data/file", last_modified=time)
    for headers in ({}, {"Last-Modified": "yesterday"}):
        site.pages["/data/file"] = Page(data=DATA, headers=headers)
        with pytest.raises(SourceChangedError, match="no time is told"):
            read([site.endpoint], f"{site.endpoint}/data/file", last_modified=0)


def test_an_etag_recorded_over_http_is_compared(site: Web) -> None:
    """Without quotes; a weak one is another one, and none at all is no match."""
    for told, recorded, same in (
        ('"abc"', "abc", True),
        ('"abc"', '"abc"', True),
        ('W/"abc"', 'W/"abc"', True),
        ('W/"abc"', "W/abc", True),
        ('W/"abc"', "abc", False),
        ('"abc"', 'W/"abc"', False),
        ('"abd"', "abc", False),
        (None, "abc", False),
    ):
        headers = {} if told is None else {"ETag": told}
        site.pages["/data/file"] = Page(data=DATA, headers=headers)
        if same:
            assert read([site.endpoint], f"{site.endpoint}/data/file", etag=recorded)
        else:
            with pytest.raises(SourceChangedError, match="ETag"):
                read([site.endpoint], f"{site.endpoint}/data/file", etag=recorded)


def test_the_end_of_a_file_on_the_web_is_told(site: Web) -> None:
    """A range that the file no longer has is a changed source, not fewer bytes and not a failure."""
    for start in (190, 200, 5000):
        with pytest.raises(SourceChangedError, match="ends"):
            read([site.endpoint], f"{site.endpoint}/data/file", start=start)


# -- object stores


@pytest.mark.s3
@pytest.mark.parametrize("name", ["a//b", "/a", "one two", "one%20two", "a?b#c", "ü+&=", "a;b"])
def test_the_key_of_an_object_is_taken_as_it_is(s3: S3Server, name: str) -> None:
    """Also one that could be none of a repository's own."""
    import s3fs

    folder = secrets.token_hex(4)
    fs = s3fs.S3FileSystem(**s3.storage_options)
    fs.call_s3("put_object", Bucket=s3.bucket, Key=f"{folder}/{name}", Body=DATA)
    allowed = {f"{s3.url}/{folder}": s3.storage_options}

    assert read(allowed, f"{s3.url}/{folder}/{name}") == DATA[10:30]


@pytest.mark.s3
def test_facts_of_an_object_are_compared(s3: S3Server) -> None:
    """ETag and time, both: each alone, and one that is right beside one that is wrong."""
    import s3fs

    key = secrets.token_hex(4)
    fs = s3fs.S3FileSystem(**s3.storage_options)
    fs.call_s3("put_object", Bucket=s3.bucket, Key=f"v/{key}", Body=DATA)
    info = fs.call_s3("head_object", Bucket=s3.bucket, Key=f"v/{key}")
    allowed, location = {f"{s3.url}/v": s3.storage_options}, f"{s3.url}/v/{key}"
    etag, time = info["ETag"], micros_of(info["LastModified"])
    assert time is not None
    for facts in ({"etag": etag}, {"last_modified": time}, {"etag": etag, "last_modified": time}):
        assert read(allowed, location, **facts) == DATA[10:30]
    for facts in (
        {"etag": "W/" + etag},
        {"last_modified": time - 1_000_000},
        {"etag": etag, "last_modified": time - 1_000_000},
        {"etag": "other", "last_modified": time},
    ):
        with pytest.raises(SourceChangedError):
            read(allowed, location, **facts)


# -- what a location is


GOOD = [
    "file:///a",
    "file:///a b/%20?#;ü",
    "local:///a//b",
    "FILE:///a",
    "s3://bucket/a",
    "s3://bucket//a",
    "s3://bucket/a//b/",
    "s3://bucket/a b%?#\u00a0",
    "gs://b/...",
    "s3://b/..a/b..",
    "memory://x/y",
    "abfs://container@account.dfs.core.windows.net/a",
    "http://h/",
    "https://h:8443/a?b=c/d&e=%2F",
    "http://[2001:DB8::1]:80/a",
    "http://127.0.0.1/a",
]
BAD = {
    "": "absolute",
    "a": "absolute",
    "/a/b": "absolute",
    "://a/b": "absolute",
    "1s://a/b": "absolute",
    "s3://": "absolute",
    "s3:///a": "no file",
    "s3://bucket": "no file",
    "s3://bucket/": "no file",
    "file://a/b": "three slashes",
    "file:///": "three slashes",
    "file:////a": "three slashes",
    "file:///a/": "folder",
    "file:///a/../b": "'..'",
    "s3://b/.": "'..'",
    "s3://b/./a": "'..'",
    "s3://b/a/..": "'..'",
    "s3://b/%2e%2E/a": "'..'",
    "s3://b/a%2F..%2fb": "'..'",
    "s3://b/a/.%2e": "'..'",
    "zip://x::file:///y": "::",
    "s3://b/a::b": "::",
    "http://h/a::b": "::",
    "s3://b/a\\b": "backslash",
    "s3://b/a\nb": "control",
    "s3://b/a\x7f": "control",
    "http://h": "no file",
    "http://h?x": "host",
    "http:///a": "host",
    "http://h:/a": "host",
    "http://h:0/a": "host",
    "http://h:080/a": "host",
    "http://h:65536/a": "host",
    "http://h:x/a": "host",
    "http://[::1/a": "host",
    "http://bücher.example/a": "host",
    "http://h%2e/a": "host",
    "http://u@h/a": "password",
    "https://u:p@h/a": "password",
    "http://h/a b": "percent-encoded",
    "http://h/ü": "percent-encoded",
    "http://h/a#b": "percent-encoded",
    "http://h/a?": "query",
    "http://h/..": "'..'",
    "http://h/a/..;x/b": "'..'",
    "http://h/a?../b": "'..'",
}


@pytest.mark.parametrize("location", GOOD)
def test_what_can_be_read_can_be_written(location: str) -> None:
    """Names that foreign files have are nobody's fault."""
    assert fault_of_location(location) is None
    check_reference(ChunkRef(file=location, length=1))


def ways_to_write(session: Any) -> dict[str, Callable[[str], None]]:
    """Every way in which a location comes into a repository through a session."""
    store = session.store

    def table(location: str) -> pa.Table:
        columns = {"index": [[0, 0]], "location": [location], "offset": [0], "length": [1]}
        return pa.table(columns)

    return {
        "set_references": lambda location: session.set_references("/a", table(location)),
        "set_chunk_ref": lambda location: session.set_chunk_ref(
            "/a", (0, 0), ChunkRef(file=location, length=1)
        ),
        "set_virtual_ref": lambda location: store.set_virtual_ref(
            "a/c/0/0", location, offset=0, length=1
        ),
        "set_virtual_refs": lambda location: store.set_virtual_refs(
            "a", [VirtualChunkSpec(index=(0, 0), location=location, offset=0, length=1)]
        ),
        "set_virtual_refs_arr": lambda location: store.set_virtual_refs_arr(
            "a", (1, 1), [location], [0], [1]
        ),
    }


@pytest.mark.parametrize(("location", "fact"), BAD.items(), ids=map(repr, BAD))
def test_what_cannot_be_read_cannot_be_written(location: str, fact: str) -> None:
    """Every way in refuses it, and names the fact; no permission makes it readable."""
    assert fact in (fault_of_location(location) or "")
    session = Repository.create(f"memory://{secrets.token_hex(6)}").writable_session("main")
    make_array(session.store)
    before = session.status()
    for name, write in ways_to_write(session).items():
        if location == "" and name == "set_virtual_refs_arr":
            continue  # there it leaves a chunk out
        with pytest.raises((InvalidInputError, NotFoundError)):
            write(location)
    assert session.status() == before
    assert not VirtualAccess(["file:///", "s3://b", "http://h", "http://u"], QUICK).allows(location)


_PARTS = ["s3", "file", "FILE", "local", "http", "https", "HTTP", "h", ":80", "a+b", ":", "/", "//"]
_PARTS += [
    "://",
    "///",
    "..",
    ".",
    "::",
    "%2e",
    "%2E",
    "%2F",
    "%2f",
    "%5c",
    "%20",
    "\\",
    "\n",
    "\x7f",
]
_PARTS += ["x", "é", "\u017f3", "1", "#", "?", ";", "@", "[", "]", " ", "\u3000"]


@given(st.lists(st.sampled_from(_PARTS), max_size=9).map("".join) | st.text())
@example("http://h/a")
@example("http://h:80/a?b/../c")
def test_the_quick_look_at_a_column_misses_nothing(location: str) -> None:
    """Whatever has a fault is suspect; and what is plain is not, so that columns stay quick."""
    if fault_of_location(location) is not None:
        assert suspects(pa.array([location])).tolist() == [True]
    else:
        assert normal_location(normal_location(location)) == normal_location(location)
        assert fault_of_location(normal_location(location)) is None


def test_plain_locations_are_not_looked_at_closely() -> None:
    """Those that most repositories have, a million of a kind."""
    plain = [
        "s3://b/a b/c.nc",
        "file:///a/b%20.nc",
        "https://h.org/a%20b.nc?x=1",
        "http://h:8080/a",
    ]

    assert not suspects(pa.array(plain)).any()


# -- facts and empty chunks


def test_whole_seconds_are_whole_seconds() -> None:
    """A time recorded without a part of a second stands for all of that second, a finer one for itself."""
    second, half = 5_000_000, 500_000
    for found, recorded, same in (
        (second, second, True),
        (second + half, second, True),
        (second + 2 * half, second, False),
        (second + half, second + half, True),
        (second + half, second + half - 1, False),
        (second, second + half, True),
        (second + 2 * half, second + half, False),
        (0, second, True),
    ):
        assert (difference(None, found, None, recorded) is None) is same


def test_etags_without_quotes() -> None:
    """Quotes go, the mark of weakness stays."""
    assert [bare_etag(each) for each in ('"a"', "a", 'W/"a"', "W/a", '""', "w/a")] == [
        *("a", "a", "W/a", "W/a", "", "w/a")
    ]


def test_an_empty_chunk_asks_nobody(tmp_path: Path) -> None:
    """A chunk of length 0 is no bytes, virtual or native, whether its file is there or not."""
    repo = Repository.create(
        tmp_path / "r", config=RepositoryConfig(inline_chunk_threshold_bytes=0)
    )
    session = repo.writable_session("main")
    make_array(session.store)
    session.set_chunk_ref("/a", (0, 0), ChunkRef(file="http://127.0.0.1:9/none", length=0))
    session.set_chunk_ref("/a", (0, 1), ChunkRef(file="0" * 20, length=0))
    session.commit("empty")
    view = repo.readonly_session(branch="main")
    array = view.get_array("/a")
    for coord in ((0, 0), (0, 1)):
        found = view.find_chunk(array, coord)
        assert found is not None
        assert view.read_chunk(found, 0, 0) == b""


@pytest.mark.parametrize(
    ("place", "root", "within"),
    [
        ("{}", "{}/data", True),
        ("{}", "file://{}/data/more", True),
        ("{}", "{}x/data", False),
        ("{}", "{}/link", False),
        ("{}", "{}/link/data", False),
        ("{}", "{}/data/../..", False),
        ("{}", "data", False),
        ("{}", "~", False),
        ("https://h/r", "https://h/r/data", True),
        ("https://H:443/r/", "https://h/r/data", True),
        ("https://h/r", "https://h/r/%2e%2e/other", False),
        ("https://h/r", "https://h/r/..;/other", False),
        ("https://h/r", "https://u@h/r/data", False),
        ("https://h/r", "http://h/r/data", False),
        ("s3://b/r", "s3://b/r/data", True),
        ("s3://b/r", "s3://b/r2", False),
        ("/odd::name", "/odd::name/data", False),
    ],
)
def test_where_a_state_file_may_lead(tmp_path: Path, place: str, root: str, within: bool) -> None:
    """Below the place that was opened, however it is spelt; over links and disguised dots needs leave."""
    folder = tmp_path / "r"
    (folder / "data").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)

    assert lies_within(place.format(folder), root.format(folder), QUICK) is within


def test_leave_for_a_folder_is_none_for_its_links(tmp_path: Path) -> None:
    """The data of a state file are not read over a link below what was allowed, unless it is named itself."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path)
    root = str(tmp_path / "allowed" / "link" / "data")

    assert not VirtualAccess([f"file://{tmp_path}/allowed"], QUICK).allows_root(root)
    assert VirtualAccess([f"file://{root}"], QUICK).allows_root(root)


def test_access_survives_pickling(tmp_path: Path) -> None:
    """Executors read what the driver was allowed to."""
    (tmp_path / "file").write_bytes(DATA)
    access = pickle.loads(pickle.dumps(VirtualAccess([f"file://{tmp_path}"], QUICK)))
    ref = ChunkRef(file=f"file://{tmp_path}/file", length=10)

    assert access.read(ref, 0, 10) == DATA[:10]


def test_a_forked_child_takes_over_no_lock() -> None:
    """A child made while another thread opens a place of virtual chunks can read them."""
    script = (
        "import os, signal\n"
        "from icechunk_arrow.core.chunks import ChunkRef\n"
        "from icechunk_arrow.engine.virtual import VirtualAccess\n"
        "from icechunk_arrow.storage.memory import MemoryStorage\n"
        "from icechunk_arrow.storage.settings import StorageSettings\n"
        "MemoryStorage('m').put('k', b'0123')\n"
        "access = VirtualAccess(['memory://m/'], StorageSettings())\n"
        "(files,) = access._prefixes.values()\n"
        "files._lock.acquire()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    got = access.read(ChunkRef(file='memory://m/k', length=4), 0, 4)\n"
        "    os._exit(7 if got == b'0123' else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script]

    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 7


@pytest.mark.parametrize(
    "prefix",
    [
        "data",
        "/data",
        "s3:",
        "s3://",
        "http://u@h/",
        "http://h/a?/../b",
        "file://x/y",
        "s3://a/../b",
    ],
)
def test_a_prefix_must_be_one(prefix: str) -> None:
    """What no location could begin with is refused when the repository is opened."""
    with pytest.raises(InvalidInputError, match="not a URL prefix"):
        VirtualAccess([prefix], QUICK)
