"""Whose settings hold: those of ``config.yaml`` say how a repository is written; all else is the opener's."""

from __future__ import annotations

import pickle
import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
import zarr

from icechunk_arrow import (
    InvalidInputError,
    OversizedFileError,
    Repository,
    RepositoryConfig,
    StorageSettings,
)
from icechunk_arrow.storage.local import LocalStorage
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage
from tests.places import UNSYNCED, make_array, read_array, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

T = TypeVar("T")

FOREIGN = """
chunk-file-size-bytes: 1000000
packed-chunk-threshold-bytes: 500
of-a-newer-version: [1, 2]
chunk-manifests:
  preload: {max-manifests: 0, later: 5}
"""


class CountingStorage(WrappedStorage):
    """Notes which keys the main thread asks for, and which ones others do."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked: dict[bool, list[str]] = {True: [], False: []}

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        self.asked[threading.current_thread() is threading.main_thread()].append(key)
        return effect()


def opened(place: Path) -> tuple[Repository, CountingStorage]:
    found: list[CountingStorage] = []

    def wrap(inner: Storage) -> Storage:
        found.append(CountingStorage(inner))
        return found[-1]

    with through(wrap):
        repo = Repository.open(place)
    return repo, found[-1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with one small array."""
    written(Repository.create(tmp_path / "r", storage_settings=UNSYNCED))
    return tmp_path / "r"


def test_who_reads_ignores_what_it_does_not_know(place: Path) -> None:
    """Unknown keys, at any depth, do not hinder a reader; the others hold."""
    (place / "config.yaml").write_text(FOREIGN)
    repo = Repository.open(place)

    assert (read_array(repo) == 1).all()
    assert repo.config.chunk_file_size_bytes == 1_000_000
    assert repo.config.chunk_manifests.preload.max_manifests == 0


@pytest.mark.parametrize("work", ["session", "rewrite", "save"])
def test_who_writes_refuses_them_by_name(place: Path, work: str) -> None:
    """A writer that does not know a setting would not do what it says: it stops, and names it."""
    (place / "config.yaml").write_text(FOREIGN)
    repo = Repository.open(place)
    before = sorted(path.name for path in place.rglob("*"))

    works = {
        "session": lambda: repo.writable_session("main"),
        "rewrite": lambda: repo.rewrite_manifests("main", "anew"),
        "save": repo.save_config,
    }
    with pytest.raises(InvalidInputError, match=r"config\.yaml.*'of-a-newer-version'"):
        works[work]()
    assert sorted(path.name for path in place.rglob("*")) == before


@pytest.mark.parametrize("text", ["storage: {durable: false}", "cache-bytes: 5", "durable: false"])
def test_a_strangers_settings_do_not_switch_durability_off(
    place: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durability and budgets are not in the file: a reader goes its way, a writer is told, and all is synced."""
    (place / "config.yaml").write_text(text)
    made: list[bool] = []
    init = LocalStorage.__init__

    def noted(self: LocalStorage, *args: Any, durable: bool = True, **more: Any) -> None:
        made.append(durable)
        init(self, *args, durable=durable, **more)

    monkeypatch.setattr(LocalStorage, "__init__", noted)
    repo = Repository.open(place)

    assert (read_array(repo) == 1).all()
    assert repo._context.files.cache.limit_bytes == 256 << 20
    with pytest.raises(InvalidInputError, match=re.escape(text.split(":", maxsplit=1)[0])):
        repo.writable_session("main")
    assert made == [True]


def test_what_the_opener_says_holds(place: Path) -> None:
    """Durability, cache and limit are arguments, also of what is pickled; nothing of them is saved."""
    settings = StorageSettings(durable=False, retry_tries=2)
    repo = Repository.open(
        place, storage_settings=settings, cache_bytes=12345, decode_limit_bytes=1 << 24
    )
    repo.save_config()
    session = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    files = session._context.files

    assert session._context.storage_settings == settings
    assert (files.cache.limit_bytes, files.decode_limit_bytes) == (12345, 1 << 24)
    text = (place / "config.yaml").read_text()
    assert not re.search("durable|cache|limit|retry|storage", text)
    assert RepositoryConfig.from_yaml(text) == repo.config


@pytest.mark.parametrize("wrong", [-1, 0, 1000, "1", True, 2**70])
def test_a_limit_that_is_none(place: Path, wrong: Any) -> None:
    """A limit is a number of bytes, and leaves room to read anything at all."""
    with pytest.raises(InvalidInputError, match="decode_limit_bytes"):
        Repository.open(place, decode_limit_bytes=wrong)


@pytest.mark.parametrize("text", [None, "a: *b", "#" * 60_000_000], ids=["none", "wrong", "long"])
def test_no_reader_asks_for_settings_first(place: Path, text: str | None) -> None:
    """A chunk is shown before anybody wants the settings, so wrong ones hinder no reader."""
    if text is not None:
        (place / "config.yaml").write_text(text)
    repo, storage = opened(place)
    session = repo.readonly_session("main")
    first = np.asarray(zarr.open_array(session.store, path="a", mode="r")[0, 0])

    assert first == 1
    assert storage.asked[True]
    assert "config.yaml" not in storage.asked[True]
    if text is not None:
        with pytest.raises((InvalidInputError, OversizedFileError), match=r"config\.yaml"):
            repo.writable_session("main")


def test_settings_are_asked_for_once(place: Path) -> None:
    """However many sessions there are, and whoever of them writes."""
    repo, storage = opened(place)
    for number in range(3):
        session = repo.writable_session("main")
        make_array(session.store, f"n{number}")
        session.commit("more")

    assert storage.asked[True].count("config.yaml") == 1
    assert "config.yaml" not in storage.asked[False]
