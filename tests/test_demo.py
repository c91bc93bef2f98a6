"""`make demo` tells its story."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def test_the_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo writes, reads both versions, and lists the inventory from plain Parquet."""
    runpy.run_path(str(Path(__file__).parent.parent / "notebooks" / "demo.py"), run_name="__main__")
    out = capsys.readouterr().out

    assert "A heat wave" in out
    assert out.count("/temperature") == 16
    assert "refs/branch.main/ZZZZZZZX.json" in out
