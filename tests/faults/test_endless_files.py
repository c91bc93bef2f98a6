"""However large a file is, or a server says it is, a reader fetches no more of it than whoever opened allows."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import IcechunkArrowError, OversizedFileError, Repository
from icechunk_arrow.formats.layout import (
    CONFIG_KEY,
    MAIN,
    STATE_KEY,
    FileKind,
    branch_key,
    hint_key,
    key_of,
    tag_key,
)
from icechunk_arrow.storage import s3 as s3_module
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings
from tests.faults.hostile import Victim, state_victim
from tests.faults.measured import MeasuredReader, reading_process
from tests.faults.repositories import contents
from tests.storage.fake_s3 import fake_s3
from tests.storage.web import Page, web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MUCH = 100 << 30
LIMIT = 64 << 20
MOST_SECONDS = 2.0
MOST_BYTES = 512 << 20
ONCE = StorageSettings(retry_tries=1)


def _open(url: str, options: dict[str, Any] | None, **more: Any) -> Repository:
    return Repository.open(url, options, storage_settings=ONCE, **more)


def read_session(url: str, options: dict[str, Any] | None, limits: dict[str, int]) -> None:
    """Read as a session does."""
    contents(_open(url, options, **limits).readonly_session("main"))


def read_tag(url: str, options: dict[str, Any] | None, limits: dict[str, int]) -> None:
    """Look where a tag stands."""
    _open(url, options, **limits).lookup_tag("v1")


def read_config(url: str, options: dict[str, Any] | None, limits: dict[str, int]) -> None:
    """Ask for the settings in force."""
    assert _open(url, options, **limits).config


def read_logs(url: str, options: dict[str, Any] | None, limits: dict[str, int]) -> None:
    """Read what commits did."""
    _open(url, options, **limits).tables("operations")


def read_manifests(url: str, options: dict[str, Any] | None, limits: dict[str, int]) -> None:
    """Read whole manifests, as those do who rewrite them."""
    repo = _open(url, options, **limits)
    files = repo._context.files
    for name in files.read_snapshot(repo.lookup_branch("main")).manifest_sizes:
        files.read_manifest(name)


Read = Callable[[str, dict[str, Any] | None, dict[str, int]], None]
FILES: dict[str, tuple[Callable[[Victim], str], Read]] = {
    "first entry": (lambda _: branch_key(MAIN, 0), read_session),
    "newest entry": (lambda _: branch_key(MAIN, 1), read_session),
    "tag": (lambda _: tag_key("v1"), read_tag),
    "state file": (lambda _: STATE_KEY, read_session),
    "structure file": (lambda victim: key_of(FileKind.STRUCTURE, victim.snapshot_id), read_session),
    "manifest": (lambda victim: key_of(FileKind.MANIFEST, victim.manifest), read_session),
    "whole manifest": (lambda victim: key_of(FileKind.MANIFEST, victim.manifest), read_manifests),
    "log": (lambda victim: key_of(FileKind.TRANSACTION, victim.snapshot_id), read_logs),
    "configuration": (lambda _: CONFIG_KEY, read_config),
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredReader]:
    """A process that reads repositories, warm from sound ones in all places."""
    victim = Victim(tmp_path_factory.mktemp("sound"))
    with reading_process() as found, web() as site, fake_s3() as bucket:
        for file in _files_of(victim.root):
            site.pages[f"/r/{file}"] = Page(data=(victim.root / file).read_bytes())
            bucket.objects[f"p/{file}"] = (victim.root / file).read_bytes()
        for url, options in (
            (str(victim.root), None),
            (f"{site.endpoint}/r", None),
            ("s3://bucket/p", bucket.storage_options),
        ):
            assert found.call(read_session, url, options, {}).error is None
        yield found


def _files_of(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()]


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository with a tag."""
    found = Victim(tmp_path)
    Repository.open(found.root).create_tag("v1", found.snapshot_id)
    return found


def _chosen(victim: Victim, name: str) -> tuple[str, Read]:
    """Say which file has no end, and who reads it."""
    key_in, read = FILES[name]
    key = key_in(victim)
    if key == STATE_KEY:
        victim.root = state_victim(victim.folder / "state")
    return key, read


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_hundred_gigabytes(reader: MeasuredReader, victim: Victim, name: str) -> None:
    """It takes no room on the disk, and none in memory: the error names it at once."""
    key, read = _chosen(victim, name)
    (victim.root / key).touch()
    os.truncate(victim.root / key, MUCH)
    for limits in ({}, {"decode_limit_bytes": LIMIT}):
        found = reader.call(read, str(victim.root), None, limits)

        assert isinstance(found.error, IcechunkArrowError), found.error
        assert key in str(found.error)
        assert found.seconds < MOST_SECONDS
        assert found.peak_bytes < MOST_BYTES, f"{found.peak_bytes >> 20} MiB"


