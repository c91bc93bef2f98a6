"""What only files do: syncing, links, volumes that lack something, what crashes leave behind."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_arrow.storage import disk
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.scratch import SCRATCH, UnsafeStorageWarning
from tests.processes.children import fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Patch = pytest.MonkeyPatch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def refuse(number: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def open_files() -> int:
    return len(names(Path("/proc/self/fd")))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Diary:
    """The system calls that matter, in order, by the path that they were for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync, link, syncfs = os.fsync, os.link, disk.sync_filesystem

        def path_of(fd: int) -> str:
            return str(Path(f"/proc/self/fd/{fd}").readlink())

        def record_fsync(fd: int) -> None:
            fsync(fd)
            self.events.append(("fsync", path_of(fd)))

        def record_link(source: str, target: str, **facts: Any) -> None:
            link(source, target, **facts)
            self.events.append(("link", target))

        def record_syncfs(fd: int) -> None:
            syncfs(fd)
            self.events.append(("syncfs", path_of(fd)))

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(os, "link", record_link)
        monkeypatch.setattr(disk, "sync_filesystem", record_syncfs)

    def of(self, kind: str) -> list[str]:
        return [path for event, path in self.events if event == kind]


def test_reading_writes_nothing(root: Path) -> None:
    """A place that is only read is not made, nor looked for with probes."""
    storage = LocalStorage(root)
    with pytest.raises(ObjectNotFoundError):
        storage.get("a/b")

    assert storage.capabilities.create
    assert not storage.exists("a")
    assert list(storage.list()) == []
    assert not root.exists()


def test_creation_is_durable_before_and_after_its_name(root: Path, monkeypatch: Patch) -> None:
    """The content is synced before the name is given, the folder after, its parents too."""
    storage = LocalStorage(root)
    storage.require_writable()
    diary = Diary(monkeypatch)
    storage.create("refs/branch.main/1", b"x")

    (link,) = diary.of("link")
    at = diary.events.index(("link", link))
    before = [path for _, path in diary.events[:at]]
    after = [path for _, path in diary.events[at + 1 :]]
    assert link == f"{root}/refs/branch.main/1"
    assert before[-1].startswith(f"{root}/{SCRATCH}/")
    assert {str(root), f"{root}/refs"} <= set(before)
    assert after == [f"{root}/refs/branch.main"]


def test_sync_covers_every_put_and_its_folder(root: Path, monkeypatch: Patch) -> None:
    """After sync every file put before was synced, and each folder once."""
    storage = LocalStorage(root)
    for key in ("s/1", "i/1", "t/1", "c/1", "c/2"):
        storage.put(key, b"x")
    diary = Diary(monkeypatch)
    storage.sync()

    paths = [f"{root}/{key}" for key in ("s/1", "i/1", "t/1", "c/1", "c/2", "s", "i", "t", "c")]
    assert sorted(paths) == sorted(diary.of("fsync"))
    storage.sync()
    assert len(paths) == len(diary.events)


def test_replacement_is_durable(root: Path, monkeypatch: Patch) -> None:
    """The new content is synced, and the folder that names it."""
    storage = LocalStorage(root)
    storage.create("state.json", b"1")
    diary = Diary(monkeypatch)
    storage.replace("state.json", b"2", storage.get_versioned("state.json")[1])

    first, second = diary.of("fsync")
    assert first.startswith(f"{root}/{SCRATCH}/")
    assert second == str(root)


@pytest.mark.parametrize("whole", [True, False])
def test_many_puts_are_synced_with_few_open_files(
    root: Path, monkeypatch: Patch, whole: bool
) -> None:
    """Many files go by one call where the kernel can; else each is synced; few stay open."""
    monkeypatch.setattr(disk, "_can_sync_filesystem", whole)
    storage = LocalStorage(root)
    diary = Diary(monkeypatch)
    before = most = open_files()
    for number in range(300):
        storage.put(f"c/{number}", b"x")
        most = max(most, open_files())
    storage.sync()

    assert most <= before + disk.FEW + 5
    synced = {path for path in diary.of("fsync") if path.startswith(f"{root}/c/")}
    if whole:
        assert len(diary.of("syncfs")) == 1
        assert synced == set()
    else:
        assert synced == {f"{root}/c/{number}" for number in range(300)}
        assert diary.of("syncfs") == []
    diary.events.clear()
    storage.put("c/last", b"x")
    storage.sync()
    assert f"{root}/c/last" in diary.of("fsync")


