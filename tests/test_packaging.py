"""What a person installs: the wheel has everything, and nothing that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_what_it_needs(tmp_path: Path) -> None:
    """The built wheel carries the type marker, the schemas and the licence, and no tests and no kit."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()

    assert "icechunk_arrow/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "icechunk_arrow/schemas/README.md" in names
    texts = {f"icechunk_arrow/{each.relative_to(ROOT)}" for each in (ROOT / "sql").rglob("*.sql")}
    assert len(texts) >= 9
    assert texts <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "notebooks/"))]
    schemas = {path.relative_to(ROOT) for path in (ROOT / "schemas").rglob("*") if path.is_file()}
    carried = {name.removeprefix("icechunk_arrow/") for name in names}
    assert {path.as_posix() for path in schemas if "conformance" not in path.parts} <= carried
    assert not [name for name in names if "conformance" in name]

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "from icechunk_arrow.tables.sql import read_sql; print(read_sql('tables/chunks.sql'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.rstrip() == (ROOT / "sql/tables/chunks.sql").read_text().rstrip(), (
        done.stderr
    )
