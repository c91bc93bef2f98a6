"""Workers may run another version of Python than those who send them work."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes.pickles import drive
from tests.promises import required

if TYPE_CHECKING:
    from pathlib import Path

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
VARIABLE = "ICECHUNK_ARROW_OTHER_PYTHON"


@pytest.fixture
def other() -> str:
    """The Python of the other environment, as the Makefile says."""
    python, version = os.environ.get(VARIABLE, ""), OURS
    if python:
        tell = "import sys; print(*sys.version_info[:2], sep='.')"
        version = subprocess.check_output([python, "-c", tell], text=True).strip()
    if version != OURS:
        return python
    reason = f"{VARIABLE} names no Python of another version than {OURS}"
    assert not required("other-python"), reason
    pytest.skip(reason)


def test_pickles_are_for_other_processes(tmp_path: Path) -> None:
    """By every protocol: sessions, stores, repositories, settings and errors; forks come back and are merged."""
    assert drive(sys.executable, sys.executable, tmp_path).split() == [OURS, OURS, "630"]


@pytest.mark.parametrize("we_begin", [True, False])
def test_pickles_are_for_other_versions_of_python(
    tmp_path: Path, other: str, we_begin: bool
) -> None:
    """The same between this version and another one, in both directions."""
    pythons = (sys.executable, other) if we_begin else (other, sys.executable)
    *versions, count = drive(*pythons, tmp_path).split()
    assert count == "630"
    assert len(set(versions)) == 2
    assert OURS in versions
