"""Answers of web servers: what is right is given, what is wrong is asked for again or refused, never given."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.errors import InvalidInputError, ObjectNotFoundError, StorageError
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings
from tests.storage.web import Manner, Page, Web, web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.storage.port import Storage

DATA = bytes(range(256)) * 40
QUICK = StorageSettings(retry_tries=3, retry_backoff_seconds=0.01, timeout_seconds=5)
READS: dict[str, tuple[Callable[[Storage], object], object]] = {
    "range": (lambda storage: storage.get_range("k", 300, 100), DATA[300:400]),
    "range at the end": (lambda storage: storage.get_range("k", len(DATA) - 9, 99), DATA[-9:]),
    "tail": (lambda storage: storage.get_tail("k", 100), (DATA[-100:], len(DATA))),
}
WHOLE: dict[str, tuple[Callable[[Storage], object], object]] = {
    "whole": (lambda storage: storage.get("k"), DATA),
}
ALWAYS_RIGHT = {None, Manner.NO_RANGES, Manner.NO_RANGES_CHUNKED}
WRONG = [manner for manner in Manner if manner not in ALWAYS_RIGHT]
UNCHANGING = {Manner.GZIP, Manner.NO_LENGTH}


@pytest.fixture
def site() -> Iterator[Web]:
    """A server."""
    with web() as state:
        yield state


@pytest.fixture
def storage(site: Web) -> Storage:
    """A place on it."""
    return open_storage(f"{site.endpoint}/r", settings=QUICK)


@pytest.mark.parametrize("manner", [None, Manner.NO_RANGES, Manner.NO_RANGES_CHUNKED], ids=str)
@pytest.mark.parametrize(("read", "expected"), (READS | WHOLE).values(), ids=READS | WHOLE)
def test_ranges_may_be_ignored(
    site: Web,
    storage: Storage,
    manner: Manner | None,
    read: Callable[[Storage], object],
    expected: object,
) -> None:
    """With ranges and without them, the bytes are those that were asked for, in one request."""
    site.pages["/r/k"] = Page(data=DATA, manner=manner)

    assert read(storage) == expected
    assert len(site.asked) == 1


@pytest.mark.parametrize("manner", WRONG, ids=str)
@pytest.mark.parametrize(("read", "expected"), READS.values(), ids=READS)
def test_a_wrong_answer_is_never_given(
    site: Web,
    storage: Storage,
    manner: Manner,
    read: Callable[[Storage], object],
    expected: object,
) -> None:
    """The right bytes or an error; what may be an accident is asked for again, and then is right."""
    site.pages["/r/k"] = Page(data=DATA, manner=manner)
    with contextlib.suppress(StorageError):
        assert read(storage) == expected
    assert len(site.asked) in ({1} if manner in UNCHANGING else {1, 3})
    site.pages["/r/k"] = Page(data=DATA, manner=manner, times=2)
    if manner not in UNCHANGING:
        assert read(storage) == expected


@pytest.mark.parametrize("manner", [Manner.CUT, Manner.GZIP, Manner.NO_LENGTH], ids=str)
def test_a_whole_file_is_whole(site: Web, storage: Storage, manner: Manner) -> None:
    """A body that ended early is asked for again; one that cannot be known to be whole is refused."""
    site.pages["/r/k"] = Page(data=DATA, manner=manner, times=2)
    if manner is Manner.CUT:
        assert storage.get("k") == DATA
        assert len(site.asked) == 3
    else:
        with pytest.raises(StorageError, match=r"cut would look whole|encoded"):
            storage.get("k")
        assert len(site.asked) == 1


def test_a_wrong_answer_is_refused_at_the_last(site: Web, storage: Storage) -> None:
    """Bytes from elsewhere are an error that names the file and what the server said."""
    site.pages["/r/k"] = Page(data=DATA, manner=Manner.BEGINS_ELSEWHERE)
    with pytest.raises(StorageError, match=r"'k'.*100 from 300 .*bytes 301-400/10240"):
        storage.get_range("k", 300, 100)


def test_identity_is_asked_for(site: Web, storage: Storage) -> None:
    """No request lets the server compress: offsets count in the file."""
    site.pages["/r/k"] = Page(data=DATA)
    storage.get("k")
    storage.get_range("k", 1, 2)
    storage.get_tail("k", 2)

    assert {headers["Accept-Encoding"] for _, headers in site.asked} == {"identity"}


def test_what_may_have_come_since_is_asked_of_the_server(site: Web, storage: Storage) -> None:
    """Whether something is there must not be answered by a cache that remembers yesterday's 404."""
    assert not storage.exists("k")
    site.pages["/r/k"] = Page(data=DATA)
    assert storage.exists("k")
    storage.get_versioned("k")
    assert [headers.get("Cache-Control") for _, headers in site.asked] == ["no-cache"] * 3
    for read in (storage.get, lambda key: storage.get_range(key, 0, 1)):
        site.asked.clear()
        with pytest.raises(ObjectNotFoundError):
            read("none")
        assert [headers.get("Cache-Control") for _, headers in site.asked] == [None, "no-cache"]


