"""The Spark session of tests: each folder that needs one makes it once, and ends it with its last test."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.promises import required

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["JAVA_OPTIONS", "let_pandas_be", "spark_session"]

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Java's second compiler takes two fifths of a short test's processor time, and gives nothing back. Without it Java
keeps 48 MiB for compiled code, which a session of a thousand queries fills: then queries fail."""


def let_pandas_be(items: list[pytest.Item], folder: Path) -> None:
    """Let pass, in the tests of a folder, what Spark says of a library that it is not asked to use here."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:PySpark does not yet fully support pandas:FutureWarning"
                )
            )


@contextmanager
def spark_session(warehouse: Path, **settings: str) -> Iterator[Any]:
    """Give a classic session on ``local[2]``, in a zone that no number is right in by chance."""
    if importlib.util.find_spec("pyspark") is None:
        assert not required("spark"), "pyspark is not installed, and this run promises Spark"
        pytest.skip("pyspark is not installed")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Asia/Kathmandu")
        .config("spark.sql.warehouse.dir", str(warehouse))
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