def test_a_sealed_manifest_of_a_hundred_gigabytes(reader: MeasuredReader, victim: Victim) -> None:
    """Also where its end is right: whoever wants all of it is told that this is more than was allowed."""
    key, read = _chosen(victim, "whole manifest")
    data = (victim.root / key).read_bytes()
    with (victim.root / key).open("r+b") as file:
        file.seek(MUCH)
        file.write(data[4:])
    found = reader.call(read, str(victim.root), None, {})

    assert isinstance(found.error, OversizedFileError), found.error
    assert key in str(found.error)
    assert "decode_limit_bytes" in str(found.error)
    assert found.peak_bytes < MOST_BYTES, f"{found.peak_bytes >> 20} MiB"


@pytest.mark.parametrize("announced", [MUCH, None], ids=["announced", "sent"])
@pytest.mark.parametrize("name", FILES)
def test_a_web_server_without_end(
    reader: MeasuredReader, victim: Victim, name: str, announced: int | None
) -> None:
    """Whether a server says that there is much, or sends without a word: nobody takes it all."""
    key, read = _chosen(victim, name)
    with web() as site:
        for file in _files_of(victim.root):
            site.pages[f"/r/{file}"] = Page(data=(victim.root / file).read_bytes())
        site.pages[f"/r/{key}"] = Page(endless=True, announced=announced)
        found = reader.call(read, f"{site.endpoint}/r", None, {"decode_limit_bytes": LIMIT})

    assert isinstance(found.error, IcechunkArrowError), found.error
    assert key in str(found.error)
    assert found.seconds < MOST_SECONDS
    assert found.peak_bytes < MOST_BYTES, f"{found.peak_bytes >> 20} MiB"


@pytest.mark.parametrize("announced", [MUCH, None], ids=["announced", "sent"])
@pytest.mark.parametrize("name", FILES)
def test_a_bucket_without_end(
    reader: MeasuredReader, victim: Victim, name: str, announced: int | None
) -> None:
    """The same of an object store."""
    key, read = _chosen(victim, name)
    with fake_s3() as bucket:
        for file in _files_of(victim.root):
            bucket.objects[f"p/{file}"] = (victim.root / file).read_bytes()
        bucket.objects[f"p/{key}"] = b"there"
        bucket.endless, bucket.announced = f"p/{key}", announced
        options = bucket.storage_options
        found = reader.call(read, "s3://bucket/p", options, {"decode_limit_bytes": LIMIT})

    assert isinstance(found.error, IcechunkArrowError), found.error
    assert key in str(found.error)
    assert found.seconds < MOST_SECONDS
    assert found.peak_bytes < MOST_BYTES, f"{found.peak_bytes >> 20} MiB"


@pytest.mark.parametrize("announced", [MUCH, None], ids=["announced", "sent"])
def test_a_hint_without_end_is_done_without(
    reader: MeasuredReader, victim: Victim, announced: int | None
) -> None:
    """It decides nothing, so nothing is refused for its sake."""
    with web() as site:
        for file in _files_of(victim.root):
            site.pages[f"/r/{file}"] = Page(data=(victim.root / file).read_bytes())
        hint = f"/r/{hint_key(MAIN)}"
        site.pages[hint] = Page(endless=True, announced=announced)
        found = reader.call(read_session, f"{site.endpoint}/r", None, {})

        assert found.error is None
        assert hint in site.paths
    assert found.peak_bytes < MOST_BYTES, f"{found.peak_bytes >> 20} MiB"


def test_the_limit_of_an_object(tmp_path: Path) -> None:
    """So many bytes are allowed, and not one more; everywhere, and with a token too."""
    s3_module._proven.clear()
    data = bytes(range(250))
    (tmp_path / "k").write_bytes(data)
    with web() as site, fake_s3() as bucket:
        site.pages["/r/k"] = Page(data=data)
        bucket.objects["p/k"] = data
        memory = open_storage("memory://")
        memory.put("k", data)
        for storage in (
            memory,
            open_storage(tmp_path),
            open_storage(f"{site.endpoint}/r"),
            open_storage("s3://bucket/p", bucket.storage_options),
        ):
            for get in (storage.get, lambda *a, s=storage, **k: s.get_versioned(*a, **k)[0]):
                assert get("k", limit_bytes=250) == data
                assert get("k") == data
                with pytest.raises(OversizedFileError, match="k has at least") as caught:
                    get("k", limit_bytes=249)
                copy = pickle.loads(pickle.dumps(caught.value))
                assert (copy.key, copy.limit_bytes) == ("k", 249)
