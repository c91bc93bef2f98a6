"""Files of other people, read for an ingest: whole or an error, with the facts that readers compare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.engine.virtual import VirtualAccess
from icechunk_arrow.errors import ObjectNotFoundError, StorageError
from icechunk_arrow.storage import source_files
from icechunk_arrow.storage.answers import micros_of
from icechunk_arrow.storage.settings import StorageSettings
from icechunk_arrow.storage.source_files import SourceFiles
from tests.storage.web import Manner, Page, Web, web

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = bytes(range(256)) * 40
QUICK = StorageSettings(retry_tries=3, retry_backoff_seconds=0.01)
HEADERS = {"ETag": 'W/"abc"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server, and no long pauses."""
    monkeypatch.setattr(source_files, "_SETTINGS", QUICK)
    with web() as state:
        yield state


def test_a_cut_body_is_read_again(site: Web) -> None:
    """Whole files, ranges and files that a library seeks in: what was cut comes again, and is whole."""
    url = f"{site.endpoint}/k"
    files = SourceFiles({})
    for manner in (Manner.CUT, Manner.SHORT):
        site.pages["/k"] = Page(data=DATA, manner=manner, times=2)
        assert files.read(url) == DATA
        site.pages["/k"] = Page(data=DATA, manner=manner, times=1)
        assert files.read_ranges([url, url], [5, 100], [10, 20]) == [DATA[5:15], DATA[100:120]]
        site.pages["/k"] = Page(data=DATA, manner=manner, times=1)
        assert files.find_many([url, f"{site.endpoint}/none"]) == [DATA, None]
    site.pages["/k"] = Page(data=DATA)
    with files.opened(url) as opened:
        site.pages["/k"].times, site.pages["/k"].manner = 1, Manner.CUT
        opened.seek(300)
        assert opened.read(100) == DATA[300:400]


def test_what_stays_cut_is_one_of_our_errors(site: Web) -> None:
    """Not one of a library below, and it names the file."""
    url = f"{site.endpoint}/k"
    site.pages["/k"] = Page(data=DATA, manner=Manner.CUT)
    files = SourceFiles({})
    for read in (
        lambda: files.read(url),
        lambda: files.find(url),
        lambda: files.find_many([url]),
        lambda: files.read_ranges([url], [5], [10]),
    ):
        with pytest.raises(StorageError, match=url):
            read()
    with pytest.raises(ObjectNotFoundError):
        files.read(f"{site.endpoint}/none")


def test_what_is_recorded_is_what_readers_compare(site: Web) -> None:
    """Location, ETag and time of a file on the web, taken now, fit the file when its chunk is read."""
    text = "/a%20b/%41?x=%2B"
    time = micros_of(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    for names, etag, modified in (
        (("ETag", "Last-Modified"), "W/abc", None),
        (("Last-Modified",), None, time),
    ):
        site.asked.clear()
        site.pages[text] = Page(data=DATA, headers={name: HEADERS[name] for name in names})
        file = SourceFiles({}).facts(site.endpoint + text)
        assert (file.etag, file.last_modified, file.size_bytes) == (etag, modified, len(DATA))
        ref = ChunkRef(
            file=file.url, offset=5, length=9, etag=file.etag, last_modified=file.last_modified
        )
        assert VirtualAccess([site.endpoint], QUICK).read(ref, 0, 9) == DATA[5:14]
        assert set(site.paths) == {text}
