"""After ``os.fork`` parent and child work, whatever other threads of the parent were doing just then."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import ConflictDetector, Repository, RepositoryConfig
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.errors import IcechunkArrowError, ReadOnlyError, StorageError
from icechunk_arrow.storage import scratch
from icechunk_arrow.storage.scratch import ScratchFolder
from tests.places import make_array, read_array, written
from tests.storage.fake_s3 import fake_s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.storage.fake_s3 import FakeS3

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
SECONDS = 30
FORKS = 40
LITTLE = 30_000
"""What a cache holds, so that loads never end."""


def fork(work: Callable[[], None]) -> int:
    """Have a child do something; it ends there."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # a child never returns to the tests
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait_for(child: int) -> None:
    """Wait until our child ends well; one that hangs is ended."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("a forked child hangs")


def in_child(work: Callable[[], None]) -> None:
    """Have a child do something, and see that it ends well."""
    wait_for(fork(work))


@contextlib.contextmanager
def beside(work: Callable[[], Any], count: int = 1) -> Iterator[None]:
    """Let threads do something over and over."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # told below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(SECONDS)
    assert failures == []


VALUES = np.arange(40_000).reshape(200, 200)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with an array of many chunks and manifests."""
    config = RepositoryConfig.from_yaml(
        b"""
        inline-chunk-threshold-bytes: 0
        chunk-manifests:
          sets: [{default: {max-manifest-size: 20}}]
          preload: {max-manifests: 50, arrays: [{path: /a}]}
        """
    )
    repo = Repository.create(tmp_path / "r", config=config)
    session = repo.writable_session("main")
    make_array(session.store, shape=VALUES.shape, chunks=(20, 20))[...] = VALUES
    session.commit("write")
    return tmp_path / "r"


def read_somewhere(session: Any) -> None:
    """Read a part through zarr, and compare it."""
    array = zarr.open_array(session.store, path="a", mode="r")
    row, column = np.random.default_rng().integers(0, 160, 2)
    box = (slice(int(row), int(row) + 40), slice(int(column), int(column) + 40))
    assert (np.asarray(array[box]) == VALUES[box]).all()


@pytest.mark.parametrize("what", ["a preload", "2 readers", "4 readers"])
def test_children_of_a_busy_parent_read(place: Path, what: str) -> None:
    """Forty children, forked while threads read or load ahead, read what is there, and end."""
    repo = Repository.open(place, cache_bytes=LITTLE)
    session = repo.readonly_session("main")

    def open_anew() -> None:
        Repository.open(place, cache_bytes=LITTLE).readonly_session("main")
        repo.readonly_session("main")

    def read() -> None:
        read_somewhere(session)

    def child() -> None:
        read_somewhere(session)
        read_somewhere(repo.readonly_session("main"))

    work, count = (open_anew, 1) if what == "a preload" else (read, int(what[0]))
    with beside(work, count):
        for _ in range(FORKS // 4):
            for each in [fork(child) for _ in range(4)]:
                wait_for(each)
    read_somewhere(session)


def test_a_load_of_a_vanished_thread_is_done_again() -> None:
    """What another thread was loading into a cache, and the cache's lock, hold up no child."""
    cache = ByteCache(1000)
    cache.get("held", lambda: ("held", 10))
    loading, go_on = threading.Event(), threading.Event()

    def slowly() -> tuple[str, int]:
        loading.set()
        assert go_on.wait(SECONDS)
        return "parent's", 10

    def hold() -> None:
        with cache._lock:
            held.set()
            assert go_on.wait(SECONDS)

    held = threading.Event()
    threads = [threading.Thread(target=cache.get, args=("slow", slowly))]
    threads[0].start()
    assert loading.wait(SECONDS)
    threads.append(threading.Thread(target=hold))
    threads[1].start()
    assert held.wait(SECONDS)

    def child() -> None:
        assert cache.find("held") == "held"
        assert cache.get("slow", lambda: ("child's", 10)) == "child's"
        assert cache.size_bytes == 20

    in_child(child)
    go_on.set()
    for thread in threads:
        thread.join(SECONDS)
    assert cache.find("slow") == "parent's"


def test_a_store_that_has_threads_is_read_in_a_child(tmp_path: Path) -> None:
    """A store whose threads have read large chunks reads them in a child, which has no such threads."""
    repo = Repository.create(tmp_path / "r")
    values = np.arange(1 << 18).reshape(8, -1)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=values, chunks=(1, 1 << 15), compressors=None)
    session.commit("large")
    store = repo.readonly_session("main").store

    store._sync = False  # so that zarr uses its loop, and the store its threads
    array = zarr.open_array(store, path="a", mode="r")

    def read() -> None:
        assert (np.asarray(array[...]) == values).all()

    read()
    in_child(read)
    read()


