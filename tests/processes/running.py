"""Storms of processes in a process of their own: which may hang, and be ended, without anybody else.

Owns how one is begun and waited for, and the places that it is about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["run"]

SECONDS = 300


def run(
    folder: Path,
    seed: int,
    count: int,
    *,
    catalog: str = "branches",
    url: str = "",
    options: Mapping[str, Any] | None = None,
    planted: str = "",
    busy: int = 2,
    patience: int = 60,
) -> dict[str, int]:
    """Run a storm, on a disk where no other place is given; say the seed in whatever goes wrong.

    ``patience`` is after how many seconds a process is said to hang.
    """
    seconds = SECONDS + 15 * count
    words = {
        "url": url or str(folder / "repository"),
        "folder": str(folder / "ledger"),
        "catalog": catalog,
        "options": json.dumps(dict(options or {})),
        "seed": seed,
        "count": count,
        "planted": planted,
        "busy": busy,
        "seconds": seconds,
    }
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}  # no pickle has them
    login = {name: options[key] for name, key in keys.items()} if options else {}
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.processes.storm"),
            *(f"--{name}={value}" for name, value in words.items()),
        ],
        env={
            **os.environ,
            **login,
            "ICECHUNK_ARROW_PATIENCE": str(patience),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    told = f"seed {seed}, count {count}, {words['url']}, catalog {catalog!r} {planted}"
    assert done.returncode == 0, f"{told}: ended with {done.returncode}\n{done.stderr}"
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures
