"""What a person installs: the wheel has everything, and nothing that is not ours."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_what_it_needs(tmp_path: Path) -> None:
    """The built wheel carries the type marker, the schemas and the licence, and no tests."""
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
    assert not [name for name in names if name.startswith(("tests/", "notebooks/"))]
