"""Pickles that one version of Python makes and another one reads.

Owns what is pickled, by every protocol; what the other process does with it; and that forks go back and are merged.
``python -m tests.processes.pickles <other python> <folder>`` makes them, and has the other Python use them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    Repository,
    StorageSettings,
)
from icechunk_arrow.engine import session as sessions
from tests.faults.repositories import CONFIG, INLINE, OWN, PACKED, contents, make_base, payload

if TYPE_CHECKING:
    from icechunk_arrow import Session

__all__ = ["drive"]

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
FORKS = ("fork", "written", "spilled")
SOURCE = bytes(range(200)) * 10
VALUES = [
    CONFIG,
    CONFIG.chunk_manifests,
    StorageSettings(durable=False),
    ConflictDetector(),
    BasicConflictSolver(),
]


def open_at(folder: Path, **more: Any) -> Repository:
    return Repository.open(
        folder / "r", config=CONFIG, authorize_virtual_chunk_access=[f"file://{folder}/"], **more
    )


def digest(session: Session) -> str:
    """Tell all that a session shows."""
    found = {
        key: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
        for key, value in contents(session).items()
    }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def rows_at(numbers: range, folder: Path) -> pa.Table:
    """References to bytes of a file."""
    return pa.table(
        {
            "index_0": list(numbers),
            "location": [f"file://{folder}/source"] * len(numbers),
            "offset": [number % 100 for number in numbers],
            "length": [10] * len(numbers),
        }
    )


def written(fork: Any, first: int, folder: Path) -> Any:
    """Write chunks of every kind into a fork."""
    for number, size in enumerate((INLINE, PACKED, OWN)):
        fork.write_chunk("/many", (first + number,), payload(f"{first + number}", size))
    fork.set_references("/many", rows_at(range(first + 3, first + 30), folder))
    return fork


def make(folder: Path) -> Session:
    """Make the repository, and a session that stays; pickle things."""
    (folder / "source").write_bytes(SOURCE)
    make_base(str(folder / "r"))
    repo = open_at(folder)
    session = repo.writable_session("main")
    kind: dict[str, Any] = {"dtype": "u1", "compressors": None}
    zarr.create_array(session.store, name="many", shape=(100_000,), chunks=(10,), **kind)
    session.set_references("/many", rows_at(range(30), folder))
    session.commit("references")
    reader = repo.readonly_session("main")
    session = repo.writable_session("main")
    session.write_chunk("/a", (30,), payload("staged", PACKED))
    memory = Repository.create("memory://here")
    for protocol in PROTOCOLS:
        first = 1000 * (protocol + 1)
        spilled = session.fork()
        for number in range(40):  # more than is held in memory here
            spilled.write_chunk("/many", (first + 500 + number,), payload(f"{number}", 12))
        made = {
            "session": reader,
            "store": reader.store,
            "repository": repo,
            "memory": memory,
            "values": VALUES,
            "infos": list(repo.ancestry(branch="main")),
            "status": session.status(),
            "error": ConflictError("lost", expected_parent="A", actual_parent="B"),
            "fork": session.fork(),
            "written": written(session.fork(), first, folder),
            "spilled": spilled,
        }
        for name, thing in made.items():
            (folder / f"{name}-{protocol}").write_bytes(pickle.dumps(thing, protocol))
    (folder / "expected").write_text(digest(reader))
    return session


def use(folder: Path) -> None:
    """Use what the other one has made."""
    expected = (folder / "expected").read_text()
    for protocol in PROTOCOLS:

        def load(name: str, protocol: int = protocol) -> Any:
            return pickle.loads((folder / f"{name}-{protocol}").read_bytes())

        first = 1000 * (protocol + 1)
        session, store, repo = load("session"), load("store"), load("repository")
        assert digest(session) == expected
        found = np.asarray(zarr.open_array(store, path="many", mode="r")[20:30])
        assert (found == np.frombuffer(SOURCE[2:12], "u1")).all()
        assert digest(repo.readonly_session("main")) == expected
        try:
            load("memory")
        except InvalidInputError as error:
            assert "another process" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a place in memory was found in another process")
        values = load("values")
        assert values[:3] == VALUES[:3]
        assert list(map(type, values)) == list(map(type, VALUES))
        assert [info.id for info in load("infos")] == [
            info.id for info in repo.ancestry(branch="main")
        ]
        assert str(load("status"))
        lost = load("error")
        assert (str(lost), lost.expected_parent, lost.actual_parent) == ("lost", "A", "B")
        for name in FORKS:
            fork = load(name)
            assert fork.read_only == (name != "fork")
            if name == "fork":
                written(fork, first + 100, folder)
            (folder / f"{name}-{protocol}-back").write_bytes(pickle.dumps(fork, protocol))


def take_back(folder: Path, session: Session) -> int:
    """Merge what came back, commit it, and see that everything is there; tell how many chunks that are."""
    forks = [
        pickle.loads((folder / f"{name}-{protocol}-back").read_bytes())
        for protocol in PROTOCOLS
        for name in FORKS
    ]
    session.merge(*forks)
    session.commit("merged")
    found = contents(open_at(folder).readonly_session("main"))
    chunks = {key: value for key, value in found.items() if key.startswith("/many/c/")}
    for protocol in PROTOCOLS:
        for first in (1000 * (protocol + 1), 1000 * (protocol + 1) + 100):
            for number, size in enumerate((INLINE, PACKED, OWN)):
                data = payload(f"{first + number}", size)
                assert chunks[f"/many/c/{first + number}"] == data, (first, number)
            for number in range(first + 3, first + 30):
                start = number % 100
                assert chunks[f"/many/c/{number}"] == SOURCE[start : start + 10], number
        for number in range(40):
            where = 1000 * (protocol + 1) + 500 + number
            assert chunks[f"/many/c/{where}"] == payload(f"{number}", 12), where
    assert len(chunks) == 30 + len(PROTOCOLS) * 100
    assert found["/a/c/30"] == payload("staged", PACKED)
    return len(chunks)


def drive(python: str, other: str, folder: Path) -> str:
    """Have one Python make pickles and another one use them; tell who they were, and how many chunks came."""
    done = subprocess.run(
        [python, "-m", __name__, other, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    """Make pickles, or use them."""
    name = "tests.processes.pickles"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    vars(sessions).update(_MOST_SINGLES=16, _SINGLES_CHECKED=8)
    if sys.argv[1] == "use":
        use(Path(sys.argv[2]))
        print(version)
        return
    other, folder = sys.argv[1], Path(sys.argv[2])
    session = make(folder)
    theirs = subprocess.run(
        [other, "-m", name, "use", str(folder)], stdout=-1, check=True, text=True
    )
    print(version, theirs.stdout.strip(), take_back(folder, session))


if __name__ == "__main__":
    main()
