"""A publisher in a process of its own, to be killed: ``python -m tests.delta.publisher repository table [die]``."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from icechunk_arrow.delta import publish, publishing
from tests.delta.sessions import delta_settings
from tests.spark_session import spark_session


def die(*_: object) -> NoReturn:
    """End as a killed process does, Java with it."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise AssertionError


def main(repository: str, table: str, *words: str) -> None:
    """Say when Spark is there, and publish; with ``die`` end between the table's commit and what follows."""
    if "die" in words:
        publishing._find = die  # type: ignore[assignment]  # what comes next after the commit
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(Path(folder), **delta_settings()) as spark,
    ):
        print("ready", flush=True)
        publish(spark, {"r": repository}, table)


if __name__ == "__main__":
    main(*sys.argv[1:])
