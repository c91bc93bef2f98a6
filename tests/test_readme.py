"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from icechunk_arrow import RepositoryConfig

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_and_sql_blocks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python blocks run one after the other, and the SQL answers on what they made."""
    place = str(tmp_path / "weather")
    scope: dict[str, Any] = {}
    for code in blocks("python"):
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
    """Every make command that the README names is a target."""
    named = set(re.findall(r"make ([a-z-]+)", README))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert named
    assert named <= targets


def test_links_lead_somewhere() -> None:
    """Every relative link of the README exists."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