def test_a_sync_waits_for_another_one(root: Path, monkeypatch: Patch) -> None:
    """Nobody is told that his puts are durable while another thread still syncs them."""
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    fsync = os.fsync
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        begun.set()
        assert go_on.wait(10)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    first = threading.Thread(target=storage.sync)

    def sync_too() -> None:
        storage.sync()
        done.set()

    second = threading.Thread(target=sync_too)
    first.start()
    assert begun.wait(10)
    second.start()

    assert not done.wait(0.2)
    go_on.set()
    assert done.wait(10)
    first.join()
    second.join()


def test_a_failed_sync_is_never_forgotten(root: Path, monkeypatch: Patch) -> None:
    """The kernel forgets what it could not write: a second sync may not call it durable."""
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse(5))
        with pytest.raises(StorageError, match="could not be made durable"):
            storage.sync()

    with pytest.raises(StorageError, match="open the place anew"):
        storage.sync()
    LocalStorage(root).sync()


def test_without_durability_nothing_is_synced(root: Path, monkeypatch: Patch) -> None:
    """The setting saves every sync, and creation still has one winner."""
    diary = Diary(monkeypatch)
    storage = LocalStorage(root, durable=False)
    storage.put("c/1", b"x")
    storage.sync()
    storage.create("refs/1", b"x")
    storage.replace("refs/1", b"y", storage.get_versioned("refs/1")[1])

    assert diary.of("fsync") == diary.of("syncfs") == []
    with pytest.raises(AlreadyExistsError):
        storage.create("refs/1", b"z")


def test_nothing_temporary_stays(root: Path) -> None:
    """After creations, won and lost, and replacements only lock files are left, never shown."""
    storage = LocalStorage(root)
    storage.create("refs/1", b"1")
    with pytest.raises(AlreadyExistsError):
        storage.create("refs/1", b"2")
    storage.replace("refs/1", b"2", storage.get_versioned("refs/1")[1])

    assert all(name.endswith(".lock") for name in names(root / SCRATCH))
    assert [found.key for found in storage.list()] == ["refs/1"]
    assert list(storage.list_folders()) == ["refs"]
    for key in (f"{SCRATCH}/x", SCRATCH):
        with pytest.raises(InvalidInputError):
            storage.put(key, b"x")


def test_old_leftovers_are_removed_and_nothing_else(root: Path, tmp_path: Path) -> None:
    """What a crash left a day ago goes when it is asked for; all that is young, or not of our making, stays."""
    folder = root / SCRATCH
    folder.mkdir(parents=True)
    ours = f"unfinished-{'0a' * 12}"
    kept = {
        f"unfinished-{'0b' * 12}": 60,
        f"{'0' * 32}.lock": 90_000,
        f"unfinished-{'0A' * 12}": 90_000,
        f"unfinished-{'0a' * 12}.txt": 90_000,
        f"unfinished-{'0a' * 11}": 90_000,
        f"{'0a' * 12}": 90_000,
        "notes.txt": 90_000,
    }
    for name, age in {ours: 90_000, **kept}.items():
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age,) * 2)
    link, inner = folder / f"unfinished-{'0c' * 12}", folder / f"unfinished-{'0d' * 12}"
    link.symlink_to(tmp_path)
    inner.mkdir()
    os.utime(inner, (0, 0))
    os.utime(link, (0, 0), follow_symlinks=False)
    storage = LocalStorage(root)
    storage.create("refs/1", b"1")
    with pytest.raises(AlreadyExistsError):
        storage.create("refs/1", b"2")

    assert {ours, link.name, inner.name, *kept} == set(names(folder))
    storage.tidy()
    assert {link.name, inner.name, *kept} == set(names(folder))


