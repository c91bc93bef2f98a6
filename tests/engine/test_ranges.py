"""Which ranges of a file are joined, and what becomes of reads that were."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow import StorageError
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.engine import joint_reads
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.chunk_bytes import ChunkBytes, plan_ranges
from icechunk_arrow.engine.files import Files
from icechunk_arrow.engine.joint_reads import JointReads
from icechunk_arrow.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.engine.chunk_bytes import Part

PATIENCE_SECONDS = 30.0
FILE = bytes(range(256)) * 40

_ranges = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 120)), max_size=40)


@given(_ranges, st.integers(0, 50), st.integers(1, 300))
def test_ranges_are_joined_within_the_limits(
    ranges: list[tuple[int, int]], gap: int, size: int
) -> None:
    """Each range lies in one group; groups keep gap and size, and no two neighbours could be one."""
    groups = plan_ranges(ranges, max_gap_bytes=gap, max_size_bytes=size)
    assert sorted(number for group in groups for number in group.members) == [*range(len(ranges))]
    for group in groups:
        stop = group.start
        for number in sorted(group.members, key=ranges.__getitem__):
            start, length = ranges[number]
            assert group.start <= start <= start + length <= group.start + group.length
            assert start - stop <= gap
            stop = max(stop, start + length)
        assert stop == group.start + group.length
        assert group.length <= size or len(group.members) == 1
    for before, after in itertools.pairwise(groups):
        first, length = ranges[min(after.members, key=ranges.__getitem__)]
        apart = first - (before.start + before.length) > gap
        large = max(first + length, before.start + before.length) - before.start > size
        assert apart or large


class Reader:
    """Reads parts of one file, and writes down what it is asked."""

    def __init__(self, content: bytes = FILE) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self.refused: Callable[[int], bool] = lambda _: False

    def __call__(self, found: bytes | ChunkRef, start: int, stop: int) -> bytes:
        if isinstance(found, bytes):
            return found[start:stop]
        if found.inline is not None:
            return found.inline[start:stop]
        self.asked.append((found.offset + start, stop - start))
        if self.refused(stop - start):
            raise StorageError("refused")
        data = self.content[found.offset + start : found.offset + stop]
        if len(data) != stop - start:
            raise StorageError(f"cut at {found.offset}")
        if found.crc32c not in (None, google_crc32c.value(data)):
            raise StorageError(f"damaged at {found.offset}")
        return data


def part(found: ChunkRef, start: int, stop: int) -> Part:
    """Say what of a file must be fetched, as a session does."""
    return ChunkBytes(Files(MemoryStorage("ranges"), ByteCache(1 << 20))).part(found, start, stop)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads to read in."""
    with ThreadPoolExecutor(64) as threads:
        yield threads


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a moment waits for its lookups."""
    monkeypatch.setattr(joint_reads, "PATIENCE_SECONDS", PATIENCE_SECONDS)


def later(seconds: float, then: Callable[[], None]) -> None:
    """Call a function after a while."""
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()


def ask_all(
    pool: ThreadPoolExecutor, read: Reader, refs: list[ChunkRef]
) -> list[Future[bytes | memoryview | None]]:
    """Read chunks in one moment, and wait for all."""
    joint = JointReads(read, part, pool.submit, later)
    answers = [
        joint.ask(lambda ref=ref: (ref, ref.length), lambda size: (0, size))  # type: ignore[misc]
        for ref in refs
    ]
    joint.start()
    for answer in answers:
        answer.exception(PATIENCE_SECONDS)
    return answers


def ref(offset: int, length: int = 10, **more: object) -> ChunkRef:
    return ChunkRef(file="f", offset=offset, length=length, **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("patient")
def test_neighbours_are_one_request(pool: ThreadPoolExecutor) -> None:
    """Chunks of a moment that stand near each other in a file come with one range, each its own part."""
    read = Reader()
    refs = [ref(offset) for offset in (500, 0, 20, 10, 480)]
    answers = ask_all(pool, read, refs)
    assert [answer.result() for answer in answers] == [
        FILE[each.offset : each.offset + 10] for each in refs
    ]
    assert read.asked == [(0, 510)]


@pytest.mark.usefixtures("patient")
def test_only_reads_of_the_same_version_of_a_file_are_joined(pool: ThreadPoolExecutor) -> None:
    """Another file, ETag or time is another request."""
    read = Reader()
    one = [ref(0), ref(10), ref(20, etag="x"), ref(30, etag="x"), ref(40, etag="y")]
    two = [ref(50, last_modified=1), ref(60, last_modified=2), ref(70, last_modified=2)]
    ask_all(pool, read, [*one, *two, ChunkRef(file="g", offset=80, length=10)])
    assert sorted(read.asked) == [(0, 20), (20, 20), (40, 10), (50, 10), (60, 20), (80, 10)]


@pytest.mark.usefixtures("patient")
def test_a_joined_read_that_fails_is_asked_again_one_by_one(pool: ThreadPoolExecutor) -> None:
    """What fails for all together does not fail for one, unless it fails alone too."""
    read = Reader(FILE[:35])
    answers = ask_all(pool, read, [ref(0), ref(10), ref(20), ref(30)])
    assert [answer.result() for answer in answers[:3]] == [FILE[:10], FILE[10:20], FILE[20:30]]
    assert str(answers[3].exception()) == "cut at 30"
    read = Reader()
    read.refused = lambda length: length > 10
    answers = ask_all(pool, read, [ref(0), ref(10)])
    assert [answer.result() for answer in answers] == [FILE[:10], FILE[10:20]]


@pytest.mark.usefixtures("patient")
def test_checksums_are_compared_within_a_joined_read(pool: ThreadPoolExecutor) -> None:
    """A damaged chunk is an error for itself alone, also where only a part of it is wanted."""
    crc = [google_crc32c.value(FILE[at : at + 10]) for at in (0, 10, 20)]
    read = Reader(FILE[:12] + b"?" + FILE[13:])
    answers = ask_all(pool, read, [ref(10 * n, crc32c=crc[n]) for n in range(3)])
    assert [answers[0].result(), answers[2].result()] == [FILE[:10], FILE[20:30]]
    assert str(answers[1].exception()) == "damaged at 10"
    joint = JointReads(Reader(), part, pool.submit, later)
    parts = [
        joint.ask(lambda n=n: (ref(10 * n, crc32c=crc[n]), 10), lambda _: (3, 5))  # type: ignore[misc]
        for n in range(3)
    ]
    joint.start()
    assert [part.result(PATIENCE_SECONDS) for part in parts] == [
        FILE[10 * n + 3 : 10 * n + 5] for n in range(3)
    ]


@pytest.mark.usefixtures("patient")
def test_one_who_goes_away_does_not_stop_the_others(pool: ThreadPoolExecutor) -> None:
    """A read that is cancelled, before or while it is fetched, leaves those it was joined with alone."""
    entered, go = threading.Event(), threading.Event()

    class Held(Reader):
        def __call__(self, found: bytes | ChunkRef, start: int, stop: int) -> bytes:
            entered.set()
            assert go.wait(PATIENCE_SECONDS)
            return super().__call__(found, start, stop)

    read = Held()
    joint = JointReads(read, part, pool.submit, later)
    answers = [
        joint.ask(lambda n=n: (ref(10 * n), 10), lambda size: (0, size))  # type: ignore[misc]
        for n in range(4)
    ]
    assert answers[3].cancel()
    joint.start()
    assert entered.wait(PATIENCE_SECONDS)
    assert answers[0].cancel()
    go.set()
    assert [answer.result(PATIENCE_SECONDS) for answer in answers[1:3]] == [
        FILE[10:20],
        FILE[20:30],
    ]
    assert read.asked == [(0, 30)]


def test_a_slow_lookup_holds_nobody_up(pool: ThreadPoolExecutor) -> None:
    """A chunk that is found is read although another of the same moment is still looked for."""
    go = threading.Event()

    def slow() -> tuple[ChunkRef, int]:
        assert go.wait(PATIENCE_SECONDS)
        return ref(10), 10

    joint = JointReads(Reader(), part, pool.submit, later)
    waits = joint.ask(slow, lambda size: (0, size))
    found = joint.ask(lambda: (ref(0), 10), lambda size: (0, size))
    joint.start()
    assert found.result(PATIENCE_SECONDS) == FILE[:10]
    assert not waits.done()
    go.set()
    assert waits.result(PATIENCE_SECONDS) == FILE[10:20]


def test_what_needs_no_file_is_given_at_once(pool: ThreadPoolExecutor) -> None:
    """Documents, inline chunks, empty parts and what is not there make no request; an error is told."""
    read = Reader()
    joint = JointReads(read, part, pool.submit, later)

    def fail() -> None:
        raise StorageError("no answer")

    found = [
        joint.ask(lambda: None, lambda size: (0, size)),
        joint.ask(lambda: (b"document", 8), lambda size: (1, size)),
        joint.ask(lambda: (ChunkRef(inline=b"inline", length=6), 6), lambda size: (0, size)),
    ]
    failed = joint.ask(fail, lambda size: (0, size))
    joint.start()
    assert [each.result(PATIENCE_SECONDS) for each in found] == [None, b"ocument", b"inline"]
    assert str(failed.exception(PATIENCE_SECONDS)) == "no answer"
    assert read.asked == []


def test_a_closed_store_answers_with_an_error() -> None:
    """Where no thread takes work any more, whoever waits is told."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    joint = JointReads(Reader(), part, pool.submit, later)
    answer = joint.ask(lambda: (ref(0), 10), lambda size: (0, size))
    joint.start()
    assert isinstance(answer.exception(PATIENCE_SECONDS), StorageError)