def work_in_pool(number: int) -> int:
    """Read in a worker of a pool, from what was inherited."""
    read_somewhere(INHERITED[number % len(INHERITED)])
    return number


INHERITED: list[Any] = []


def test_pools_that_fork(place: Path) -> None:
    """Workers of ``multiprocessing`` that were forked from a busy parent read what they inherited."""
    repo = Repository.open(place, cache_bytes=LITTLE)
    INHERITED[:] = [
        repo.readonly_session("main"),
        Repository.open(place, cache_bytes=LITTLE).readonly_session("main"),
    ]
    context = multiprocessing.get_context("fork")
    try:
        with beside(lambda: read_somewhere(INHERITED[0]), 2):
            for _ in range(3):
                with context.Pool(3) as pool:
                    answer = pool.map_async(work_in_pool, range(12))
                    assert answer.get(SECONDS) == list(range(12))
    finally:
        INHERITED.clear()


class Loader:
    """Batches read by forked workers while the parent prepares the next epoch: as loaders for training do."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.array = zarr.open_array(session.store, path="a", mode="r")

    def __getitem__(self, index: int) -> Any:
        return np.asarray(self.array[index])

    def serve(self, asked: Any, answers: Any) -> None:
        """Answer until nothing is asked for."""
        for index in iter(asked.get, None):
            answers.put((index, self[index].tolist()))

    def epoch(self, indexes: list[int]) -> dict[int, list[int]]:
        """Read every index once, in two new workers."""
        context = multiprocessing.get_context("fork")
        asked, answers = context.Queue(), context.Queue()
        workers = [context.Process(target=self.serve, args=(asked, answers)) for _ in range(2)]
        for worker in workers:
            worker.start()
        try:
            for index in [*indexes, None, None]:
                asked.put(index)
            found = dict(answers.get(timeout=SECONDS) for _ in indexes)
            for worker in workers:
                worker.join(SECONDS)
                assert worker.exitcode == 0
        finally:
            for worker in workers:
                worker.kill()
        return found


def test_a_loader_for_training(place: Path) -> None:
    """Four epochs of forked workers read every row, while the parent reads too."""
    loader = Loader(Repository.open(place, cache_bytes=LITTLE).readonly_session("main"))
    with beside(lambda: loader[7]):
        for _ in range(4):
            found = loader.epoch(list(range(0, 200, 10)))
            assert found == {index: VALUES[index].tolist() for index in range(0, 200, 10)}


def test_a_writable_session_belongs_to_the_process_that_opened_it(tmp_path: Path) -> None:
    """A child reads what the parent had staged, and neither changes nor commits it; its own sessions do."""
    repo = Repository.create(tmp_path / "r")
    written(repo)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0, 0] = 5

    def child() -> None:
        assert zarr.open_array(session.store, path="a", mode="r")[0, 0] == 5
        assert "fork" in repr(session)
        for change in (
            lambda: session.commit("twice"),
            lambda: session.write_chunk("/a", (0, 0), b"x"),
            lambda: session.delete_nodes(["/a"]),
            lambda: session.rebase(ConflictDetector()),
            session.discard_changes,
            session.fork,
            session.merge,
            lambda: pickle.dumps(session),
        ):
            with pytest.raises(ReadOnlyError, match="process"):
                change()
        written(Repository.open(tmp_path / "r"), name="child")
        written(repo, name="too")

    in_child(child)
    session.commit("once", rebase_with=ConflictDetector())
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages == ["once", "write too", "write child", "write a", "Repository created"]
    assert read_array(repo)[0, 0] == 5


@pytest.mark.parametrize("kind", ["session", "fork"])
def test_a_commit_that_is_under_way_is_the_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A child that was forked in the middle of another thread's commit says that its copy is of no use."""
    repo = Repository.create(tmp_path / "r")
    written(repo)
    session = repo.writable_session("main")
    target = session if kind == "session" else session.fork()
    zarr.open_array(target.store, path="a")[0, 0] = 5
    storage = repo._context.storage
    inside, go_on = threading.Event(), threading.Event()
    method = "sync" if kind == "session" else "put"
    original = getattr(storage, method)

    def slow(*given: Any) -> None:
        inside.set()
        assert go_on.wait(SECONDS)
        original(*given)

    monkeypatch.setattr(storage, method, slow)
    work = (lambda: session.commit("once")) if kind == "session" else target.finish  # type: ignore[union-attr]
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(SECONDS)

    def child() -> None:
        uses: tuple[Callable[[], object], ...] = (
            target.node_paths,
            lambda: target.store.get_sync("a/c/0/0"),
            lambda: target.has_uncommitted_changes,
            lambda: target.write_chunk("/a", (0, 0), b"x"),
        )
        for use in uses:
            with pytest.raises((StorageError, ReadOnlyError), match="process"):
                use()
        assert "fork" in repr(target).lower()
        assert (read_array(repo) == 1).all()

    in_child(child)
    go_on.set()
    thread.join(SECONDS)
    if kind == "fork":
        session.merge(target)  # type: ignore[arg-type]
        session.commit("once")
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["once", "write a"]
    assert read_array(repo)[0, 0] == 5


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("moment", ["put", "sync", "create"])
@pytest.mark.parametrize("size_bytes", [1, 1 << 18])
def test_a_thread_that_forks_in_the_middle_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, goes_on: bool, size_bytes: int
) -> None:
    """The child commits nothing, if it goes on there as well, and says that its copy is of no use."""
    repo = Repository.create(tmp_path / "r")
    session = repo.writable_session("main")
    make_array(session.store, shape=(16,))
    for number in range(8):
        session.write_chunk("/a", (number,), bytes(size_bytes))
    storage, parent, children = repo._context.storage, os.getpid(), []
    original = getattr(storage, moment)

    def use() -> None:
        for each in (session.node_paths, lambda: session.commit("twice")):
            with pytest.raises((StorageError, ReadOnlyError), match="process"):
                each()

    def forking(*given: Any, **more: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)  # chunk files are still being written
            original(*given, **more)
            return
        monkeypatch.undo()
        if goes_on:
            children.append(os.fork())
        else:
            children.append(fork(use))
        if not children[0]:  # it goes on without haste
            time.sleep(0.2)
        original(*given, **more)

    monkeypatch.setattr(storage, moment, forking)
    try:
        session.commit("once")
    except BaseException as error:
        if os.getpid() == parent:
            raise
        os._exit(0 if isinstance(error, IcechunkArrowError) else 1)
    if os.getpid() != parent:
        os._exit(2)
    wait_for(children[0])
    assert [info.message for info in repo.ancestry(branch="main")][:-1] == ["once"]