@pytest.mark.parametrize("what", ["link", "dangling link", "file"])
def test_a_taken_scratch_name_is_an_error_that_names_it(
    root: Path, tmp_path: Path, what: str
) -> None:
    """Where the folder's name leads elsewhere or is a file, nothing is written, and nothing there is touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    old = outside / f"unfinished-{'0a' * 12}"
    old.write_bytes(b"mine")
    os.utime(old, (0, 0))
    root.mkdir()
    match what:
        case "link":
            (root / SCRATCH).symlink_to(outside)
        case "dangling link":
            (root / SCRATCH).symlink_to(tmp_path / "nowhere")
        case _:
            (root / SCRATCH).write_bytes(b"mine")
    storage = LocalStorage(root)
    storage.put("state.json", b"1")
    token = storage.get_versioned("state.json")[1]

    for write in (
        storage.require_writable,
        lambda: storage.create("refs/1", b"x"),
        lambda: storage.replace("state.json", b"2", token),
    ):
        with pytest.raises(StorageError, match=rf"{SCRATCH} is no folder, or a symbolic link"):
            write()
    storage.tidy()
    assert names(outside) == [old.name]
    assert not (tmp_path / "nowhere").exists()
    assert storage.get("state.json") == b"1"
    assert what != "file" or (root / SCRATCH).read_bytes() == b"mine"


def test_a_link_is_not_deleted(root: Path, tmp_path: Path) -> None:
    """No link is of our making, so none is removed."""
    root.mkdir()
    (root / "c").mkdir()
    (root / "c" / "1").symlink_to(tmp_path)

    with pytest.raises(StorageError, match="symbolic link"):
        LocalStorage(root).delete(["c/1"])
    assert (root / "c" / "1").is_symlink()


def test_a_failed_put_leaves_nothing(root: Path, monkeypatch: Patch) -> None:
    """When the volume is full no part of the object stays, and the name is free again."""
    storage = LocalStorage(root)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", refuse(28))
        with pytest.raises(StorageError, match="No space"):
            storage.put("c/1", b"x")

    assert list(storage.list()) == []
    storage.put("c/1", b"x")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 1000])
@pytest.mark.parametrize("count", [1, 3, 1200])
def test_what_the_system_does_not_take_at_once_follows(
    root: Path, monkeypatch: Patch, most: int, count: int
) -> None:
    """A call may write fewer bytes than it was given, and end within a piece or between two."""
    pieces = [bytes([number % 251]) * (number % 5) for number in range(1, count + 1)]
    data = b"".join(pieces)
    calls = []

    def some(fd: int, given: list[bytes | memoryview]) -> int:
        calls.append(len(given))
        return os.write(fd, b"".join(given)[:most])

    with monkeypatch.context() as slow:
        slow.setattr(os, "writev", some)
        storage = LocalStorage(root)
        storage.put("c/1", pieces)

    assert storage.get("c/1") == data
    assert len(calls) >= len(data) // most
    assert max(calls) <= os.sysconf("SC_IOV_MAX")


def test_pieces_are_made_when_they_are_written(root: Path) -> None:
    """Large pieces are not gathered: what a piece is made from is near the processor when it is written."""
    storage = LocalStorage(root)
    seen = []

    def pieces() -> Iterator[bytes]:
        for number in range(4):
            seen.append((root / "c/file").stat().st_size)
            yield bytes([number]) * (1 << 19)
        yield b"end"

    storage.put("c/file", pieces())

    assert seen == [number << 19 for number in range(4)]
    assert storage.get("c/file")[-4:] == b"\x03end"


def test_a_removed_folder_is_made_again(root: Path) -> None:
    """A handle that lives long outlives the folders that somebody tidied away."""
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    storage.create("refs/1", b"x")
    storage.delete(["c/1"])
    (root / "c").rmdir()
    for lock in (root / SCRATCH).iterdir():
        lock.unlink()
    (root / SCRATCH).rmdir()
    storage.put("c/2", b"x")
    storage.create("refs/2", b"x")

    assert [found.key for found in storage.list()] == ["c/2", "refs/1", "refs/2"]


@pytest.mark.parametrize("number", [1, 95, 38])
def test_without_links_a_rename_gives_the_name(root: Path, monkeypatch: Patch, number: int) -> None:
    """EPERM, ENOTSUP and ENOSYS mean "no links": the rename that refuses to replace is used."""
    renamed = []
    rename = disk.rename_new

    def record(source: str, target: str, **facts: Any) -> None:
        rename(source, target, **facts)
        renamed.append(target)

    monkeypatch.setattr(os, "link", refuse(number))
    monkeypatch.setattr(disk, "rename_new", record)
    storage = LocalStorage(root)
    storage.create("refs/1", b"1")

    assert renamed[-1] == f"{root}/refs/1"
    assert storage.capabilities.create
    assert storage.capabilities.missing == ""


def test_without_either_commits_are_refused_and_reading_goes_on(
    root: Path, monkeypatch: Patch
) -> None:
    """The error names what is missing and the way out; nothing is created."""
    LocalStorage(root).create("refs/1", b"1")
    monkeypatch.setattr(os, "link", refuse(1))
    monkeypatch.setattr(disk, "rename_new", refuse(22))
    storage = LocalStorage(root)

    for write in (storage.require_writable, lambda: storage.create("refs/2", b"2")):
        with pytest.raises(ReadOnlyError, match=r"hard links.*exclusive_create"):
            write()
    assert not storage.capabilities.create
    assert "exclusive_create" in storage.capabilities.missing
    assert [found.key for found in storage.list()] == ["refs/1"]
    assert storage.get("refs/1") == b"1"


def test_unsafe_creation_warns_once(root: Path, monkeypatch: Patch) -> None:
    """Who opts in is told what it means, once, and commits."""
    monkeypatch.setattr(os, "link", refuse(1))
    monkeypatch.setattr(disk, "rename_new", refuse(38))
    storage = LocalStorage(root, exclusive_create="unsafe")
    with pytest.warns(UnsafeStorageWarning, match="torn") as caught:
        storage.create("refs/1", b"1")
    storage.create("refs/2", b"2")

    assert len(caught) == 1
    assert storage.capabilities.create
    with pytest.raises(AlreadyExistsError):
        storage.create("refs/1", b"3")


def test_opting_in_changes_nothing_where_links_work(root: Path, monkeypatch: Patch) -> None:
    """The safe way is taken wherever there is one, and nobody is warned."""
    diary = Diary(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalStorage(root, exclusive_create="unsafe").create("refs/1", b"1")

    assert diary.of("link")[-1] == f"{root}/refs/1"
    with pytest.raises(InvalidInputError, match="exclusive_create"):
        LocalStorage(root, exclusive_create="perhaps")  # type: ignore[arg-type]


def test_a_volume_that_replaces_silently_is_found_out(root: Path, monkeypatch: Patch) -> None:
    """Where a link or rename overwrites what is there, it is not used."""
    rename = os.rename

    def silently(source: str, target: str, *, src_dir_fd: int, **_: Any) -> None:
        rename(source, target, src_dir_fd=src_dir_fd)

    monkeypatch.setattr(os, "link", silently)
    monkeypatch.setattr(disk, "rename_new", silently)

    with pytest.raises(ReadOnlyError):
        LocalStorage(root).create("refs/1", b"1")


def test_without_locks_replacement_is_refused(root: Path, monkeypatch: Patch) -> None:
    """A volume that cannot lock files creates, and says that it cannot replace."""
    monkeypatch.setattr(fcntl, "flock", refuse(37))
    storage = LocalStorage(root)
    storage.create("state.json", b"1")

    with pytest.raises(ReadOnlyError, match="cannot lock"):
        storage.replace("state.json", b"2", storage.get_versioned("state.json")[1])
    assert storage.capabilities.create
    assert not storage.capabilities.replace
    assert "lock" in storage.capabilities.missing


@pytest.mark.parametrize("number", [30, 13, 1])
def test_a_read_only_volume_opens_for_reading(root: Path, monkeypatch: Patch, number: int) -> None:
    """Reading works; every write says that the place cannot be written."""
    LocalStorage(root, durable=False).put("c/1", b"x")
    storage = LocalStorage(root)
    opened = os.open

    def only_read(path: str, flags: int, mode: int = 0o777, **facts: Any) -> int:
        if flags & os.O_CREAT:
            refuse(number)()
        return opened(path, flags, mode, **facts)

    monkeypatch.setattr(os, "mkdir", refuse(number))
    monkeypatch.setattr(os, "open", only_read)
    monkeypatch.setattr(os, "unlink", refuse(number))

    assert storage.get("c/1") == b"x"
    assert [found.key for found in storage.list()] == ["c/1"]
    for write in (
        storage.require_writable,
        lambda: storage.put("c/2", b"x"),
        lambda: storage.create("c/2", b"x"),
        lambda: storage.replace("c/1", b"y", storage.get_versioned("c/1")[1]),
        lambda: storage.delete(["c/1"]),
    ):
        with pytest.raises(ReadOnlyError, match="cannot be written"):
            write()


def test_links_inside_are_not_followed(root: Path, tmp_path: Path) -> None:
    """Neither a linked file nor a linked folder leads out of the place, and neither is listed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root.mkdir()
    (root / "c").mkdir()
    (root / "c" / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    storage = LocalStorage(root)

    for key in ("c/file", "folder/secret"):
        reads: tuple[Callable[[str], object], ...] = (
            storage.get,
            storage.get_versioned,
            lambda key: storage.get_range(key, 0, 9),
        )
        for read in reads:
            with pytest.raises(StorageError, match="symbolic link"):
                read(key)
    writes: tuple[Callable[[], None], ...] = (
        lambda: storage.put("folder/new", b"x"),
        lambda: storage.create("folder/new", b"x"),
        lambda: storage.delete(["folder/secret"]),
    )
    for write in writes:
        with pytest.raises(StorageError, match="symbolic link"):
            write()
    assert not storage.exists("c/file")
    assert list(storage.list()) == []
    assert list(storage.list_folders()) == ["c"]
    assert names(outside) == ["secret"]


def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    """The person who names a link means where it leads."""
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    LocalStorage(root).create("refs/1", b"1")

    assert (tmp_path / "real" / "refs" / "1").read_bytes() == b"1"


def test_a_pipe_is_no_object(root: Path) -> None:
    """Reading where a pipe stands does not wait for somebody to write into it."""
    (root / "c").mkdir(parents=True)
    os.mkfifo(root / "c" / "pipe")
    storage = LocalStorage(root)

    with pytest.raises(StorageError):
        storage.get_range("c/pipe", 0, 5)
    assert not storage.exists("c/pipe")
    assert list(storage.list()) == []


def test_a_lock_dies_with_its_holder(root: Path) -> None:
    """A process that is killed while it replaces does not lock the others out."""
    storage = LocalStorage(root)
    storage.create("state.json", b"1")
    script = (
        "import sys, time\n"
        "from icechunk_arrow.storage.local import LocalStorage\n"
        "storage = LocalStorage(sys.argv[1])\n"
        "storage._scratch.file = lambda data: (print('locked', flush=True), time.sleep(60))\n"
        "storage.replace('state.json', b'2', storage.get_versioned('state.json')[1])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        started = time.monotonic()
        threading.Timer(0.3, lambda: holder.send_signal(signal.SIGKILL)).start()
        storage.replace("state.json", b"3", storage.get_versioned("state.json")[1])
        assert time.monotonic() - started > 0.2

    assert storage.get("state.json") == b"3"


def test_a_forked_child_is_not_locked_out(root: Path) -> None:
    """Locks that another thread held at the fork do not hold up the child."""
    script = (
        "import os, sys, threading\n"
        "from icechunk_arrow.storage.local import LocalStorage\n"
        "from icechunk_arrow.storage.memory import MemoryStorage\n"
        "storage, memory = LocalStorage(sys.argv[1]), MemoryStorage('shared')\n"
        "storage.put('c/1', b'x'), memory.put('c/1', b'x')\n"
        "held, go = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with storage._unsynced._lock, storage._unsynced._turn, memory._place.lock:\n"
        "        held.set(), go.wait()\n"
        "thread = threading.Thread(target=hold)\n"
        "thread.start(), held.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    storage.put('c/2', b'x'), storage.sync(), storage.create('refs/1', b'x')\n"
        "    assert [found.key for found in memory.list()] == ['c/1']\n"
        "    os._exit(7)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "go.set(), thread.join()\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(root)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    )

    assert done.returncode == 7
    assert LocalStorage(root).get("refs/1") == b"x"


def test_settings_survive_pickling(root: Path, monkeypatch: Patch) -> None:
    """A copy syncs as little as its original, and allows as much."""
    copy = pickle.loads(pickle.dumps(LocalStorage(root, durable=False, exclusive_create="unsafe")))
    diary = Diary(monkeypatch)
    copy.put("c/1", b"x")
    copy.sync()

    assert diary.of("fsync") == []
    assert copy._unsafe


def test_a_name_that_is_too_long_is_an_input_error(root: Path) -> None:
    """What no file can be called is said to be so; as something to read it is absent."""
    storage = LocalStorage(root)

    writes: tuple[Callable[[str, bytes], None], ...] = (storage.put, storage.create)
    for write in writes:
        with pytest.raises(InvalidInputError, match="too long"):
            write("c/" + "x" * 300, b"x")
    with pytest.raises(ObjectNotFoundError):
        storage.get("c/" + "x" * 300)


@pytest.mark.parametrize("count", [1, 3 * disk.FEW])
@pytest.mark.parametrize("whole", [True, False])
def test_a_handle_holds_files_open_only_while_something_is_unsynced(
    root: Path, monkeypatch: Patch, whole: bool, count: int
) -> None:
    """A place that is open and durable does not keep its volume from being unmounted."""
    monkeypatch.setattr(disk, "_can_sync_filesystem", whole)
    storage = LocalStorage(root)

    def held() -> list[str]:
        links = [Path("/proc/self/fd") / name for name in names(Path("/proc/self/fd"))]
        found = [str(link.readlink()) for link in links if link.is_symlink()]
        return [path for path in found if path.startswith(str(root))]

    for turn in range(2):
        for number in range(count):
            storage.put(f"c/{turn}-{number}", b"x")
            storage.put(f"s/{turn}-{number}", b"x")
        assert held() or not whole
        storage.sync()
        assert held() == []
        storage.create(f"refs/{turn}", b"x")
        assert held() == []


def test_a_volume_is_watched_from_before_a_write_until_it_is_synced(
    root: Path, monkeypatch: Patch
) -> None:
    """What one thread is writing while another one syncs is watched by a descriptor that is older than it."""
    monkeypatch.setattr(disk, "_can_sync_filesystem", True)
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    synced: list[int] = []
    monkeypatch.setattr(disk, "sync_filesystem", synced.append)
    watched = storage._unsynced.watch(f"{root}/c")
    assert watched is not None
    storage.sync()
    for number in range(2 * disk.FEW):
        storage.put(f"c/later-{number}", b"x")
    storage.sync()

    assert synced == [watched.fd]


def test_an_interrupted_sync_forgets_nothing(root: Path, monkeypatch: Patch) -> None:
    """The next one syncs what the interrupted one was about: also what it had not come to."""
    storage = LocalStorage(root)
    for name in ("c/1", "c/2", "i/1"):
        storage.put(name, b"x")
    with monkeypatch.context() as cut:

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        cut.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            storage.sync()
    diary = Diary(monkeypatch)

    storage.put("c/3", b"x")
    storage.sync()

    expected = {f"{root}/{name}" for name in ("c/1", "c/2", "c/3", "i/1", "c", "i")}
    assert set(diary.of("fsync")) == expected
    diary.events.clear()
    storage.sync()
    assert not diary.events, "once is enough"


def test_a_child_syncs_what_its_parent_was_syncing(
    root: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A child that is forked while another thread syncs cannot know that this ended well."""
    storage = LocalStorage(root)
    storage.put("c/1", b"x")
    at_it, go_on = threading.Event(), threading.Event()
    fsync, parent = os.fsync, os.getpid()

    def slow(fd: int) -> None:
        if os.getpid() == parent:
            at_it.set()
            assert go_on.wait(30)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    thread = threading.Thread(target=storage.sync)
    thread.start()
    assert at_it.wait(30)

    def life() -> None:
        diary = Diary(monkeypatch)
        storage.sync()
        assert f"{root}/c/1" in diary.of("fsync")

    child = fork(tmp_path, "a child", life)
    go_on.set()
    thread.join()
    child.wait()


def test_the_name_of_a_root_is_durable_whoever_made_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also where its folder was there: its maker may have been another process, cut short."""
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    diary = Diary(monkeypatch)
    LocalStorage(root).create("refs/1", b"x")
    assert diary.of("fsync").index(str(root.parent)) < diary.events.index(
        ("link", diary.of("link")[-1])
    )


def test_a_lock_is_lifted_when_its_taking_is_interrupted(root: Path, monkeypatch: Patch) -> None:
    """Others need not wait although somebody still looks at the error, which holds the lock's file."""
    storage = LocalStorage(root)
    storage.create("state.json", b"1")
    flock = fcntl.flock

    def taken_and_cut(fd: int, how: int) -> None:
        flock(fd, how)
        if how & fcntl.LOCK_EX:
            raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(fcntl, "flock", taken_and_cut)
        with pytest.raises(KeyboardInterrupt) as held:
            storage.replace("state.json", b"2", storage.get_versioned("state.json")[1])
    token = storage.get_versioned("state.json")[1]
    begun = time.monotonic()
    storage.replace("state.json", b"3", token)
    assert time.monotonic() - begun < 30
    assert held.value is not None
