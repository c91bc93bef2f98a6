"""What the commands say, in every form, and how they fail."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icechunk_arrow import Repository
from icechunk_arrow.cli.output import plain
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.scratch import SCRATCH
from tests.cli.conftest import STRANGE

if TYPE_CHECKING:
    from tests.cli.conftest import Shell


def repository(shell: Shell) -> Repository:
    """Open the repository as Python does."""
    return Repository.open(shell.folder / "weather")


def test_reading_commands_say_what_the_library_says(shell: Shell) -> None:
    """Log, branches, tags, ls and config give what Python gives; names keep every character in JSON."""
    repo = repository(shell)
    history = list(repo.ancestry(branch="main"))
    log = json.loads(shell.out("icechunk-arrow log weather --format json"))
    assert [(row["snapshot"], row["parent"], row["message"]) for row in log] == [
        (info.id, info.parent_id, info.message) for info in history
    ]
    assert datetime.fromisoformat(log[0]["written_at"]) == history[0].written_at
    assert history[0].message == STRANGE

    [branch] = json.loads(shell.out("icechunk-arrow branches weather --format json"))
    assert (branch["name"], branch["snapshot"]) == ("main", history[0].id)
    assert json.loads(shell.out("icechunk-arrow tags weather --format json")) == [
        {"name": "v1", "snapshot": history[1].id}
    ]
    nodes = json.loads(shell.out("icechunk-arrow ls weather --format json"))
    assert [node["path"] for node in nodes] == ["/more", "/t2m"]
    assert nodes[1]["shape"] == [4, 20]
    nodes = json.loads(shell.out("icechunk-arrow ls weather /more/ --format json"))
    assert [node["path"] for node in nodes] == [f"/more/{STRANGE}"]
    nodes = json.loads(shell.out("icechunk-arrow ls weather t2m --format json"))
    assert [node["path"] for node in nodes] == ["/t2m"]
    config = json.loads(shell.out("icechunk-arrow config weather --format json"))
    assert {row["key"]: row["value"] for row in config}["chunk-file-size-bytes"] == str(64 << 20)


@pytest.mark.parametrize("way", ["--tag v1", "--snapshot ID", "--as-of TIME", "--branch old"])
def test_reading_commands_travel_in_time(shell: Shell, way: str) -> None:
    """Every reading command takes a tag, a snapshot, a time or a branch, and shows what was then."""
    repo = repository(shell)
    [_, then, first] = repo.ancestry(branch="main")
    repo.create_branch("old", then.id)
    option = way.replace("ID", then.id).replace("TIME", then.written_at.isoformat())
    rest = f"{option} --format json"

    assert json.loads(shell.out(f"icechunk-arrow log weather {rest}"))[0]["snapshot"] == then.id
    nodes = json.loads(shell.out(f"icechunk-arrow ls weather -r {rest}"))
    assert [node["path"] for node in nodes] == ["/more", "/t2m"]
    assert "more" in (tree := shell.out(f"icechunk-arrow tree weather {option}"))
    assert "q" not in tree
    [found] = json.loads(shell.out(f"icechunk-arrow sql weather 'SELECT * FROM arrays' {rest}"))
    assert found["snapshot"] == then.id
    rows = json.loads(shell.out(f"icechunk-arrow diff weather {rest}"))
    assert {(row["path"], row["change"], row["count"]) for row in rows} == {
        ("/", "created", 1), ("/more", "created", 1), ("/t2m", "created", 1), ("/t2m", "chunk_added", 8),
    }  # fmt: skip
    assert then.id in shell.out(f"icechunk-arrow sql-script weather {option}")
    assert first.id not in json.dumps(nodes)


def test_diff_counts_or_lists_chunks(shell: Shell) -> None:
    """Diff counts changes by node, since the parent or what is named; with --chunks each is a row."""
    rows = json.loads(shell.out("icechunk-arrow diff weather v1 --format json"))
    assert {(row["path"], row["change"], row["count"]) for row in rows} == {
        (f"/more/{STRANGE}", "created", 1), ("/t2m", "chunk_replaced", 2),
    }  # fmt: skip
    rows = json.loads(shell.out("icechunk-arrow diff weather v1 --chunks --format json"))
    assert [row["index"] for row in rows if row["path"] == "/t2m"] == [[0, 0], [0, 1]]
    assert shell.out("icechunk-arrow diff weather main").strip().count("\n") == 1


def test_inspections_say_what_the_library_says(shell: Shell) -> None:
    """Inspect and sql give the rows of an inspection in every form, at any snapshot; alone, inspect lists all."""
    repo = repository(shell)
    text = shell.out("icechunk-arrow inspect --format json")
    assert json.loads(text) == repo.inspections().to_pylist()
    assert shell.out("icechunk-arrow inspect weather --format json") == text
    assert "smaller_than_bytes" in shell.out("icechunk-arrow inspect")

    for option, tag in {"": None, "--tag v1": "v1"}.items():
        expected = plain(repo.inspect("largest_chunks", count=3, tag=tag).to_pylist())
        assert len(expected) == 3
        for command in ("sql", "inspect"):
            line = f"icechunk-arrow {command} weather largest_chunks -p count=3 {option}"
            assert json.loads(shell.out(f"{line} --format json")) == expected
            assert shell.out(line).count("\n") == 5
    line = "icechunk-arrow inspect weather growth"
    shell.out(f"{line} --format parquet -o growth.parquet")
    assert pq.read_table(shell.folder / "growth.parquet").equals(repo.inspect("growth"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_inspections_take_a_table_of_files(shell: Shell, suffix: str) -> None:
    """A listing that another command wrote is taken as observed files; digits in an etag stay a text."""
    location = "file:///archive/a.nc"
    session = repository(shell).writable_session("main")
    columns = {"index": [[3, 1]], "location": [location], "offset": [0], "length": [40]}
    session.set_references("/t2m", pa.table({**columns, "etag": ["0042"]}))
    session.commit("A virtual chunk")
    query = f"SELECT '{location}' AS location, 100 AS size_bytes, '{{}}' AS etag"
    for etag, found in {"0042": [], "0043": ["etag"]}.items():
        name = f"listing{etag}.{suffix}"
        shell.out(
            f'icechunk-arrow sql weather "{query.format(etag)}" --format {suffix} --output {name}'
        )
        line = (
            f"icechunk-arrow inspect weather changed_sources -p observed_files={name} --format json"
        )
        assert [row["problem"] for row in json.loads(shell.out(line))] == found


def test_forms_hold_the_same_rows(shell: Shell) -> None:
    """CSV, Parquet and Arrow hold the rows that JSON holds, on standard output and in a file."""
    ask = "icechunk-arrow sql weather 'SELECT path, index, coord, length FROM chunks ORDER BY ALL'"
    rows = json.loads(shell.out(f"{ask} --format json"))
    assert len(rows) == 8
    assert rows[3] == {**rows[3], "path": "/t2m", "index": [1, 1], "coord": "0101"}

    text = shell.out(f"{ask} --format csv")
    found = list(csv.DictReader(io.StringIO(text)))
    assert [json.loads(row["index"]) for row in found] == [row["index"] for row in rows]
    with pa.ipc.open_stream(shell.invoke(f"{ask} --format arrow").stdout_bytes) as reader:
        table = reader.read_all()
    shell.out(f"{ask} --format parquet -o rows.parquet")
    assert table["index"].to_pylist() == [row["index"] for row in rows]
    assert [coord.hex() for coord in table["coord"].to_pylist()] == [row["coord"] for row in rows]
    assert pq.read_table(shell.folder / "rows.parquet").equals(table)


def test_values_that_json_lacks(shell: Shell) -> None:
    """Large and decimal numbers, bytes, times, maps and what is no number have a written form."""
    query = (
        "SELECT sum(x) AS s, 'nan'::FLOAT AS f, 1.5::DECIMAL(4, 2) AS d, DATE '2026-01-02' AS t, "
        "unhex('aa') AS b, {'k': [unhex('01')]} AS n FROM range(3) r(x)"
    )
    [row] = json.loads(shell.out("icechunk-arrow sql weather - --format json", query))

    assert row == {"s": 3, "f": None, "d": 1.5, "t": "2026-01-02", "b": "aa", "n": {"k": ["01"]}}


def test_tables_steer_no_terminal(shell: Shell) -> None:
    """What stands in a repository is shown with its control characters as numbers, one row on one line."""
    for command in ("log weather", "ls weather -r", "tree weather", "diff weather"):
        text = shell.out(f"icechunk-arrow {command}")
        assert "\x1b" not in text
        assert "[bold]\\x1b[31m\\nß🎈" in text


def test_show_says_what_every_kind_of_file_is(shell: Shell) -> None:
    """Show identifies each file, checks it, and gives facts, schema and the rows that were asked for."""
    repo = repository(shell)
    repo.save_config()
    repo.export_state()
    kept = (each for each in (shell.folder / "weather").rglob("*") if each.is_file())
    files = [each for each in kept if each.parent.name != SCRATCH]
    roles = set()
    for file in files:
        shown = json.loads(shell.out(f"icechunk-arrow show '{file}' --rows 1 --format json"))
        roles.add(shown["identification"]["role"])
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            assert shown["identification"]["row_count"] == table.num_rows
            assert [each["column"] for each in shown["schema"]] == table.column_names
            assert len(shown["rows"]) == min(1, table.num_rows)
            assert shown["facts"]["icechunk.spec-version"] == "1"
    assert {"structure", "manifest", "transaction", "branch", "tag", "config", "state"} <= roles

    snapshot = repo.lookup_branch("main")
    file = shell.folder / "weather" / key_of(FileKind.STRUCTURE, snapshot)
    text = shell.out(f"icechunk-arrow show {file}")
    assert all(word in text for word in ("structure file", snapshot, "array_metadata", "float32"))
    rows = csv.DictReader(io.StringIO(shell.out(f"icechunk-arrow show {file} --format csv")))
    assert "/t2m" in {row["path"] for row in rows}

    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    done = shell.run(f"icechunk-arrow show {file}")
    assert done.returncode == 1
    assert "do not match their checksum" in done.stderr


def test_settings_are_checked_before_they_are_saved(shell: Shell) -> None:
    """A wrong setting is refused with its key and changes nothing; right ones are there for everybody."""
    for wrong, said in {
        "chunk-file-size-bytes=many": "chunk-file-size-bytes must be of type int",
        "check-sum-chunks=1": "did you mean 'checksum-chunks'?",
        "storage.nothing.x=1": "unknown configuration key 'storage.nothing.x'",
        "storage=1": "unknown configuration key 'storage'",
        "chunk-file-size-bytes=[": "not plain YAML",
    }.items():
        done = shell.run(
            f"icechunk-arrow config weather --set checksum-chunks=true --set '{wrong}'"
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
    config = repository(shell).config
    assert (config.chunk_file_size_bytes, config.checksum_chunks) == (64 << 20, True)

    line = "icechunk-arrow config weather --set chunk-file-size-bytes=7000000 --set checksum-chunks=true"
    assert shell.run(line).returncode == 0
    config = repository(shell).config
    assert (config.chunk_file_size_bytes, config.checksum_chunks) == (7_000_000, True)
    assert shell.run("icechunk-arrow init other --catalog state").returncode == 0
    assert (shell.folder / "other/state.json").exists()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("log nowhere", 1, "there is no repository at"),
        ("init weather", 1, "there is a repository at"),
        ("log weather --tag v9", 1, "v9"),
        ("log weather --branch main --tag v1", 1, "exactly one"),
        ("ls weather /nothing", 1, "/nothing"),
        ("sql weather 'FROM nothing'", 1, "Table with name nothing does not exist"),
        ("sql weather 'SELECT 1 a, 2 a' --format json", 1, "several columns are named 'a'"),
        ("sql weather \"SELECT ('a' || x)::INT FROM range(9) t(x)\"", 1, "Could not convert"),
        ("sql weather 'SELECT INTERVAL 1 DAY' --format parquet", 1, "cannot hold these rows"),
        ("sql weather 'SELECT 1' --output none/x", 1, "none/x cannot be written"),
        ("show weather/x", 1, "not named like a file of a repository"),
        ("schema nothing", 1, "no table or kind of file 'nothing'"),
        ("log weather --storage-option colour=red", 1, "unknown storage_options ['colour']"),
        ("log weather --storage-option colour", 2, "is not KEY=VALUE"),
        ("log weather --storage-option a=1 --storage-option a=2", 2, "'a' is given twice"),
        ("sql weather growht", 1, "'growht' is neither SQL nor the name of an inspection"),
        ("sql weather chunks", 1, "write 'FROM chunks'"),
        ("sql weather 'FROM chunks' --param a=1", 2, "only an inspection has parameters"),
        ("inspect weather nothing", 1, "there is no inspection 'nothing'"),
        ("inspect nowhere", 1, "there is no repository at"),
        ("inspect weather largest_chunks -p count=x", 1, "is an integer, not 'x'"),
        ("inspect weather coverage_by_file", 1, "needs the parameter 'path'"),
        ("inspect weather gaps -p colour=red", 1, "has no parameter 'colour'"),
        ("inspect weather gaps -p path", 2, "is not KEY=VALUE"),
        ("inspect weather gaps -p path=/x", 1, "'/x' is no node of snapshot"),
        ("inspect -p path=/t2m", 2, "name an inspection"),
        ("inspect weather changed_sources -p observed_files=x.csv", 1, "x.csv cannot be read"),
        ("inspect weather changed_sources -p observed_files=x", 1, "'x' is none of .parquet"),
        ("log weather --as-of yesterday", 2, "is no time"),
        ("log weather --format xml", 2, "xml"),
        ("nothing", 2, "nothing"),
    ],
)  # fmt: skip
def test_failures_are_a_message_and_a_code(shell: Shell, line: str, code: int, said: str) -> None:
    """Errors give the documented code and a message on standard error, no data and no traceback."""
    done = shell.run(f"icechunk-arrow {line}")

    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_query_leaves_the_file_as_it_was(shell: Shell) -> None:
    """An output file is replaced by a whole answer or not at all, also when rows fail late."""
    (shell.folder / "rows").write_text("before")
    query = "SELECT CASE i WHEN 999999 THEN 'x' ELSE '1' END::INT FROM range(1000000) t(i)"
    done = shell.run(f'icechunk-arrow sql weather "{query}" --format arrow --output rows')

    assert done.returncode == 1
    assert "the query failed: " in done.stderr
    assert "Could not convert string 'x'" in done.stderr
    assert (shell.folder / "rows").read_text() == "before"
    assert not list(shell.folder.glob(".rows*"))


def test_a_manifest_that_has_gone_is_one_message(shell: Shell) -> None:
    """A lost file is named, with the snapshot, without the traceback that DuckDB passes on."""
    for file in (shell.folder / "weather/i").iterdir():
        file.unlink()
    done = shell.run("icechunk-arrow sql weather 'FROM chunks'")

    assert done.returncode == 1
    assert repository(shell).lookup_branch("main") in done.stderr
    assert "is gone from" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_has_a_limit_that_it_says(shell: Shell) -> None:
    """A table for people ends after a thousand rows and says so; other forms give all rows."""
    done = shell.run("icechunk-arrow sql weather 'FROM range(1001)'")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1002)
    assert "first 1,000 rows" in done.stderr
    assert (
        shell.out("icechunk-arrow sql weather 'FROM range(1001)' --format csv").count("\n") == 1002
    )
    assert shell.out("icechunk-arrow sql weather 'FROM range(1000)'").count("\n") == 1002


def test_a_closed_pipe_is_quiet(shell: Shell) -> None:
    """Who stops reading ends the command, without a word."""
    for form in ("csv", "arrow"):
        line = f"icechunk-arrow sql weather 'FROM range(1000000000000)' --format {form}"
        done = shell.bash(f"set -o pipefail; {line} | head -c 100 >/dev/null")
        assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_ends_a_query(shell: Shell) -> None:
    """Ctrl-C ends a long query with the code for it, and no traceback."""
    query = "SELECT count(*) FROM range(10000000000) a(i), range(1000) b(j) WHERE hash(i + j) = 3"
    begun = shell.folder / "begun"
    # whoever runs the tests in the background ignores interrupts, and so would the command
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{heeding}; from icechunk_arrow.cli.entry import main; main()",
            "sql",
            "weather",
            f"COPY (SELECT 1) TO 'begun'; {query}",
        ],
        cwd=shell.folder,
        env=shell.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            while not begun.exists() and running.poll() is None:
                time.sleep(0.05)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()

    assert (running.returncode, out, err) == (130, "", "")


FULL = ["log weather", "log weather --format csv", "tree weather", "schema", "--help", "--version"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_output_that_is_full_is_told_in_one_line(shell: Shell) -> None:
    """Where standard output takes no more the command fails and says so, whatever it prints."""
    lines = "; ".join(f"icechunk-arrow {line} > /dev/full; echo $?" for line in FULL)
    done = shell.bash(lines)

    assert done.stdout.split() == ["1"] * len(FULL)
    said = "icechunk-arrow: standard output cannot be written: No space left on device"
    assert done.stderr.splitlines() == [said] * len(FULL)
