"""What the README shows works as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from icechunk_arrow import RepositoryConfig
from tests.promises import required

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FOLDERS = (".github", "icechunk_arrow", "schemas", "sql", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]


def blocks(language: str) -> list[str]:
    """Code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def needs_spark(code: str) -> bool:
    """Whether a block starts Spark."""
    return "pyspark" in code


@pytest.mark.spark
def test_spark_blocks_run(tmp_path: Path) -> None:
    """They go on with the repository that the first block makes, in a process of their own."""
    if not (shutil.which("java") and importlib.util.find_spec("pyspark")):
        assert not required("spark"), "Java or pyspark is missing, and this run promises Spark"
        pytest.skip("Java or pyspark is missing")
    codes = blocks("python")
    chosen = [codes[0], *filter(needs_spark, codes)]
    script = tmp_path / "readme.py"
    script.write_text("\n".join(chosen).replace("/tmp/weather", str(tmp_path / "weather")))
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(chosen) > 1
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"\|2026-01-02 00:00:00\| +2\| *14\.4", ran.stdout)
    assert re.search(r"/radar\| +100\| +0\|", ran.stdout)
    assert re.search(r"/wind\| +1\| +0\|", ran.stdout)


def test_python_and_sql_blocks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python blocks run one after the other, and the SQL answers on what they made."""
    place = str(tmp_path / "weather")
    scope: dict[str, Any] = {}
    for code in blocks("python"):
        if not needs_spark(code):
            exec(compile(code.replace("/tmp/weather", place), "README.md", "exec"), scope)
    [query] = blocks("sql")
    rows = duckdb.execute(query.replace("/tmp/weather", place)).fetchall()

    assert "['One day of temperatures', 'Repository created']" in capsys.readouterr().out
    assert sum(chunks for _, chunks, _ in rows) >= 24 * 2 * 4


def test_the_configuration_is_one() -> None:
    """What the README shows as configuration is read, and says what it seems to say."""
    [text] = blocks("yaml")
    settings = RepositoryConfig.from_yaml(text).chunk_manifests

    assert [each.name for each in settings.sets] == ["hot", "default"]
    assert settings.sets[0].split_along == "time"
    assert settings.rules[0].target == "hot"


def test_commands_are_targets() -> None:
    """Every make command that the pages for people name is a target."""
    pages = README + (ROOT / ".github/CONTRIBUTING.md").read_text()
    named = set(re.findall(r"make ([a-z-]+)", pages))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page exists."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("package", "page"),
    [
        ("core", "README.md"),
        ("formats", "README.md"),
        ("storage", "storage/__init__.py"),
        ("engine", "engine/__init__.py"),
        ("tables", "tables/__init__.py"),
    ],
)
def test_maps_name_every_module(package: str, page: str) -> None:
    """What is not on the map is not found."""
    folder = ROOT / "icechunk_arrow"
    named = set(re.findall(r"`(\w+)`", (folder / page).read_text()))

    assert {each.stem for each in (folder / package).glob("*.py")} - {"__init__"} - named == set()
