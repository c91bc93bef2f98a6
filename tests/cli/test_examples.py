"""The examples of the help texts, collected from the help texts, and run."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq

from icechunk_arrow import Repository
from icechunk_arrow.cli import entry
from tests.cli.conftest import PROJECT

if TYPE_CHECKING:
    from tests.cli.conftest import Shell

COMMANDS = {
    "init", "log", "branches", "tags", "ls", "tree", "show", "diff", "sql", "inspect", "sql-script", "schema",
    "config",
}  # fmt: skip

OF_BASH = re.compile(r"\$\(| > ")


def examples(text: str) -> list[str]:
    """Give the lines below ``Example:``."""
    return re.findall(r"^ +(icechunk-arrow .*)$", text.partition("Example:")[2], re.MULTILINE)


def test_every_example_runs(shell: Shell) -> None:
    """Every command's help shows an example of it, and all of them go well and give something."""
    (shell.folder / "listing.csv").write_text("location,size_bytes\ns3://a/b,100\n")
    top = shell.out("icechunk-arrow --help")
    listed = set(re.findall(r"^  ([a-z-]+)  ", top.partition("Commands:")[2], re.MULTILINE))
    assert listed == COMMANDS
    assert examples(top)

    for line in examples(top):
        assert shell.out(line)
    for command in sorted(COMMANDS):
        shown = examples(shell.out(f"icechunk-arrow {command} --help"))
        assert shown, command
        for line in shown:
            assert line.split()[1] == command
            done = (shell.bash if OF_BASH.search(line) else shell.run)(line)
            assert done.returncode == 0, (line, done.stderr)
            silent = command == "init" or ">" in line or "--output" in line
            assert bool(done.stdout) is not silent, line
            assert bool(done.stderr) is (command in {"init", "config"}), (line, done.stderr)

    assert Repository.open(shell.folder / "new-weather").config.chunk_file_size_bytes == 100_000_000
    assert pq.read_table(shell.folder / "chunks.parquet").num_rows == 8
    with duckdb.connect() as con:
        con.execute((shell.folder / "weather.sql").read_text())
        rows = con.sql("SELECT path, chunk_count FROM icechunk.arrays ORDER BY path").fetchall()
    assert rows[-1] == ("/t2m", 8)


def test_the_program_is_installed_by_its_name() -> None:
    """The package's metadata makes a program of the function that the commands begin with."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]

    assert {name: EntryPoint(name, each, "").load() for name, each in scripts.items()} == {
        "icechunk-arrow": entry.main
    }
