"""A repository beside which commands are run, and a way to run them as a shell does."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from icechunk_arrow import Repository
from icechunk_arrow.cli.app import app

if TYPE_CHECKING:
    from click.testing import Result

PROJECT = Path(__file__).parent.parent.parent
STRANGE = 'it\'s "q" [bold]\x1b[31m\nß🎈'
"""A name and message that would break a line, steer a terminal or be taken for markup."""


@dataclass(frozen=True)
class Shell:
    """A folder, and ``icechunk-arrow`` as a program in it."""

    folder: Path

    def invoke(self, line: str, text: str | None = None) -> Result:
        """Run a command in this process: what people type, without what only bash understands."""
        program, *arguments = shlex.split(line)
        assert program == "icechunk-arrow"
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(
                app, arguments, input=text or "", prog_name=program, catch_exceptions=False
            )

    def run(self, line: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, and say how it ended, as a process of its own would."""
        done = self.invoke(line, text)
        return subprocess.CompletedProcess(line, done.exit_code, done.stdout, done.stderr)

    def bash(self, line: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one line of bash, where ``icechunk-arrow`` is a program: this takes seconds."""
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment(),
            input="" if text is None else text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """What the program is run with."""
        kept = {name: value for name, value in os.environ.items() if "COLOR" not in name}
        return {
            **kept,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "PYTHONWARNINGS": "error",
        }

    def out(self, line: str, text: str | None = None) -> str:
        """Run a line that goes well and says nothing, and give what it prints."""
        done = self.run(line, text)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


def fill(place: Path) -> None:
    """Make the repository that the examples speak of: a tag ``v1`` and a commit behind it."""
    repository = Repository.create(place)
    with repository.transaction("main", message="One day") as store:
        array = zarr.create_array(
            store,
            name="t2m",
            shape=(4, 20),
            chunks=(1, 10),
            dtype="f4",
            dimension_names=["time", "x"],
        )
        array[:] = np.arange(80).reshape(4, 20)
        zarr.create_group(store, path="more")
    repository.create_tag("v1", repository.lookup_branch("main"))
    with repository.transaction("main", message=STRANGE) as store:
        zarr.open_array(store, path="t2m")[0] = 300
        zarr.create_array(store, name=f"more/{STRANGE}", shape=(), dtype="i8")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository to copy."""
    place = tmp_path_factory.mktemp("cli") / "weather"
    fill(place)
    return place


@pytest.fixture
def shell(tmp_path: Path, filled: Path) -> Shell:
    """A folder with the repository ``weather``."""
    program = tmp_path / "bin" / "icechunk-arrow"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m icechunk_arrow.cli "$@"\n')
    program.chmod(0o755)
    shutil.copytree(filled, tmp_path / "weather")
    return Shell(tmp_path)
