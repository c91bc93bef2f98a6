"""What was found once: each line is a damaged file that came to another end than it must, and is tried again."""

from __future__ import annotations

from pathlib import Path

from tests.fuzzing.damage import Case

__all__ = ["corpus"]


def corpus() -> list[Case]:
    """Read ``corpus.jsonl``: a sample, a kind, which file of it, and mutations with their seeds in each line."""
    lines = (Path(__file__).with_suffix(".jsonl")).read_text().splitlines()
    return [Case.of_line(line) for line in lines if line]
