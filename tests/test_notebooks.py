"""The notebooks run, and what they show is what a run gives."""

from __future__ import annotations

import base64
import copy
import importlib.util
import itertools
import json
import re
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.notebooks import NOTEBOOKS, differences, load, needs_spark, run
from tests.promises import required

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST_PICTURES = 150_000
OF_A_MACHINE = re.compile(r"(?<![\w.])(/(tmp|home|root|Users|work|private|var|opt|mnt)/|[A-Z]:\\)")
MARKED = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark] if needs_spark(path) else [])
    for path in NOTEBOOKS
]
ALL = [pytest.param(path, id=path.stem) for path in NOTEBOOKS]


def outputs(notebook: Any) -> Iterator[Any]:
    """Every output of a notebook."""
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def test_there_are_notebooks() -> None:
    """A folder that nothing is found in would pass every other test."""
    assert {"01_first_steps", "02_inventory_with_sql"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", MARKED)
def test_it_runs_and_shows_what_stands_in_it(path: Path, tmp_path: Path) -> None:
    """Every cell runs without an error or a warning, and what it shows is what was committed.

    If it shows something else now, ``make notebooks`` writes it down.
    """
    if needs_spark(path) and not (shutil.which("java") and importlib.util.find_spec("pyspark")):
        assert not required("spark"), "Java or pyspark is missing, and this run promises Spark"
        pytest.skip("Java or pyspark is missing")
    done = run(path, tmp_path)

    complaints = [each.text for each in outputs(done) if each.get("name") == "stderr"]
    assert complaints == []
    assert differences(done, load(path)) == []


@pytest.mark.parametrize("path", ALL)
def test_nothing_of_the_machine_stands_in_it(path: Path) -> None:
    """No output names a folder of the machine that it ran on; the notebook says nothing of its Python."""
    notebook = load(path)
    texts = [
        text
        for each in outputs(notebook)
        for kind, text in [("", each.get("text", "")), *each.get("data", {}).items()]
        if kind != "image/png"
    ]

    found = [text for text in texts if OF_A_MACHINE.search(text) or tempfile.gettempdir() in text]
    assert found == []
    assert set(notebook.metadata) <= {"kernelspec", "needs"}
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("path", ALL)
def test_it_was_run_and_is_small(path: Path) -> None:
    """Cells were run once, in their order; the pictures are a page's, not a download's."""
    cells = [cell for cell in load(path).cells if cell.cell_type == "code"]
    pictures = [
        len(base64.b64decode(each.data["image/png"]))
        for each in outputs(load(path))
        if "image/png" in each.get("data", {})
    ]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(pictures) < LARGEST_PICTURES


@pytest.mark.parametrize("path", ALL)
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links exist, and links within the page name one of its headings."""
    text = "\n\n".join(cell.source for cell in load(path).cells if cell.cell_type == "markdown")
    headings = {title.replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)

    within = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert within <= headings
    elsewhere = [link.partition("#")[0] for link in links if not link.startswith("#")]
    assert [link for link in elsewhere if not (path.parent / link).exists()] == []


CELLS = [
    "import warnings\nwarnings.warn('old')",
    "print('5 chunks in 2.5 kB')",
    "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [3, 1])\nplt.show()",
]


def executed(folder: Path, sources: list[str]) -> Any:
    """Run a notebook of these cells."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
    }
    cells = [{**cell, "id": f"c{n}", "source": each} for n, each in enumerate(sources)]
    path = folder / "it.ipynb"
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return run(path, folder)


def test_stale_outputs_are_found(tmp_path: Path) -> None:
    """Other words, counts, sizes and pictures are found, and only these; so is a warning."""
    kept = executed(tmp_path, CELLS)
    assert "old" in next(each.text for each in outputs(kept) if each.get("name") == "stderr")
    assert differences(kept, kept) == []

    changed = [*CELLS, "plt.bar(['a', 'b'], [3, 2])\nplt.show()", "print('5 chunks in 2.6 kB')"]
    changed += [
        f"print('{text}')"
        for text in ("6 chunks in 2.5 kB", "5 arrays in 2.5 kB", "5 chunks in 9 kB", "")
    ]
    now = executed(tmp_path, changed)
    _, text, picture, other, nearly, *wrong = (copy.deepcopy(cell) for cell in now.cells)
    for stale, said in ((other, "the picture looks different"), (text, "not")):
        found = differences(with_cells(now, [stale]), with_cells(now, [picture]))
        assert [said in each for each in found] == [True]
    for stale in wrong:
        assert len(differences(with_cells(now, [stale]), with_cells(now, [text]))) == 1
    assert differences(with_cells(now, [nearly]), with_cells(now, [text])) == []
    text.metadata["tags"] = ["varies"]
    counted = [differences(with_cells(now, [each]), with_cells(now, [text])) for each in wrong]
    assert [len(each) for each in counted] == [0, 1, 0, 1]


@pytest.mark.parametrize("cuts", [[], [3], [3, 5], [0, 1, 2, 9]])
def test_messages_of_one_stream_are_one_text(tmp_path: Path, cuts: list[int]) -> None:
    """Under load the text of a cell comes in several messages, which is no difference."""
    kept = executed(tmp_path, ["print('5 chunks, 3 of them packed')"])
    now = copy.deepcopy(kept)
    (whole,) = now.cells[0].outputs
    edges = [0, *cuts, len(whole.text)]
    now.cells[0].outputs = [
        type(whole)({**whole, "text": whole.text[start:stop]})
        for start, stop in itertools.pairwise(edges)
    ]

    assert len(now.cells[0].outputs) == len(cuts) + 1
    assert differences(now, kept) == []
    now.cells[0].outputs[-1].text += " and one more"
    assert len(differences(now, kept)) == 1


def with_cells(notebook: Any, cells: list[Any]) -> Any:
    """Give a notebook with other cells."""
    return type(notebook)({**notebook, "cells": cells})
