"""What ``import icechunk_arrow`` takes, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.benchmarks.harness import alternate, print_figures

if TYPE_CHECKING:
    from tests.benchmarks.harness import Bench

__all__ = ["imports"]

_PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def _fresh(statement: str) -> float:
    program = [sys.executable, "-c", _PROGRAM.format(statement)]
    return float(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def imports(bench: Bench) -> None:
    """``import icechunk_arrow`` against ``import zarr, pyarrow, pyarrow.parquet``, which it needs anyway."""
    floor = "zarr, pyarrow, its Parquet"
    found = alternate(
        {
            "ours": lambda: _fresh("import icechunk_arrow"),
            floor: lambda: _fresh("import zarr, pyarrow, pyarrow.parquet"),
        },
        bench.choose(15, 5),
    )
    print_figures("import", found, aims={floor: 1.2})
