"""Run the benchmarks: ``python -m tests.benchmarks [--only NAME] [--scale N] [--quick]``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import zarr

from tests.benchmarks.arrays import checksums, large_chunks, small_chunks
from tests.benchmarks.changes import append, appends, overwrite
from tests.benchmarks.commits import commit, growth, opening
from tests.benchmarks.crowd import crowd
from tests.benchmarks.harness import Bench
from tests.benchmarks.imports import command_line, first_commit, imports
from tests.benchmarks.peers import PeerError, start_icechunk
from tests.benchmarks.plate import plate
from tests.benchmarks.reading import first_chunk, memory
from tests.benchmarks.references import references
from tests.benchmarks.requests import cold_read
from tests.benchmarks.spark_reading import spark_reading
from tests.benchmarks.spark_rows import spark_rows
from tests.benchmarks.spark_writes import spark_writes
from tests.benchmarks.sql import sql
from tests.benchmarks.sql_spark import sql_spark

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, Callable[[Bench], None]] = {
    "commit": commit,
    "opening": opening,
    "large": large_chunks,
    "small": small_chunks,
    "checksums": checksums,
    "cold": cold_read,
    "references": references,
    "first": first_chunk,
    "append": append,
    "overwrite": overwrite,
    "appends": appends,
    "memory": memory,
    "plate": plate,
    "crowd": crowd,
    "growth": growth,
    "sql": sql,
    "sql_spark": sql_spark,
    "spark_writes": spark_writes,
    "spark_reading": spark_reading,
    "spark_rows": spark_rows,
    "import": imports,
    "command_line": command_line,
    "first_commit": first_commit,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CASES), help="may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few rounds: a smoke test"
    )
    parser.add_argument(
        "--scale",
        type=int,
        choices=(1, 10, 100),
        default=10,
        help="at most so many million references (--quick: a tenth of that)",
    )
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("ICECHUNK_PEER_PYTHON"),
        help="an interpreter that has icechunk; without it this one (also: ICECHUNK_PEER_PYTHON)",
    )
    parser.add_argument("--folder", type=Path, help="where to write; without it a temporary folder")
    return parser.parse_args()


def main() -> None:
    """Run the chosen cases and print what they found."""
    chosen = _arguments()
    print(
        f"Python {platform.python_version()}, zarr {zarr.__version__}, pyarrow {pa.__version__}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    try:
        peer = start_icechunk(chosen.peer_python)
        print(f"peer: {peer.versions}")
    except PeerError as error:
        peer = None
        print(f"SKIPPED, everything beside icechunk: {error}. Give --peer-python.")
    folder = Path(tempfile.mkdtemp(prefix="icechunk-arrow-bench-", dir=chosen.folder))
    case_folder, built_folder = folder / "case", folder / "built"
    built_folder.mkdir()
    try:
        for name in chosen.only or CASES:
            print(f"\n== {name}: {(CASES[name].__doc__ or '').strip().splitlines()[0]}")
            print(f"   ({os.getloadavg()[0]:.1f} processes were running or waiting on average)")
            began = time.perf_counter()
            CASES[name](
                Bench(
                    folder=case_folder,
                    built_folder=built_folder,
                    quick=chosen.quick,
                    scale=chosen.scale,
                    icechunk=peer,
                    peer_python=chosen.peer_python,
                )
            )
            print(f"\n  ({name} took {time.perf_counter() - began:.0f} s)", flush=True)
            shutil.rmtree(case_folder, ignore_errors=True)
    finally:
        shutil.rmtree(folder)
        if peer is not None:
            peer.close()


if __name__ == "__main__":
    main()
