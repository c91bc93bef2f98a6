"""What is different on a terminal: the prompt, colours, progress; and what is not loaded, or missing."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pty
import re
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.cli.app import app
from icechunk_arrow.cli.consoles import harmless_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cli.conftest import Shell


def on_terminal(shell: Shell, arguments: list[str], typed: Sequence[str] = ()) -> tuple[int, str]:
    """Run a command on a terminal of its own, and give its exit code and all it shows.

    Each text is typed at the next prompt.
    """
    mine, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "icechunk_arrow.cli", *arguments],
        cwd=shell.folder,
        env={**shell.environment(), "TERM": "xterm", "COLUMNS": "100"},
        stdin=its,
        stdout=its,
        stderr=its,
        close_fds=True,
    ) as running:
        os.close(its)
        shown, waiting = b"", list(typed)
        while select.select([mine], [], [], 30)[0]:
            try:
                more = os.read(mine, 65536)
            except OSError:  # Linux says so when the other side has closed
                break
            shown += more
            prompts = shown.count(b"icechunk> ") + shown.count(b"...> ")
            if waiting and prompts > len(typed) - len(waiting):
                os.write(mine, waiting.pop(0).encode())
        os.close(mine)
        try:
            return running.wait(timeout=5), shown.decode()
        finally:
            running.kill()


def test_the_prompt_answers_and_outlives_mistakes(shell: Shell) -> None:
    """Statements may take several lines, a mistake is one message, and .quit leaves."""
    typed = ["SELECT path AS places,\n", " chunk_count * 1000 FROM arrays;\n", "FROM nothing;\n"]
    typed += [
        ".tables\n",
        ".refresh\n",
        ".help\n",
        ".what\n",
        ".inspect\n",
        ".inspect gaps dimension=1\n",
    ]
    typed += [".inspect gaps path\n", ".inspect 'gaps\n", "SELECT 40 + 2;\n", ".quit\n"]
    code, shown = on_terminal(shell, ["sql", "weather"], typed)

    assert code == 0
    assert re.search(r"/t2m +8000", shown)
    assert "Table with name nothing does not exist" in shown
    assert "Traceback" not in shown
    assert re.search(r"^operations", shown, re.MULTILINE)
    assert "the tables show the snapshot" in shown
    assert ".what is no command" in shown
    assert "fragmentation per array" in shown
    assert "stop_index" in shown
    assert "'path' is not KEY=VALUE" in shown
    assert "a quote in .inspect 'gaps is not closed" in shown
    assert re.search(r"^ +42\b", shown, re.MULTILINE)
    assert "_attached" not in shown


def test_the_prompt_ends_with_its_input(shell: Shell) -> None:
    """Ctrl-D leaves the prompt, well."""
    code, shown = on_terminal(shell, ["sql", "weather", "--tag", "v1"], ["SELECT 6 * 7;\n", "\x04"])

    assert code == 0
    assert "42" in shown


def test_colour_and_progress_are_for_terminals(shell: Shell) -> None:
    """A terminal gets colours and progress; a pipe or file gets plain text."""
    code, shown = on_terminal(shell, ["tree", "weather"])
    assert code == 0
    assert "\x1b[" in shown
    assert "reading weather" in shown
    done = shell.run("icechunk-arrow tree weather")
    assert "\x1b" not in done.stdout + done.stderr
    assert "reading" not in done.stderr


def test_bytes_are_not_put_on_a_terminal(shell: Shell) -> None:
    """Parquet and Arrow are refused on a terminal, with the way out."""
    code, shown = on_terminal(shell, ["branches", "weather", "--format", "parquet"])

    assert code == 1
    assert "--output" in shown


def test_a_prompt_needs_a_terminal(shell: Shell) -> None:
    """Without a terminal and without a query standard input is the query."""
    assert (
        shell.out("icechunk-arrow sql weather --format csv", "SELECT 1 AS a;\nSELECT 2 AS b")
        == "b\n2\n"
    )
    code, shown = on_terminal(shell, ["sql", "weather", "-o", "x"])
    assert code == 2
    assert "give a QUERY" in shown


def run_without(shell: Shell, module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process where a module is missing."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.modules[{module!r}] = None\n{code}"],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", ["click", "rich"])
@pytest.mark.parametrize("command", ["log", "tree", "show"])
def test_without_its_extra_the_program_says_what_to_install(
    shell: Shell, module: str, command: str
) -> None:
    """Without click or rich there is one message."""
    place = "weather/refs/branch.main/ZZZZZZZZ.json" if command == "show" else "weather"
    code = f"sys.argv[1:] = [{command!r}, {place!r}]\nfrom icechunk_arrow.cli.entry import main\nmain()"
    done = run_without(shell, module, code)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"icechunk-arrow: {module} is not installed: pip install 'icechunk-arrow[cli]'\n"
    )


RUN_ALL = """
import json, shlex
from click.testing import CliRunner
from icechunk_arrow.cli.app import app
for line in {lines!r}:
    done = CliRunner().invoke(app, shlex.split(line), catch_exceptions=False)
    print(json.dumps([line, done.exit_code, done.stdout[:20], done.stderr]))