def test_a_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    """The system lifts a lock when its holder dies, although a child that was forked meanwhile lives on."""
    folder = ScratchFolder(str(tmp_path), durable=False)
    asked, answer = os.pipe()

    def parent() -> None:
        with folder.lock("x"):
            child = os.fork()
            if not child:
                os.close(answer)
                os.read(asked, 1)  # until the test has ended
                os._exit(0)
            os._exit(0)

    in_child(parent)
    with folder.lock("x"):
        pass
    os.close(answer)
    os.close(asked)


def test_a_child_that_goes_on_does_not_lift_its_parents_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that forks while it holds a lock holds it until it gives it back itself."""
    folder = ScratchFolder(str(tmp_path), durable=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.lock("x"))
        child = os.fork()
        if not child:
            stack.close()
            os._exit(0)
        wait_for(child)
        monkeypatch.setattr(scratch, "_LOCK_SECONDS", 0.0)
        with pytest.raises(OSError, match="held its lock"):
            folder.lock("x").__enter__()


def test_forks_of_a_session_are_filled_by_forked_children(tmp_path: Path) -> None:
    """A fork that a child inherited, instead of being sent it, is written there and merged here."""
    repo = Repository.create(tmp_path / "r")
    written(repo)
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(4)]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def fill(number: int) -> None:
        zarr.open_array(forks[number].store, path="a")[2 * number : 2 * number + 2] = number
        answers.put(pickle.dumps(forks[number]))

    workers = [context.Process(target=fill, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    try:
        session.merge(*(pickle.loads(answers.get(timeout=SECONDS)) for _ in workers))
    finally:
        for worker in workers:
            worker.join(SECONDS)
            worker.kill()
    session.commit("merged")

    assert (read_array(repo) == np.repeat(np.arange(4), 2)[:, None]).all()


def test_memory_places_in_children() -> None:
    """The registry of named places is not locked for a child, which reads them and makes its own."""
    name = secrets.token_hex(8)
    repo = Repository.create(f"memory://{name}")
    written(repo)

    def child() -> None:
        assert (read_array(repo) == 1).all()
        own = f"memory://{name}-of-a-child"
        written(Repository.create(own))
        assert (read_array(Repository.open(own)) == 1).all()
        with pytest.raises(StorageError, match="another process"):
            written(repo, name="b")

    with beside(lambda: Repository.exists(f"memory://{secrets.token_hex(8)}"), 2):
        for _ in range(5):
            in_child(child)
    assert not Repository.exists(f"memory://{name}-of-a-child")


SCRIPT = """
import os, sys, threading, time
import numpy as np, zarr
from icechunk_arrow import Repository
url, options = sys.argv[1], eval(sys.argv[2])
repo = Repository.open(url, options)
session = repo.readonly_session("main")
def read():
    found = np.asarray(zarr.open_array(session.store, path="a", mode="r")[...])
    assert (found == 1).all()
    repo.readonly_session("main")
