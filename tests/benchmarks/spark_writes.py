"""References in Parquet files, written by Spark and by one process: time, and what the driver holds."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks import references_data, references_input
from tests.benchmarks.harness import alternate, mebibytes, print_figures, print_line, verdict
from tests.benchmarks.peers import Peer
from tests.benchmarks.subjects import Ours

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["spark_writes"]

_WORKER = "tests.benchmarks.spark_worker"
_ONE = "one process"
_AIM = 3.0
_DRIVER_MiB = 200
_LINEAR = 12.0
"""Ten times as much may take so many times as long."""
_FILES = 16
_MiB = 1 << 20


def spark_writes(bench: Bench) -> None:
    """References as a Spark frame over Parquet files, against set_references over the same files.

    Spark runs on ``local[2]`` and is warm: it wrote a hundred thousand before, both ways. Both end with a commit.
    Memory is that of the driver's Python process beyond what it has once Spark runs; the JVM, driver and executor
    at once here, and its Python workers are told beside it.
    """
    times: dict[int, float] = {}
    for count in bench.sizes[1:] or bench.sizes:
        times[count] = _written(bench, count, bench.choose(3, 1) if count <= 10_000_000 else 1)
    counts = list(times)
    for less, more in pairwise(counts):
        ratio = times[more] / times[less]
        print_line(f"{more:,} took {ratio:.1f} x the time of {less:,}, {verdict(ratio, _LINEAR)}")


def make_source(folder: Path, count: int) -> None:
    """Write the references into Parquet files as Spark has them: plain columns, signed numbers, in order."""
    folder.mkdir(parents=True)
    rows = count // references_data.COLUMNS
    each = max(-(-rows // _FILES), 1)
    schema = _signed(references_input.table(rows=1, columns=1)).schema
    for number, first in enumerate(range(0, rows, each)):
        with pq.ParquetWriter(folder / f"{number:03}.parquet", schema) as writer:
            for start in range(first, min(first + each, rows), 125):
                size = min(125, first + each - start, rows - start)
                writer.write_table(_signed(references_input.table(rows=size, first_row=start)))


def _signed(table: pa.Table) -> pa.Table:
    fields = [
        pa.field(field.name, pa.int64() if pa.types.is_integer(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _written(bench: Bench, count: int, rounds: int) -> float:
    folder = bench.new_folder(f"spark-{count}")
    source = folder / "source"
    make_source(source, count)
    warm = folder / "warm"
    make_source(warm, 100_000)
    rows = count // references_data.COLUMNS
    answers: dict[str, dict[str, Any]] = {}

    def run(name: str, call: Callable[..., dict[str, Any]]) -> float:
        path = folder / name.replace(" ", "-")
        shutil.rmtree(path, ignore_errors=True)
        Ours.create(path, rows)
        found = call(path=str(path))
        before = answers.get(name, {})
        answers[name] = {key: max(value, before.get(key, 0)) for key, value in found.items()}
        return float(found["seconds"])

    def one_process(path: str) -> dict[str, Any]:
        with Peer(sys.executable, _WORKER) as worker:
            answer: dict[str, Any] = worker("write_alone", path=path, source=str(source))
        return answer

    with Peer(sys.executable, _WORKER) as spark:
        Ours.create(folder / "warm-up", 100_000 // references_data.COLUMNS)
        for by in ("function", "format"):
            spark("write_by_spark", path=str(folder / "warm-up"), source=str(warm), by=by)
        write = partial(spark, "write_by_spark", source=str(source))
        subjects = {
            "ours": partial(run, "write_references", partial(write, by="function")),
            "format(icechunk)": partial(run, "format", partial(write, by="format")),
            _ONE: partial(run, _ONE, one_process),
        }
        found = alternate(subjects, rounds, warm_up=0)
    print_figures(f"{count:,} references from Parquet, committed", found, aims={_ONE: _AIM})
    for name, answer in answers.items():
        if name == _ONE:
            print_line(f"{name}: at most {mebibytes(answer['peak'])} in all")
            continue
        print_line(
            f"{name}: the driver's Python grew by at most {mebibytes(answer['growth'])}, "
            f"{verdict(answer['growth'] / _MiB, _DRIVER_MiB)}; the commit's Python process and the tasks' held "
            f"at most {mebibytes(answer['workers'])} each; the JVM {mebibytes(answer['jvm'])}"
        )
    shutil.rmtree(folder)
    return float(sorted(found["ours"])[len(found["ours"]) // 2])