"""


@pytest.mark.parametrize(
    ("module", "extra", "refused", "answered"),
    [
        (
            "duckdb",
            "duckdb",
            ["sql weather 'SELECT 1'", "sql weather gaps", "inspect weather growth", "diff weather"],
            ["log weather", "tree weather", "inspect", "schema", "config weather", "sql-script weather"],
        ),
        ("s3fs", "s3", ["log s3://bucket/weather"], ["log weather"]),
    ],
)  # fmt: skip
def test_what_needs_an_extra_says_so(
    shell: Shell, module: str, extra: str, refused: list[str], answered: list[str]
) -> None:
    """Without DuckDB or s3fs a command that needs it says what to install; others go on."""
    done = run_without(shell, module, RUN_ALL.format(lines=[*refused, *answered]))
    found = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.stderr == ""
    assert [line for line, *_ in found] == [*refused, *answered]
    for line, status, out, err in found[: len(refused)]:
        assert (status, out) == (1, ""), line
        assert f"pip install 'icechunk-arrow[{extra}]'" in err
    for line, status, out, err in found[len(refused) :]:
        assert (status, err) == (0, ""), line
        assert out


LIGHT = ["log weather", "branches weather", "ls weather", "tree weather", "schema", "schema chunks"]
LIGHT += ["config weather", "inspect"]


def test_light_commands_load_little(shell: Shell) -> None:
    """Commands without a query wait neither for DuckDB, pandas nor zarr to load; for programs not for rich."""
    heavy = "('duckdb', 'pandas', 'zarr', 's3fs', 'fsspec')"
    show = "print([n for n in {} if n in sys.modules])"
    done = run_without(shell, "nothing", RUN_ALL.format(lines=LIGHT) + show.format(heavy))
    *found, loaded = done.stdout.splitlines()

    assert done.stderr == ""
    assert [json.loads(line)[1] for line in found] == [0] * len(LIGHT)
    assert loaded == "[]"
    lines = [f"{line} --format json" for line in LIGHT if "tree" not in line]
    done = run_without(shell, "nothing", RUN_ALL.format(lines=lines) + show.format("('rich',)"))
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_waits_for_click_alone(shell: Shell) -> None:
    """No help, of the program or of a command, loads numpy, Arrow or what a command does; nor does a mistake."""
    lines = ["--help", "ls --help", "sql --help", "nothing", "log weather --format xml"]
    show = "print([n for n in ('numpy', 'pyarrow', 'rich', 'icechunk_arrow.cli.output') if n in sys.modules])"
    done = run_without(shell, "nothing", RUN_ALL.format(lines=lines) + show)
    *found, loaded = done.stdout.splitlines()

    assert [json.loads(line)[1] for line in found] == [0, 0, 0, 2, 2]
    assert loaded == "[]"


def test_commands_take_what_their_options_give() -> None:
    """The function that does a command takes just what is declared, and stands where the table says."""
    for command in app.commands.values():
        assert command.callback is not None
        done_by = inspect.getclosurevars(command.callback).nonlocals
        module = importlib.import_module(f"icechunk_arrow.cli.{done_by['module']}")
        does = getattr(module, done_by["name"].replace("-", "_"))
        times = {"branch", "tag", "snapshot", "as_of"}
        given = {each.name for each in command.params}
        for options, value in ((times, "which"), ({"form", "output"}, "to")):
            given = given - options | {value} if given >= options else given
        assert set(inspect.signature(does).parameters) == given, command.name


def test_the_package_loads_nothing_of_the_command_line() -> None:
    """Importing the package, and all that a session needs, brings neither click nor rich nor DuckDB."""
    code = "import sys; from icechunk_arrow import Repository, Session, IcechunkStore;"
    code += "print([n for n in ('click', 'rich', 'duckdb') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


EVIL = "\x1b]0;title\x07 \x9b31m \u202egnp.exe\u2069 \u200f\u2028 ß🎈"
STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200f\u2028\u202e\u2069]")


def test_nothing_of_a_repository_steers_a_terminal(shell: Shell) -> None:
    """On a terminal every form shows control and direction characters as numbers; a pipe gets data as it is."""
    repo = Repository.create(shell.folder / "evil")
    with repo.transaction("main", message=EVIL, metadata={EVIL: EVIL}) as store:
        zarr.create_array(store, name="a", shape=(), dtype="i8", attributes={EVIL: EVIL})
        zarr.create_group(store, path=EVIL.replace("/", ""))
    repo.create_branch("b\u202e\x9b", repo.lookup_branch("main"))
    file = f"evil/s/{repo.lookup_branch('main')}.parquet"
    asked = [
        *(
            ["log", "evil"],
            ["ls", "evil", "--format", "csv"],
            ["branches", "evil"],
            ["tree", "evil"],
        ),
        *(["log", "evil", "--format", form] for form in ("json", "csv")),
        *(["show", file, "--rows", "9"], ["show", file, "--rows", "9", "--format", "json"]),
        ["sql", "evil", "FROM snapshots", "--format", "json"],
    ]
    for words in asked:
        code, shown = on_terminal(shell, words)
        assert code == 0, shown
        assert STEERING.search(shown) is None, (words, shown)
        assert "\x1b]" not in shown
    assert json.loads(harmless_json(json.dumps([EVIL], indent=1, ensure_ascii=False))) == [EVIL]
    for command in ("log evil", "branches evil", "ls evil", f"show '{file}' --rows 9"):
        assert "\u202e" in shell.out(f"icechunk-arrow {command} --format json")
    assert EVIL.replace("/", "") in shell.out("icechunk-arrow log evil --format csv")


def test_an_error_about_a_strange_name_steers_no_terminal(shell: Shell) -> None:
    """Messages show such characters as numbers too, wherever a name comes from."""
    code, shown = on_terminal(shell, ["log", "weather", "--branch", "b\u202e\x9b"])

    assert code == 1
    assert "b\\u202e\\x9b" in shown
    assert STEERING.search(shown) is None
