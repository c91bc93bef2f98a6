"""What is durable after a call of a local place went wrong, and what a handle says of it afterwards."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.local import LocalStorage
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def refuse(number: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def telling(order: list[str]) -> Callable[[str], None]:
    """Sync folders, and write down which."""
    sync_folder = disk.sync_folder

    def sync(path: str) -> None:
        order.append(path)
        sync_folder(path)

    return sync


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_a_commit_is_not_acknowledged_whose_entry_may_go(
    root: Path, monkeypatch: pytest.MonkeyPatch, catalog: str
) -> None:
    """The entry is there, and may not stay: whoever finds it by reading does not know that it does."""
    written(Repository.create(root, catalog=catalog))
    repo = Repository.open(root)
    session = repo.writable_session("main")
    make_array(session.store, "b")[...] = 1
    names = []

    def remember(give: Callable[..., None]) -> Callable[..., None]:
        def given(source: str, target: str, **more: Any) -> None:
            give(source, target, **more)
            names.append(target)

        return given

    fsync = os.fsync

    def refuse_folder(fd: int) -> None:
        folder = str(Path(f"/proc/self/fd/{fd}").readlink())
        if folder in {name.rpartition("/")[0] for name in names}:
            refuse(errno.EIO)()
        fsync(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse_folder)
        broken.setattr(os, "link", remember(os.link))
        broken.setattr(os, "replace", remember(os.replace))
        with pytest.raises(StorageError, match="may be lost: open the place anew"):
            session.commit("b")

    with pytest.raises(StorageError, match="open the place anew"):
        session.commit("b")
    assert read_array(Repository.open(root), "b")[0, 0] == 1


def test_a_folder_that_could_not_be_opened_is_synced_by_the_next_call(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too many open files nothing is lost: the same session finds its commit made, and durable then."""
    written(Repository.create(root))
    session = Repository.open(root).writable_session("main")
    make_array(session.store, "b")[...] = 1
    sync_folder = disk.sync_folder
    asked: list[str] = []

    def refuse_entries(path: str) -> None:
        asked.append(path)
        if path.endswith("branch.main"):
            refuse(errno.EMFILE)()
        sync_folder(path)

    with monkeypatch.context() as broken:
        broken.setattr(disk, "sync_folder", refuse_entries)
        with pytest.raises(StorageError, match="Too many open files"):
            session.commit("b")
    monkeypatch.setattr(disk, "sync_folder", telling(asked))
    asked.clear()

    session.commit("b")

    assert asked[0] == str(root / "refs/branch.main")
    assert read_array(Repository.open(root), "b")[0, 0] == 1


def test_a_name_that_was_given_by_a_call_with_a_lost_answer_is_synced(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server may answer "it is there" of what it has just done; then its folder is not synced yet."""
    written(Repository.create(root))
    session = Repository.open(root).writable_session("main")
    make_array(session.store, "b")[...] = 1
    link = os.link
    order: list[str] = []

    def twice(source: str, target: str, **more: Any) -> None:
        link(source, target, **more)
        order.append("named")
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)

    monkeypatch.setattr(os, "link", twice)
    monkeypatch.setattr(disk, "sync_folder", telling(order))

    session.commit("b")

    assert order[-2:] == ["named", str(root / "refs/branch.main")]


def test_a_handle_that_lost_something_holds_no_file_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be saved any more is let go, so that the volume can be unmounted; more is not taken."""
    storage = LocalStorage(root)
    for number in range(5):
        storage.put(f"c/{number}", b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse(errno.EIO))
        with pytest.raises(StorageError):
            storage.sync()
    with pytest.raises(StorageError, match="open the place anew"):
        storage.put("c/more", b"x")
    gc.collect()

    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    held = [str(link.readlink()) for link in links if link.is_symlink()]
    assert not [path for path in held if path.startswith(str(root))]


def told_when_closed(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Have the system say that a file was not taken when it is closed."""
    close = os.close

    def closed(fd: int) -> None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        close(fd)
        if path.endswith(ends):
            refuse(errno.ENOSPC)()

    monkeypatch.setattr(os, "close", closed)


def test_what_is_told_on_closing_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some volumes say then that they are full; also who does without durability is told, and nothing stays."""
    storage = LocalStorage(root, durable=False)
    with monkeypatch.context() as late:
        told_when_closed(late, "c/1")
        with pytest.raises(StorageError, match="No space left"):
            storage.put("c/1", b"x")

    assert not storage.exists("c/1")
    storage.put("c/1", b"x")


def test_of_many_files_none_is_closed_unheard(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are closed because they are so many, to be synced by one call, may tell of an error then."""
    monkeypatch.setattr(disk, "_can_sync_filesystem", True)
    storage = LocalStorage(root)
    told_when_closed(monkeypatch, "c/7")
    for number in range(disk.FEW):
        storage.put(f"c/{number}", b"x")
    with pytest.raises(StorageError, match="No space left"):
        storage.put("c/more", b"x")

    with pytest.raises(StorageError, match="open the place anew"):
        storage.sync()
