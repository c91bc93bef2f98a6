"""Virtual references by the million, set and committed: time, memory, and the bytes that they take."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks import references_data, references_input
from tests.benchmarks.harness import (
    alternate,
    folder_bytes,
    mebibytes,
    print_figures,
    print_line,
    timed,
    verdict,
)
from tests.benchmarks.peers import start_icechunk, start_worker
from tests.benchmarks.subjects import SPLIT, Icechunk, Ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.benchmarks.harness import Bench

__all__ = ["files", "hundred_million", "indices", "million", "references", "ten_million"]

_FLOOR = "floor: one Parquet file"
_AIMS = {"icechunk": 0.15, _FLOOR: 2.0}
_MOST_BYTES = 3.5
_MiB = 1 << 20
_MOST_EXTRA = 10_000_000
"""Up to so many references what is extra is bounded; beyond, the memory of the whole process."""


def references(bench: Bench) -> None:
    """Virtual references set and committed: a million, ten million, a hundred million; as far as --scale.

    Ours is durable; icechunk and the floor do not sync. icechunk takes numpy arrays and a list of locations
    (``set_virtual_refs_arr``, which is faster than ``set_virtual_refs``), with one manifest and split at
    100,000 references. The floor is pyarrow that sorts the same references and writes one Parquet file.
    """
    sizes = bench.sizes
    million(bench, sizes[0])
    indices(bench, sizes[0])
    files(bench, sizes[0])
    if len(sizes) > 1:
        ten_million(bench, sizes[1])
    if len(sizes) > 2:
        hundred_million(bench, sizes[1], sizes[2])


def _print_bytes(name: str, size_bytes: int, count: int, *, aimed: bool = False) -> None:
    each = size_bytes / count
    aim = f", {verdict(each, _MOST_BYTES)}" if aimed else ""
    print_line(f"{name}: {each:.2f} bytes a reference, everything counted{aim}")


def _print_memory(name: str, answer: Mapping[str, Any], aim: int = 0) -> None:
    beyond_input, beyond_imports = answer["beyond_input"], answer["beyond_imports"]
    text = f"{name}: at most {mebibytes(beyond_input)} beyond its input"
    if aim:
        text += f", {verdict(beyond_input / _MiB, aim)}"
    print_line(f"{text}; {mebibytes(beyond_imports)} beyond the imports")


def million(bench: Bench, count: int) -> None:
    """A million references as one table: time in this process, memory in fresh ones, bytes.

    Preparing the input does not count, opening of the peer's repository neither. Bytes are the whole folder of
    the repository. Memory is told beyond the input, which is ready before, and beyond the imports;
    icechunk's input is made piece by piece and always counts.
    """
    folder = bench.new_folder("million")
    rows = count // references_data.COLUMNS
    found = _bulk(bench, folder, rows, dimensions=2, rounds=bench.choose(5, 3))
    print_figures(f"{count:,} virtual references, set and committed", found, aims=_AIMS)
    for name in found:
        _print_bytes(name, _size(folder / name), count, aimed=name == "ours")
    _print_memory("ours", _in_worker("set_references", folder / "fresh", rows, given="table"), 200)
    _print_memory(_FLOOR, _in_worker("write_floor", folder / "fresh.parquet", rows))
    if bench.icechunk is not None:
        for name, split in (("icechunk", 0), (SPLIT, references_data.split_rows())):
            answer = _fresh_icechunk(bench, folder / f"fresh {name}", rows, split)
            print_line(f"{name}: at most {mebibytes(answer['beyond_imports'])} beyond the imports")
    shutil.rmtree(folder)


def indices(bench: Bench, count: int) -> None:
    """The same million as a grid of one and of three dimensions, instead of two: time and bytes."""
    rows = count // references_data.COLUMNS
    for dimensions in (1, 3):
        folder = bench.new_folder(f"dimensions-{dimensions}")
        found = _bulk(bench, folder, rows, dimensions=dimensions, rounds=3)
        shape = " x ".join(f"{n:,}" for n in references_data.grid(rows, dimensions))
        print_figures(f"the same as a grid of {shape}", found, aims=_AIMS)
        for name in found:
            _print_bytes(name, _size(folder / name), count, aimed=name == "ours")
        shutil.rmtree(folder)


def files(bench: Bench, count: int) -> None:
    """The same million in fewer, longer files: bytes alone.

    A length is 12 random bits here, and so is the way from one offset to the next: 3.0 bytes that every
    subject pays. What comes on top depends on how often a file begins, for us as for the floor.
    """
    print(f"\nbytes of {count:,} references, by chunks in a file")
    for rows_per_file in (1, 4, 20):
        folder = bench.new_folder(f"files-{rows_per_file}")
        rows = count // references_data.COLUMNS
        box = {
            "rows": rows,
            "first_row": 0,
            "columns": references_data.COLUMNS,
            "rows_per_file": rows_per_file,
        }
        table = references_input.table(**box)
        Ours.create(folder / "ours", rows).set_references(table)
        references_input.write_floor(folder / _FLOOR, table)
        names = ["ours", _FLOOR]
        if bench.icechunk is not None:
            Icechunk.create(bench, folder / "icechunk", rows).set(**box)
            names.append("icechunk")
        for name in names:
            text = f"{rows_per_file * references_data.COLUMNS:,} in a file, {name}"
            _print_bytes(text, _size(folder / name), count, aimed=name == "ours")
        shutil.rmtree(folder)


def _size(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() else path.stat().st_size


def _bulk(
    bench: Bench, folder: Path, rows: int, *, dimensions: int, rounds: int
) -> dict[str, list[float]]:
    """Set a table of references in repository after repository; the last of each subject stays."""
    table = references_input.table(rows=rows, dimensions=dimensions)
    whole = {"rows": rows, "first_row": 0, "columns": references_data.COLUMNS}

    def ours() -> float:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        return Ours.create(folder / "ours", rows, dimensions=dimensions).set_references(table)

    def icechunk(name: str, split: int) -> float:
        path = folder / name
        shutil.rmtree(path, ignore_errors=True)
        made = Icechunk.create(bench, path, rows, dimensions=dimensions, split=split)
        return made.set(dimensions=dimensions, **whole)

    subjects: dict[str, Callable[[], float]] = {"ours": ours}
    if bench.icechunk is not None:
        subjects["icechunk"] = partial(icechunk, "icechunk", 0)
        subjects[SPLIT] = partial(icechunk, SPLIT, references_data.split_rows(dimensions))
    subjects[_FLOOR] = lambda: timed(partial(references_input.write_floor, folder / _FLOOR, table))
    return alternate(subjects, rounds)


def _in_worker(call: str, path: Path, rows: int, **arguments: Any) -> dict[str, Any]:
    """Have something done in a fresh process."""
    with start_worker() as worker:
        answer: dict[str, Any] = worker(call, path=str(path), rows=rows, **arguments)
    return answer


def _fresh_icechunk(bench: Bench, path: Path, rows: int, split: int) -> dict[str, Any]:
    Icechunk.create(bench, path, rows, split=split)
    with start_icechunk(bench.peer_python) as peer:
        answer: dict[str, Any] = peer("fill", path=str(path), rows=rows, split=split)
    return answer


def ten_million(bench: Bench, count: int) -> None:
    """Ten million through a record batch reader, every subject and round in a fresh process.

    For time the batches are ready in memory, as the floor's table is. For our memory they are made when asked
    for, and what making them alone takes is printed beside it.
    """
    folder = bench.new_folder("ten-million")
    rows = count // references_data.COLUMNS
    answers: dict[str, dict[str, Any]] = {}

    def ours() -> float:
        return run("ours", partial(_in_worker, "set_references", given="batches"))

    def floor() -> float:
        return run(_FLOOR, partial(_in_worker, "write_floor"))

    def icechunk(name: str, split: int) -> float:
        return run(name, partial(_fresh_icechunk, bench, split=split))

    def run(name: str, call: Callable[..., dict[str, Any]]) -> float:
        shutil.rmtree(folder / name, ignore_errors=True)
        answers[name] = call(path=folder / name, rows=rows)
        return float(answers[name]["seconds"])

    subjects: dict[str, Callable[[], float]] = {"ours": ours}
    if bench.icechunk is not None:
        subjects["icechunk"] = partial(icechunk, "icechunk", 0)
        subjects[SPLIT] = partial(icechunk, SPLIT, references_data.split_rows())
    subjects[_FLOOR] = floor
    found = alternate(subjects, bench.choose(3, 2), warm_up=0)
    print_figures(f"{count:,} virtual references, set and committed", found, aims=_AIMS)
    for name in found:
        _print_bytes(name, _size(folder / name), count, aimed=name == "ours")
    _streamed(folder / "streamed", count)
    for name, answer in answers.items():
        if name != "ours":
            _print_memory(name, answer)
    shutil.rmtree(folder)


def _streamed(path: Path, count: int) -> float:
    """Set references through a reader that makes them when asked; the time without the making."""
    rows = count // references_data.COLUMNS
    with start_worker() as worker:
        alone = worker("make_references", rows=rows)
    answer = _in_worker("set_references", path, rows, given="reader")
    seconds: float = answer["seconds"] - answer["making"]
    print_line(
        f"ours, {count:,} made when asked for: {answer['seconds']:.2f} s, of which making them "
        f"{answer['making']:.2f} s ({alone['seconds']:.2f} s alone): {seconds:.2f} s"
    )
    _print_memory("ours", answer, 1024 if count <= _MOST_EXTRA else 0)
    whole = f"the whole process at most {mebibytes(answer['peak'])}"
    if count > _MOST_EXTRA:
        whole += f", {verdict(answer['peak'] / _MiB, 2048)}"
    print_line(
        f"  making them alone: {mebibytes(alone['beyond_imports'])} beyond the imports; {whole}"
    )
    return seconds


def hundred_million(bench: Bench, small: int, large: int) -> None:
    """A hundred million through a record batch reader: linear in time? Peak memory of the process.

    Ten and a hundred million in turn, in fresh processes, batches made when asked for and that time left out.
    """
    folder = bench.new_folder("hundred-million")
    per_size: dict[int, list[float]] = {small: [], large: []}
    print(f"\n{large:,} virtual references through a reader")
    for number in range(2):
        for count, seconds in per_size.items():
            path = folder / f"{count}-{number}"
            seconds.append(_streamed(path, count))
            _print_bytes("ours", folder_bytes(path), count, aimed=True)
            shutil.rmtree(path)
    times = large // small
    ratio = min(per_size[large]) / min(per_size[small]) / times
    print_line(
        f"{times} times as many take {ratio * times:.1f} times as long; per reference {ratio:.2f} x, "
        f"{verdict(ratio, 1.2)}"
    )
    shutil.rmtree(folder)
