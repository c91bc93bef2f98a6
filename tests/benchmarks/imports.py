"""What starting takes, in a fresh process: imports, the command line, and the first commit."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import count as count_from
from typing import TYPE_CHECKING, Any

import zarr

import icechunk_arrow
from tests.benchmarks import references_data
from tests.benchmarks.harness import alternate, print_figures, timed
from tests.benchmarks.peers import start_icechunk, start_worker
from tests.benchmarks.subjects import SPLIT, copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.harness import Bench

__all__ = ["command_line", "first_commit", "imports"]

_PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
_SESSION = "from icechunk_arrow import IcechunkStore, Repository"
"""All that the first session of a process needs."""
_CHUNK_BYTES = 256
_PEERS = {"chunk": "icechunk", "references": SPLIT}


def _compiled(bench: Bench) -> dict[str, str]:
    """An environment in which modules are kept as bytecode, which installers make and a checkout may not have."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": str(bench.new_folder("bytecode"))}


def _within(statement: str, environment: dict[str, str]) -> float:
    """Time a statement in a fresh interpreter, without its start."""
    program = [sys.executable, "-c", _PROGRAM.format(statement)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def _whole(environment: dict[str, str], *arguments: str) -> float:
    """Time a process from its start to its end."""
    program = [sys.executable, *arguments]
    return timed(lambda: subprocess.run(program, check=True, capture_output=True, env=environment))


def imports(bench: Bench) -> None:
    """All that a first session needs, and the package alone, against zarr and Arrow, which it needs anyway."""
    environment = _compiled(bench)
    floor = "zarr, pyarrow, its Parquet"
    found = alternate(
        {
            "ours": partial(_within, f"{_SESSION}; import zarr", environment),
            "the package alone": partial(_within, "import icechunk_arrow", environment),
            floor: partial(_within, "import zarr, pyarrow, pyarrow.parquet", environment),
        },
        bench.choose(15, 5),
    )
    print_figures("import", found, aims={floor: 1.12})


def command_line(bench: Bench) -> None:
    """Help, and two lists of a small repository, from start to end, against ``python -c "import zarr"``."""
    environment = _compiled(bench)
    place = bench.new_folder("command_line") / "weather"
    repo = icechunk_arrow.Repository.create(place)
    with repo.transaction("main", message="One day") as store:
        array = zarr.create_array(store, name="a", shape=(64,), chunks=(8,), dtype="u1")
        array[:] = 1
    program = ("-m", "icechunk_arrow.cli")
    floor = "import zarr"
    lines = {"--help": ["--help"], "ls": ["ls", str(place)], "log": ["log", str(place)]}
    aims = {"--help": 0.6, "ls": 1.4, "log": 1.4}
    subjects = {
        name: partial(_whole, environment, *program, *words) for name, words in lines.items()
    }
    subjects[floor] = partial(_whole, environment, "-c", "import zarr")
    found = alternate(subjects, bench.choose(15, 5))
    for name in lines:
        print_figures(
            f"icechunk-arrow {name}",
            {name: found[name], floor: found[floor]},
            ours=name,
            aims={floor: aims[name]},
        )


def first_commit(bench: Bench) -> None:
    """The first commit of a process, imports apart: one small chunk; 100 references behind a million.

    Each from a process of its own, which has opened the repository and done nothing else. Ours is durable.
    """
    rounds = bench.choose(15, 5)
    folder = bench.new_folder("first_commit")
    made = {"shape": [1 << 20], "chunks": [_CHUNK_BYTES]}
    chunk = {"size_bytes": _CHUNK_BYTES}
    small = {"ours": folder / "ours", "icechunk": folder / "icechunk"}
    with start_worker() as worker:
        worker("create_array", path=str(small["ours"]), **made)
    ours = {"chunk": partial(_fresh_worker, "commit_chunk", path=str(small["ours"]), **chunk)}
    count = bench.sizes[0]
    many = copied(bench, "ours", count, folder / "many").path
    ours["references"] = partial(_fresh_worker, "append", path=str(many), opening_counts=False)
    theirs: dict[str, Callable[..., float]] = {}
    if bench.icechunk is not None:
        bench.icechunk("create", path=str(small["icechunk"]), **made)
        peer = partial(_fresh_icechunk, bench.peer_python)
        theirs["chunk"] = partial(peer, "commit_chunk", path=str(small["icechunk"]), **chunk)
        their_many = copied(bench, SPLIT, count, folder / "their many").path
        split = references_data.split_rows()
        theirs["references"] = partial(
            peer, "set_references", path=str(their_many), rows=1, columns=100, split=split
        )
    places = {"chunk": ("index", 0), "references": ("row", count // references_data.COLUMNS)}
    titles = {"chunk": "one small chunk", "references": f"100 references behind {count:,}"}
    for what, (word, first) in places.items():
        subjects = {"ours": _one_after_another(ours[what], word, first)}
        if theirs:
            their_word = "first_row" if word == "row" else word
            subjects[_PEERS[what]] = _one_after_another(theirs[what], their_word, first)
        print_figures(
            f"the first commit of a process: {titles[what]}",
            alternate(subjects, rounds),
            aims={_PEERS[what]: 1.0},
        )


def _one_after_another(run: Callable[..., float], word: str, first: int) -> Callable[[], float]:
    """Each time at the next place."""
    places = count_from(first)
    return lambda: run(**{word: next(places)})


def _fresh_worker(name: str, **arguments: Any) -> float:
    with start_worker() as worker:
        found = worker(name, **arguments)
    return float(found["seconds"])


def _fresh_icechunk(python: str | None, name: str, **arguments: Any) -> float:
    with start_icechunk(python) as peer:
        found = peer(name, **arguments)
    return float(found.get("cycle", found.get("seconds")))
