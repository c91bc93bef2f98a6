"""Manifests that are loaded ahead: the right ones, in the background, and never in anybody's way."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

import pytest

from icechunk_arrow import Repository, RepositoryConfig
from icechunk_arrow.core.manifest_settings import ManifestPreload, ManifestSettings
from icechunk_arrow.engine.preload import choose
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage
from tests.places import UNSYNCED, make_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow import Session
    from icechunk_arrow.storage.port import Storage

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
NAMES = ("data", "time", "x/time", "x/longitude")


class GatedStorage(WrappedStorage):
    """Writes down what it is asked, and holds requests for manifests back until it is told."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner, fast=False)
        self.asked: list[str] = []
        self.entered = threading.Event()
        self.go = threading.Event()

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        self.asked.append(f"{operation} {key}")
        if key.startswith("i/"):
            self.entered.set()
            assert self.go.wait(PATIENCE_SECONDS)
        return effect()

    def manifests(self) -> int:
        """How many requests were for manifests."""
        return sum(" i/" in each for each in self.asked)


def config(**preload: object) -> RepositoryConfig:
    """Settings with a preload."""
    return RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        chunk_manifests=ManifestSettings(preload=ManifestPreload(**preload)),  # type: ignore[arg-type]
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A repository in which each of four arrays has manifests of its own: two commits, two manifests."""
    repo = Repository.create(
        tmp_path / "r", config=config(max_manifests=0), storage_settings=UNSYNCED
    )
    for name in NAMES:
        session = repo.writable_session("main")
        array = make_array(session.store, name, (8,), chunks=(1,))
        array[:6] = 1
        session.commit(name)
    return tmp_path / "r"


def opened(place: Path, **preload: object) -> tuple[Repository, GatedStorage]:
    """Open a repository with a preload, through a storage that holds manifests back."""
    found: list[GatedStorage] = []

    def wrap(inner: Storage) -> Storage:
        found.append(GatedStorage(inner))
        return found[-1]

    with through(wrap):
        repo = Repository.open(place, config=config(**preload))
    return repo, found[-1]


def manifests_of(session: Session, name: str) -> list[str]:
    """Names of an array's manifests."""
    return list(session.get_array(f"/{name}").node.inventories.names)


def test_what_is_chosen(made: Path) -> None:
    """Manifests of arrays that match, by expression and path, within both limits."""
    repo = Repository.open(made)
    session = repo.readonly_session("main")
    snapshot = session._staging.base
    time, deep, longitude = (manifests_of(session, name) for name in NAMES[1:])

    def chosen(**preload: object) -> list[str]:
        return choose(snapshot, ManifestPreload(**preload))  # type: ignore[arg-type]

    both = (".*/longitude", ".*/time")
    assert chosen(max_manifests=10, arrays=both) == [*longitude, *time, *deep]
    assert chosen(max_manifests=2, arrays=both) == [*longitude, *time]
    assert chosen(max_manifests=10, arrays=("/time",)) == time
    assert chosen(max_manifests=10, arrays=("/x/(ti|ta).*",)) == deep
    assert chosen(max_manifests=10, arrays=("/none", "/x")) == []
    assert chosen(max_manifests=10, arrays=both, max_manifest_size=5) == []
    assert chosen(max_manifests=10, arrays=both, max_manifest_size=6) == [
        *longitude,
        *time,
        *deep,
    ]


def test_opening_does_not_wait(made: Path) -> None:
    """A session is there while the first manifest is still on its way; then a read asks for nothing more."""
    repo, slow = opened(made, max_manifests=3)
    session = repo.readonly_session("main")
    thread = session._preload
    assert thread is not None
    assert slow.entered.wait(PATIENCE_SECONDS)
    assert session.node_paths()  # usable, although no manifest has come
    slow.go.set()
    thread.join(PATIENCE_SECONDS)
    before = len(slow.asked)
    for name in NAMES[1:]:
        view = session.get_array(f"/{name}")
        assert session.find_chunk(view, (5,)) is not None
    assert len(slow.asked) == before
    assert slow.manifests() == 3


def test_a_read_meanwhile_shares_the_request(made: Path) -> None:
    """What a reader needs while it is loaded ahead is asked for once."""
    repo, slow = opened(made, arrays=("/time",))
    session = repo.readonly_session("main")
    thread = session._preload
    assert thread is not None
    assert slow.entered.wait(PATIENCE_SECONDS)
    found: list[object] = []
    reader = threading.Thread(
        target=lambda: found.append(session.find_chunk(session.get_array("/time"), (2,)))
    )
    reader.start()
    slow.go.set()
    reader.join(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    assert found != [None]
    assert slow.manifests() == 1


def test_nothing_is_started_for_nothing(made: Path) -> None:
    """No thread where nothing matches, where a limit is 0, and where all is in the cache already."""
    for settings in (
        {"arrays": ("/other",)},
        {"arrays": ()},
        {"max_manifests": 0},
        {"max_manifest_size": 0},
    ):
        repo, _ = opened(made, **settings)
        assert repo.readonly_session("main")._preload is None
    repo, slow = opened(made)
    slow.go.set()
    thread = repo.readonly_session("main")._preload
    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    assert repo.readonly_session("main")._preload is None
    assert slow.manifests() == 1


def test_a_missing_manifest_is_nobodys_concern(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A manifest that cannot be read is left to whoever reads it; the next one is loaded all the same."""
    missing = manifests_of(Repository.open(made).readonly_session("main"), "time")[0]
    (made / "i" / f"{missing}.parquet").unlink()
    repo, slow = opened(made, max_manifests=3)
    slow.go.set()
    with caplog.at_level(logging.DEBUG, "icechunk_arrow.engine.preload"):
        session = repo.readonly_session("main")
        assert session._preload is not None
        session._preload.join(PATIENCE_SECONDS)
    assert {record.levelname for record in caplog.records if missing in record.message} == {"DEBUG"}
    before = len(slow.asked)
    assert session.find_chunk(session.get_array("/x/time"), (0,)) is not None
    assert len(slow.asked) == before


def test_a_repository_that_is_gone_is_not_asked(made: Path) -> None:
    """The thread keeps no repository alive, and asks nothing more when its repository is gone."""
    repo, slow = opened(made, max_manifests=3)
    session = repo.readonly_session("main")
    thread = session._preload
    assert thread is not None
    assert slow.entered.wait(PATIENCE_SECONDS)
    context = weakref.ref(repo._context)
    del repo, session
    gc.collect()
    assert context() is None
    slow.go.set()
    thread.join(PATIENCE_SECONDS)
    assert slow.manifests() == 1


def test_no_threads_left_is_no_failure(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no thread a session is opened all the same."""
    repo, slow = opened(made)
    slow.go.set()

    class NoThread(threading.Thread):
        def start(self) -> None:
            if self.name == "icechunk_arrow preload":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(threading, "Thread", NoThread)
    session = repo.readonly_session("main")
    assert session._preload is None


_ENDING = """
import sys, threading
from tests.engine.test_preload import opened
from pathlib import Path
repo, slow = opened(Path(sys.argv[1]), max_manifests=3)
session = repo.readonly_session("main")
assert session._preload is not None
assert slow.entered.wait(30)
print("over")
"""


def test_the_process_ends_all_the_same(made: Path) -> None:
    """A process whose preload waits for an answer that does not come ends, and well."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDING, str(made)],
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_SECONDS / 2,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
