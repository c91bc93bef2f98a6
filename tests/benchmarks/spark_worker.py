"""What runs in a process of its own for ``spark_writes``: a Spark driver, or a write without Spark."""

from __future__ import annotations

import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import icechunk_arrow
from tests.benchmarks.harness import Stopwatch
from tests.benchmarks.memory_use import Meter
from tests.benchmarks.peers import answer_calls

__all__: list[str] = []

_spark: Any = None


def versions() -> str:
    return f"Python {platform.python_version()}"


def write_alone(path: str, *, source: str) -> dict[str, Any]:
    """Set the references of Parquet files in this process, and commit them."""
    meter = Meter()
    with Stopwatch() as watch:
        session = icechunk_arrow.Repository.open(path).writable_session("main")
        session.set_references("/a", ds.dataset(source))
        session.commit("references")
    return {"seconds": watch.seconds, **meter.figures()}


def write_by_spark(path: str, *, source: str, by: str) -> dict[str, Any]:
    """Write a frame over Parquet files; Spark starts with the first call."""
    import icechunk_arrow.spark

    spark = _running()
    frame = spark.read.parquet(source)
    meter = Meter()
    watcher = _Watcher()
    with watcher, Stopwatch() as watch:
        if by == "function":
            icechunk_arrow.spark.write_references(frame, path, "/a")
        else:
            frame.write.format("icechunk").mode("append").option("array", "/a").save(path)
    figures = meter.figures()
    return {"seconds": watch.seconds, "growth": figures["beyond_imports"], **watcher.peaks}


def _running() -> Any:
    global _spark  # noqa: PLW0603 -- one Spark session a process
    if _spark is None:
        from pyspark.sql import SparkSession

        import icechunk_arrow.spark

        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        _spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "2g")
            .getOrCreate()
        )
        _spark.sparkContext.setLogLevel("OFF")
        icechunk_arrow.spark.register(_spark)
    return _spark


class _Watcher:
    """Looks now and then at the memory of the JVM and of its Python workers: what they hold at most."""

    def __init__(self) -> None:
        self.peaks = {"jvm": 0, "workers": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            for name, size_bytes in _below(os.getpid()):
                kind = "jvm" if name == "java" else "workers"
                self.peaks[kind] = max(self.peaks[kind], size_bytes)


def _below(root: int) -> list[tuple[str, int]]:
    """Give name and resident bytes of all processes below one."""
    parents, facts = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        parents[int(folder.name)] = int(values["PPid"])
        size_bytes = int(values.get("VmRSS", "0 kB").split()[0]) * 1024
        facts[int(folder.name)] = (values["Name"].strip(), size_bytes)
    found = []
    for pid, fact in facts.items():
        above = pid
        while above and above != root:
            above = parents.get(above, 0)
        if above == root and pid != root:
            found.append(fact)
    return found


if __name__ == "__main__":
    answer_calls(versions, write_alone, write_by_spark)
