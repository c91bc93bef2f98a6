"""A history on a real volume that begins to misbehave at a random call of an operation, and is well afterwards.

Owns the volumes and limits, and the random operations. What an operation should come to is found by doing it on a
copy of the place where nothing is wrong. Runs as a process of its own, in which volumes can be mounted and limits
set that nobody else sees: ``python -m tests.faults.bad_places FOLDER KIND SEED COUNT``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow import ConflictDetector, Repository
from icechunk_arrow.engine.bulk import BulkSettings
from icechunk_arrow.errors import IcechunkArrowError
from tests.faults.bad_calls import USERS, attempted_again, check_left_over
from tests.faults.calls import TROUBLES, Calls, misbehaving
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    contents,
    make_base,
    payload,
    picture,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Attempt = Callable[[], object]

__all__ = ["KINDS", "MOUNTED", "NoMountsError", "run"]

SECONDS = 900
_MS_REMOUNT, _MS_RDONLY = 32, 1
_libc = ctypes.CDLL(None, use_errno=True)


class NoMountsError(Exception):
    """This machine does not let us mount a volume of our own."""


def _mount(what: str, root: Path, flags: int, data: str) -> None:
    names = what.encode(), os.fsencode(root), what.encode()
    if _libc.mount(*names, flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(root))


# -- troubles that are real: each begins, and ends


class Full:
    """A volume of some megabytes, enough for a long history, of which next to nothing is left."""

    mounted = "size=8m,nr_inodes=40k"

    def __init__(self, root: Path, rng: Random) -> None:
        self.ballast = root / "ballast"
        self.rng = rng

    def begin(self) -> None:
        left = self.rng.choice([0, 0, 4096, 8192, 20_000])
        free = os.statvfs(self.ballast.parent)
        size = max(free.f_bavail * free.f_frsize - left, 0)
        with suppress(OSError), self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def end(self) -> None:
        self.ballast.unlink(missing_ok=True)


class Names(Full):
    """A volume with room for so many files, of which next to nothing is left."""

    mounted = "size=30m,nr_inodes=1500"

    def begin(self) -> None:
        self.ballast.mkdir()
        left = self.rng.choice([0, 1, 2, 5])
        for number in range(max(os.statvfs(self.ballast).f_favail - left, 0)):
            (self.ballast / str(number)).touch()

    def end(self) -> None:
        shutil.rmtree(self.ballast, ignore_errors=True)


class ReadOnly:
    """A volume that becomes one to be read only, as an administrator, or a broken disk, makes it."""

    mounted = "size=30m"

    def __init__(self, root: Path, rng: Random) -> None:
        self.root = root.parent

    def begin(self) -> bool:
        try:
            _mount("tmpfs", self.root, _MS_REMOUNT | _MS_RDONLY, "")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # a file is being written: at the next call
        return True

    def end(self) -> None:
        _mount("tmpfs", self.root, _MS_REMOUNT, "")


class Descriptors:
    """A process that may open a few files more, or none."""

    mounted = ""

    def __init__(self, root: Path, rng: Random) -> None:
        self.rng = rng
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def begin(self) -> None:
        numbers = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
        limit = max(numbers) + self.rng.choice([0, 1, 1, 2, 3])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, self.limits[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


class Large:
    """A process that may write files up to a size."""

    mounted = ""

    def __init__(self, root: Path, rng: Random) -> None:
        self.rng = rng
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin(self) -> None:
        limit = self.rng.choice([0, 50, 1000, 5000])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self.limits[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


KINDS: dict[str, Any] = {
    "full": Full,
    "names": Names,
    "read-only": ReadOnly,
    "descriptors": Descriptors,
    "large": Large,
    "calls": None,
}
"""what a place, or a limit of the process, does; ``calls`` are single system calls that meet any trouble, and
``calls: short`` such that meet one."""
MOUNTED = [name for name, kind in KINDS.items() if kind is not None and kind.mounted]
SAYS = {
    "full": "No space left on device",
    "names": "No space left on device",
    "read-only": "Read-only file system",
    "descriptors": "Too many open files",
    "large": "File too large",
}


# -- the repository


def _source() -> str:
    """Where the bytes behind virtual chunks are."""
    return f"file://{tempfile.gettempdir()}/source"


def _open(root: Any) -> Repository:
    return Repository.open(
        root, config=CONFIG, authorize_virtual_chunk_access=[_source().removesuffix("source")]
    )


def _picture(root: Path) -> Any:
    return picture(_open(root))


# -- operations: drawn anew from the same seed, they are the same


def _branch(repo: Repository, rng: Random) -> str:
    return rng.choice(sorted(repo.list_branches()))


def _in_session(repo: Repository, rng: Random, stage: Callable[[Any, Random], None]) -> Attempt:
    branch, seed = _branch(repo, rng), rng.random()
    known: dict[str, Any] = {}

    def attempt() -> None:
        session = known.get("session") or repo.writable_session(branch)
        known["session"] = session
        if session.read_only:  # an earlier attempt was made
            return
        if "staged" not in known:
            stage(session, Random(seed))
            known["staged"] = True
        session.commit("ours", rebase_with=ConflictDetector())

    return attempt


def _fill(session: Any, rng: Random) -> None:
    for _ in range(rng.randint(1, 8)):
        number = rng.randrange(40)
        data = payload(str(rng.random()), rng.choice([INLINE, PACKED, OWN]))
        session.write_chunk("/a", (number,), data)


def write(repo: Repository, rng: Random) -> Attempt:
    return _in_session(repo, rng, _fill)


def forks(repo: Repository, rng: Random) -> Attempt:
    """One comes back pickled, and one says on finishing what it wrote."""

    def stage(session: Any, rng: Random) -> None:
        _fill(session, rng)
        back = pickle.loads(pickle.dumps(session.fork()))
        told = pickle.loads(pickle.dumps(session.fork()))
        _fill(back, rng)
        _fill(told, rng)
        session.merge(pickle.loads(pickle.dumps(back)), duplicates="last")
        session.merge_written([told.finish()], duplicates="last")

    return _in_session(repo, rng, stage)


def spill(repo: Repository, rng: Random) -> Attempt:
    """Chunks out of order by the table, more than are held in memory: they are sorted on disk."""

    def stage(session: Any, rng: Random) -> None:
        from icechunk_arrow.engine import references

        rows = rng.sample(range(40), 40)
        table = pa.table(
            {
                "index": pa.array([[row] for row in rows], pa.list_(pa.int64())),
                "location": pa.array([_source()] * 40),
                "offset": pa.array(rows, pa.uint64()),
                "length": pa.array([10] * 40, pa.uint64()),
            }
        )
        kept = vars(references)["BulkSettings"]
        vars(references)["BulkSettings"] = lambda **more: BulkSettings(
            held_rows=4, slice_rows=8, **more
        )
        try:
            node = "/spilled"
            if session.find_node(node) is None:
                session.set_document(node, session.document(session.find_node("/a")))
            session.set_references(node, table)
        finally:
            vars(references)["BulkSettings"] = kept

    return _in_session(repo, rng, stage)


def branches(repo: Repository, rng: Random) -> Attempt:
    name, target = f"b{rng.randrange(3)}", repo.lookup_branch(_branch(repo, rng))
    if name not in repo.list_branches():
        return lambda: repo.create_branch(name, target)
    if rng.random() < 0.5:
        return lambda: repo.reset_branch(name, target)
    return lambda: repo.delete_branch(name)


def tags(repo: Repository, rng: Random) -> Attempt:
    target, there = repo.lookup_branch(_branch(repo, rng)), sorted(repo.list_tags())
    if there and rng.random() < 0.3:
        name = rng.choice(there)
        return lambda: repo.delete_tag(name)
    name = f"t{rng.randrange(1 << 30)}"
    return lambda: repo.create_tag(name, target)


def rewrite(repo: Repository, rng: Random) -> Attempt:
    branch = _branch(repo, rng)
    return lambda: repo.rewrite_manifests(branch, "arranged")


def compact(repo: Repository, rng: Random) -> Attempt:
    branch = _branch(repo, rng)
    return lambda: repo.compact_chunks(branch, "gathered")


def look(repo: Repository, rng: Random) -> Attempt:
    """Read it all, by a handle of its own, and ask a question."""
    url, inspection = repo.url, rng.choice(["growth", "unreferenced_files", "largest_chunks"])

    def attempt() -> None:
        again = _open(url)
        again.inspect(inspection)
        contents(again.readonly_session("other"))

    return attempt


OPERATIONS = (write, write, forks, spill, branches, tags, rewrite, compact, look)


# -- the storm


class _Storm:
    """A place, and somebody who has read it from the beginning."""

    def __init__(self, root: Path, kind: str, seed: int) -> None:
        self.root, self.kind = root, kind
        self.rng = Random(f"{seed} {kind}")
        make_base(str(root), catalog="state" if seed % 2 else "branches")
        for name, data in USERS.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)
        self.repo = _open(root)
        self.reader = _open(root).readonly_session("other")
        self.read = contents(self.reader)
        self.figures: Counter[str] = Counter()

    def step(self, number: int) -> None:
        """Do one operation badly, and again."""
        make = self.rng.choice(OPERATIONS)
        seed, moment = self.rng.random(), self.rng.choice([0, 3, 10, 30, 60, 100, 200])
        begins_at = self.rng.randrange(moment + 1)
        before = _picture(self.root)
        expected = self.expected(make, seed)
        attempt = make(self.repo, Random(seed))
        calls, end = self.trouble(begins_at)
        error = None
        try:
            with misbehaving(calls):
                error = self.outcome(attempt)
                self.read_on()
        finally:
            end()
        self.figures[make.__name__] += 1
        self.figures["troubles"] += sum(calls.met.values()) > 0
        now = _picture(self.root)
        assert now in (before, expected), "half an operation"
        if error is None:
            assert now == expected, "acknowledged, and not there"
        else:
            self.figures["errors"] += 1
            self.check_words(error, calls)
            is_made = now == expected and make is not look
            error = None
            self.again(make, seed, attempt, is_made)
        assert _picture(self.root) == expected, "what is there when it is well again"
        assert contents(self.reader) == self.read, "a reader's snapshot has moved"

    def expected(self, make: Callable[[Repository, Random], Attempt], seed: float) -> Any:
        """Do it elsewhere, where nothing is wrong."""
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            copy = Path(folder) / "r"
            shutil.copytree(self.root, copy)
            make(_open(copy), Random(seed))()
            return _picture(copy)

    def trouble(self, begins_at: int) -> tuple[Calls, Callable[[], None]]:
        if self.kind.startswith("calls"):
            name = self.kind.partition(": ")[2] or self.rng.choice(sorted(TROUBLES))
            lasts = self.rng.choice([1, 1, 3, None])
            begins_at //= 5  # fewer calls count than where it is real
            calls = Calls(name, begins_at, lasts)
            return calls, lambda: None
        real = KINDS[self.kind](self.root, self.rng)
        return Calls(begins_at=begins_at, on=real.begin), real.end

    def outcome(self, attempt: Attempt) -> IcechunkArrowError | None:
        try:
            attempt()
        except IcechunkArrowError as error:
            return error
        return None

    def read_on(self) -> None:
        """Others read meanwhile: what was written before, or they are told why not."""
        key = self.rng.choice([key for key in self.read if "/c/" in key])
        path, _, coord = key.rpartition("/c/")
        with suppress(IcechunkArrowError):
            view = self.reader.get_array(path)
            chunk = self.reader.find_chunk(view, (int(coord),))
            assert chunk is not None
            length = len(chunk) if isinstance(chunk, bytes) else chunk.length
            assert bytes(self.reader.read_chunk(chunk, 0, length)) == self.read[key]
            self.figures["reads meanwhile"] += 1

    def check_words(self, error: IcechunkArrowError, calls: Calls) -> None:
        """The error says what the system said."""
        said = SAYS.get(self.kind) or os.strerror(calls.number)
        assert said in str(error), f"{said!r} is not in {error!r}"

    def again(
        self,
        make: Callable[[Repository, Random], Attempt],
        seed: float,
        attempt: Attempt,
        is_made: bool,
    ) -> None:
        """Do it again in the same session, or in another one where the error said so."""
        if is_made and make not in (write, forks, spill):
            return
        if attempted_again(attempt):
            return
        self.figures["opened anew"] += 1
        self.repo = _open(self.root)
        if not is_made:
            make(self.repo, Random(seed))()


def storm(root: Path, kind: str, seed: int, count: int) -> dict[str, int]:
    """Go through so many operations; give figures."""
    going = _Storm(root, kind, seed)
    for number in range(count):
        try:
            going.step(number)
        except BaseException as error:
            error.add_note(f"kind {kind!r}, seed {seed}, step {number}")
            raise
    figures, place = going.figures, going.root
    del going
    check_left_over(place)
    return dict(figures)


def run(folder: Path, kind: str, seed: int, count: int, planted: str = "") -> dict[str, int]:
    """Go through a storm in a process of its own, in which volumes are mounted that nobody else sees."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.bad_places",
        str(folder),
        kind,
        str(seed),
        str(count),
        planted,
    ]
    if kind in MOUNTED:
        command = [*_namespace(), *command]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _namespace() -> list[str]:
    """What a command is begun with that mounts volumes: root may, and others where the system lets them."""
    for words in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            test = [*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
            if not subprocess.run(test, capture_output=True, check=False).returncode:
                return words
        except FileNotFoundError:
            break
    raise NoMountsError("no volume can be mounted: this needs root, or namespaces of users")


def main(folder: str, kind: str, seed: str, count: str, planted: str = "") -> None:
    from tests.faults.planted_places import plant

    root = Path(folder)
    root.mkdir(exist_ok=True)
    if kind in MOUNTED:
        _mount("tmpfs", root, 0, KINDS[kind].mounted)
    (root / "tmp").mkdir()
    tempfile.tempdir = str(root / "tmp")
    (root / "tmp" / "source").write_bytes(payload("source", 4096))
    with plant(planted):
        print(json.dumps(storm(root / "r", kind, int(seed), int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
