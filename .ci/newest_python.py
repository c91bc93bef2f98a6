"""Print the newest Python that is installed, if it is newer than 3.11: on PATH or under pyenv."""

import re
import shutil
import subprocess
from pathlib import Path

OLDEST = (3, 11)


def main() -> None:
    """Look at PATH and at pyenv's folder, newest first."""
    found: dict[tuple[int, int], str] = {}
    for path in Path.home().glob(".pyenv/versions/3.*/bin/python"):
        version = re.search(r"versions/3\.(\d+)", str(path))
        assert version is not None
        found[3, int(version[1])] = str(path)
    for minor in range(12, 20):
        on_path = shutil.which(f"python3.{minor}")
        if on_path is not None:
            found.setdefault((3, minor), on_path)
    for version, path in sorted(found.items(), reverse=True):
        works = subprocess.run(
            [path, "-c", "import venv, ensurepip"], capture_output=True, check=False
        )
        if version > OLDEST and works.returncode == 0:
            print(path)
            return


if __name__ == "__main__":
    main()
