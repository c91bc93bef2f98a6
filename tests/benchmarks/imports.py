"""What ``import icechunk_arrow`` takes, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks.harness import alternate, print_figures

if TYPE_CHECKING:
    from tests.benchmarks.harness import Bench

__all__ = ["imports"]

_PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def _fresh(statement: str, environment: dict[str, str]) -> float:
    program = [sys.executable, "-c", _PROGRAM.format(statement)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def imports(bench: Bench) -> None:
    """``import icechunk_arrow`` against ``import zarr, pyarrow, pyarrow.parquet``, which it needs anyway.

    All as compiled bytecode, which installers make and a checkout may not have.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bench.new_folder("bytecode"))
    floor = "zarr, pyarrow, its Parquet"
    found = alternate(
        {
            "ours": partial(_fresh, "import icechunk_arrow", environment),
            floor: partial(_fresh, "import zarr, pyarrow, pyarrow.parquet", environment),
        },
        bench.choose(15, 5),
    )
    print_figures("import", found, aims={floor: 1.2})