def test_far_into_a_file_without_ranges_is_refused(site: Web, storage: Storage) -> None:
    """Little of a large file is not got by taking what lies before it: the error says what to do."""
    site.pages["/r/k"] = Page(data=bytes(65 << 20), manner=Manner.NO_RANGES)
    for read in (
        lambda: storage.get_range("k", (64 << 20) + 1, 4),
        lambda: storage.get_tail("k", 4),
    ):
        with pytest.raises(
            StorageError, match=r"ignores ranges.*put the file where ranges are served"
        ):
            read()
    assert storage.get_range("k", 5, 4) == bytes(4)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_repository_is_where_it_was_opened(site: Web, storage: Storage, status: int) -> None:
    """No redirect is followed, not even to the same server: the error names where it leads."""
    site.pages["/r/k"] = Page(status=status, headers={"Location": "../other/k"})
    site.pages["/other/k"] = Page(data=DATA)
    for read in (storage.get, storage.exists, lambda key: storage.get_range(key, 0, 1)):
        with pytest.raises(StorageError, match=rf"redirects to {site.endpoint}/other/k"):
            read("k")

    assert set(site.paths) == {"/r/k"}


def test_only_404_and_410_are_missing(site: Web, storage: Storage) -> None:
    """What is forbidden, or answered with anything else, is an error: it may hide a newer entry."""
    for status in (404, 410):
        site.pages["/r/k"] = Page(status=status)
        assert not storage.exists("k")
        with pytest.raises(ObjectNotFoundError):
            storage.get("k")
    for status in (400, 401, 403, 405, 451, 203, 204, 500, 503):
        site.pages["/r/k"] = Page(status=status)
        for read in (storage.get, storage.exists):
            with pytest.raises(StorageError, match="'k'") as caught:
                read("k")
            assert not isinstance(caught.value, ObjectNotFoundError)
    site.pages["/r/k"] = Page(status=403)
    with pytest.raises(StorageError, match="not taken for missing"):
        storage.exists("k")


def test_keys_are_encoded_segment_by_segment(site: Web) -> None:
    """A key's parts are percent-encoded once, below a root that is sent as it stands."""
    site.pages["/a%20root/%41/a%20b/%25/%C3%BC%3F%23%2B%26%3D"] = Page(data=b"odd")
    storage = open_storage(f"{site.endpoint}/a%20root/%41", settings=QUICK)

    assert storage.get("a b/%/ü?#+&=") == b"odd"
    assert open_storage(f"{site.endpoint}/a root/%41", settings=QUICK)._root.endswith("/a%20root/A")  # type: ignore[attr-defined]


def test_the_url_of_a_repository_has_no_query(site: Web) -> None:
    """Keys follow the URL, so nothing else can; the way out is named."""
    for url in (f"{site.endpoint}/r?token=x", f"{site.endpoint}/r#part"):
        with pytest.raises(InvalidInputError, match="storage_options"):
            open_storage(url)


def test_an_endless_answer_is_left(site: Web) -> None:
    """A server that sends more than it was asked for does not fill the memory."""
    page = Page(data=bytes(256 << 20), manner=Manner.SENDS_MORE)
    site.pages["/r/k"] = page
    script = (
        "import resource, sys\n"
        "from icechunk_arrow.errors import StorageError\n"
        "from icechunk_arrow.storage.open import open_storage\n"
        "from icechunk_arrow.storage.settings import StorageSettings\n"
        "storage = open_storage(sys.argv[1], settings=StorageSettings(retry_tries=1))\n"
        "storage.exists('none')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    storage.get_range('k', 5, 10)\n"
        "except StorageError:\n"
        "    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"{site.endpoint}/r"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert int(done.stdout) < 64 << 10
