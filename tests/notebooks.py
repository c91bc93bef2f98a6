"""Run notebooks as a reader would, and keep what they show: ``python -m tests.notebooks``.

Owns how a notebook is run, away from this machine's own settings, and what of an output differs from run to run.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

__all__ = ["NOTEBOOKS", "differences", "load", "needs_spark", "run"]

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS_PER_CELL = 300
"""Far more than any takes: other work on the machine is no failure."""
_PICTURE = "image/png"
_TOLERANCE = 0.05
_PICTURE_TOLERANCE = 3.0
"""Of 255, on average over a small picture; one bar of another height is more."""
_SIZES = {"kB", "MB"}
_NUMBER = re.compile(r"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?: ?(kB|MB)\b)?")
_NEVER_THE_SAME = [
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{20}\b"), "ID"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "SECONDS"),
]
_TAG = re.compile(r"<style.*?</style>|<[^>]*>", re.DOTALL)


def load(path: Path) -> Any:
    """Read a notebook."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def needs_spark(path: Path) -> bool:
    """Whether a notebook needs Java and PySpark: its name or its metadata says so."""
    return "spark" in path.stem or "spark" in load(path).metadata.get("needs", [])


def run(path: Path, folder: Path) -> Any:
    """Run all cells in a folder, with a kernel of this Python that finds this package, and give what came out."""
    notebook = load(path)
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "PYSPARK_PYTHON": sys.executable,
        "IPYTHONDIR": str(folder / ".ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    with (
        tempfile.TemporaryDirectory() as sockets
    ):  # names of sockets must be short; ports need a network
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel"),
            timeout=SECONDS_PER_CELL,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        return client.execute(env=environment, cleanup_kc=True)


def differences(done: Any, kept: Any) -> list[str]:
    """Say which code cells of one run show something else than those of another, and what.

    Ids, times of day and durations are never the same, and do not count. Integers are; other numbers and sizes in
    kB and MB may be a little off, since random ids compress as they like. Of a cell with the tag ``varies`` no
    number counts. Pictures must look alike from afar.
    """
    cells = [[c for c in each.cells if c.cell_type == "code"] for each in (done, kept)]
    found = []
    for number, (now, before) in enumerate(zip(*cells, strict=True), 1):
        loose = "varies" in before.metadata.get("tags", [])
        outputs = [_joined(each.outputs) for each in (now, before)]
        if len(outputs[0]) != len(outputs[1]):
            found.append(f"cell {number}: {len(outputs[0])} outputs, not {len(outputs[1])}")
            continue
        for mine, theirs in zip(*outputs, strict=True):
            if (wrong := _difference(mine, theirs, loose=loose)) is not None:
                found.append(f"cell {number}: {wrong}")
    return found


def _difference(now: Any, before: Any, *, loose: bool) -> str | None:
    pictures = [each.get("data", {}).get(_PICTURE) for each in (now, before)]
    if all(pictures):
        return None if _look_alike(*pictures) else "the picture looks different"
    texts = [_text(each) for each in (now, before)]
    if any(pictures) or _rest(texts[0]) != _rest(texts[1]):
        return f"{texts[0]!r}, not {texts[1]!r}"
    if loose:
        return None
    for mine, theirs in zip(*map(_NUMBER.findall, texts), strict=True):
        if not _near(mine, theirs):
            return f"{' '.join(mine)}, not {' '.join(theirs)}, in {texts[0]!r}"
    return None


def _near(now: tuple[str, str], before: tuple[str, str]) -> bool:
    """Whether two numbers with their units are as good as the same."""
    values = [float(number.replace(",", "")) for number, _ in (now, before)]
    if now[1] not in _SIZES and "." not in now[0] + before[0]:
        return values[0] == values[1]
    return abs(values[0] - values[1]) <= _TOLERANCE * max(map(abs, values)) + 1e-6


def _rest(text: str) -> str:
    return " ".join(_NUMBER.sub(" # ", text).split())


def _text(output: Any) -> str:
    """Give an output as plain text, without tags, and without what is never the same."""
    if output.output_type == "stream":
        text = f"{output.name}: {output.text}"
    elif output.output_type == "error":
        text = f"error: {output.ename}"
    else:
        data = output.data
        text = _TAG.sub(" ", data.get("text/html", data.get("text/plain", "")))
    for pattern, word in _NEVER_THE_SAME:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def _look_alike(now: str, before: str) -> bool:
    """Compare pictures from afar, where another font or a palette makes no difference."""
    from PIL import Image

    small = [
        np.asarray(
            Image.open(io.BytesIO(base64.b64decode(each)))
            .convert("RGB")
            .resize((48, 24), Image.Resampling.BOX),
            dtype=float,
        )
        for each in (now, before)
    ]
    return bool(np.abs(small[0] - small[1]).mean() < _PICTURE_TOLERANCE)


def _joined(outputs: Any) -> list[Any]:
    """Join what one stream says: in how many messages it came depends on the load of the machine."""
    found: list[Any] = []
    for output in outputs:
        last = found[-1] if found else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            found[-1] = type(last)({**last, "text": last.text + output.text})
        else:
            found.append(output)
    return found


def _tidy(notebook: Any) -> Any:
    """Leave out what says on which machine it ran, and make pictures small."""
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get(_PICTURE)
            if picture is not None:
                output.data[_PICTURE] = _smaller(picture)
    return notebook


def _smaller(picture: str) -> str:
    """Draw a picture with a palette: it looks the same, and takes a third."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    target = io.BytesIO()
    image.quantize(255, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return base64.b64encode(target.getvalue()).decode()


def main() -> None:
    """Run notebooks, those that need no Spark unless some are named, and write down what they show."""
    named = [Path(each) for each in sys.argv[1:]]
    for path in named or [each for each in NOTEBOOKS if not needs_spark(each)]:
        print(path.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            notebook = _tidy(run(path, Path(folder)))
        for cell in notebook.cells:
            cell.source = cell.source.splitlines(keepends=True)  # one line of code, one of a diff
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
