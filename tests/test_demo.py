"""`make demo` tells its story."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.promises import required

DEMO = Path(__file__).parent.parent / "notebooks" / "demo.py"


@pytest.mark.spark
@pytest.mark.storm
def test_the_demo_runs(tmp_path: Path) -> None:
    """Spark writes twice, everybody reads, a bad batch changes nothing, and both versions are there."""
    if not (shutil.which("java") and importlib.util.find_spec("pyspark")):
        assert not required("spark"), "Java or pyspark is missing, and this run promises Spark"
        pytest.skip("Java or pyspark is missing")
    ran = subprocess.run(
        [sys.executable, str(DEMO)],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    out = ran.stdout
    assert re.search(r"/rain .* virtual .* 32 .* 129024 .* 8 ", out)
    assert re.search(r"/t2m .* native .* 16 ", out)
    assert "rain-2026-01-02.bin|4 " in out
    assert "InvalidInputError: rows have lat=91.0" in out
    assert "The branch is where it was: True" in out
    assert "first-release: the highest temperature is 29.0" in out
    assert "main: the highest temperature is 45.0" in out
    assert [
        line.split("  ")[-1] for line in out.splitlines() if re.search(r"\d\d:\d\d:\d\d  ", line)
    ] == [
        "A heat wave that was overlooked",
        "Rain, from the archive's own files",
        "Temperatures from a long table",
        "Repository created",
    ]
    assert not list(tmp_path.glob("tmp*")), "the demo leaves nothing behind"