read()
for turn in range(6):
    child = os.fork()
    if not child:
        read()
        sys.exit(0)  # with everything that Python does at its end
    if turn % 2:
        read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    started = time.monotonic()
    read()
    assert time.monotonic() - started < 20, "the parent waited for an answer that never came"
print("done")
"""


def run_script(url: str, options: dict[str, Any], script: str = SCRIPT, *words: str) -> None:
    """Run a script of these, and see that it ends without a complaint."""
    given = [script, url, repr(options), *words]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", *given],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeS3]:
    """A server with a repository in its bucket, under ``r``."""
    written(Repository.create(tmp_path / "r"), shape=(20, 20))
    with fake_s3() as server:
        for path in (tmp_path / "r").rglob("*"):
            if path.is_file():
                server.objects[path.relative_to(tmp_path).as_posix()] = path.read_bytes()
        yield server


def test_children_leave_the_parents_connections_alone(server: FakeS3) -> None:
    """Over HTTP and S3 a child has connections of its own, and those of the parent outlive it."""
    run_script(f"{server.endpoint}/bucket/r", {})
    run_script("s3://bucket/r", server.storage_options)


@pytest.mark.s3
def test_children_leave_the_parents_connections_to_a_bucket_alone(s3: Any, s3_url: str) -> None:
    """With S3 a child has connections of its own, and those of the parent outlive it."""
    written(Repository.create(s3_url, s3.storage_options), shape=(20, 20))
    run_script(s3_url, s3.storage_options)


FORKS_AT_ONE_TIME = """
import gc, os, sys, threading, time

url, options, what = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
first = threading.get_ident()

def beside():
    if what == "a fork":
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    else:
        read()

def meanwhile():
    if threading.get_ident() == first:
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()

import concurrent.futures.thread, logging  # have locks while a process forks
os.register_at_fork(before=meanwhile)  # what is registered first comes last
import fsspec.asyn, numpy as np, zarr
from icechunk_arrow import Repository

def read():
    global session
    if session is None:
        session = Repository.open(url, options).readonly_session("main")
    assert (np.asarray(zarr.open_array(session.store, path="a", mode="r")[...]) == 1).all()

async def collect():
    gc.collect()

session = None
if what == "a fork":
    read()
child = os.fork()
if not child:
    session = None
    gc.disable()
    read()  # over connections, and with a loop, of its own
    fsspec.asyn.sync(fsspec.asyn.get_loop(), collect)
    read()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
started = time.monotonic()
read()
assert time.monotonic() - started < 20, "the parent waited for an answer that never came"
print("done")
"""


@pytest.mark.parametrize("what", ["a fork", "a connection"])
def test_forks_and_connections_at_one_time(server: FakeS3, what: str) -> None:
    """A parent keeps its connections where two threads fork at a time, or one connects while another forks."""
    run_script("s3://bucket/r", server.storage_options, FORKS_AT_ONE_TIME, what)


def test_an_error_of_ours_is_what_a_child_meets(tmp_path: Path) -> None:
    """What a child may not do is refused by an error of this package."""
    session = Repository.create(tmp_path / "r").writable_session("main")

    def child() -> None:
        with pytest.raises(IcechunkArrowError, match=r"repo\.writable_session"):
            session.commit("no", allow_empty=True)

    in_child(child)


FORKS_IN_AN_IMPORT = """
import importlib, importlib.util, os, signal, sys, threading, time

def begin_import():
    threading.Thread(target=lambda: importlib.import_module(NAME)).start()
    begun.wait()

late = sys.argv[1] == "late"
if late:  # what is registered first comes last
    os.register_at_fork(before=begin_import)
from icechunk_arrow import Repository

NAME = "icechunk_arrow.engine.compaction"

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def slowly(module):
            begun.set()
            time.sleep(0.5)
            execute(module)
        spec.loader.exec_module = slowly
        return spec

begun = threading.Event()
sys.meta_path.insert(0, Slow())
assert NAME not in sys.modules
if not late:
    begin_import()
child = os.fork()
if not child:
    signal.alarm(30)
    from icechunk_arrow.engine.compaction import compact_chunks
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("begun", ["before", "late"])
def test_a_process_forks_when_imports_are_over(begun: str) -> None:
    """A module that another thread is importing is whole in a child: else the child would wait for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS_IN_AN_IMPORT, begun],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
