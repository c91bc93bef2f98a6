"""Old files of somebody who also uses a folder in which a test makes a repository: nothing may ever touch them.

They stand where a careless program would find them: among what is unfinished, under names like ours, in
the folders that a repository uses, in ``tmp``, and behind links. A fixture plants them beside every local
repository of every test.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icechunk_arrow.storage.scratch import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AMONG", "SEEN", "UNSEEN", "Bystanders", "is_bystander", "local_root"]

HEX = "0123456789abcdef01234567"
UNSEEN = {
    f"{SCRATCH}/notes.txt": b"what I thought",
    f"{SCRATCH}/{HEX}": b"a name like those of old",
    f"{SCRATCH}/unfinished-{HEX.upper()}": b"a name like ours",
    f"{SCRATCH}/unfinished-{HEX}.txt": b"another one",
    f"{SCRATCH}/mine.lock": b"locked since yesterday",
}
"""What a listing of the place does not show."""
SEEN = {
    "tmp/report.doc": b"last year's figures",
    f"tmp/{HEX}": b"a name like those of old",
    "tmp/0123.lock": b"mine",
    "refs/books.bib": b"@book{}",
    "refs/branch.maine/coast.txt": b"no branch of ours",
    "readme.txt": b"read me",
}
AMONG = {
    "c/main.c": b"int main(void) { return 0; }",
    f"c/{HEX[:20].upper()}": b"what could be a chunk file",
    "i/index.html": b"<html>",
    "s/tables.parquet": b"no table of ours",
    "refs/branch.main/notes.txt": b"no entry of ours",
}
"""In the folders that a repository fills itself: only where nobody counts the files there."""
LINKS = {
    "docs": ".",
    "tmp/documents": ".",
    "refs/link": ".",
    f"{SCRATCH}/folder": ".",
    f"{SCRATCH}/unfinished-{HEX}": "letter.txt",
}
"""Links, and where they lead below the folder that is outside of the place."""
OUTSIDE = {"letter.txt": b"dear reader", f"unfinished-{HEX}": b"old", HEX: b"old"}
NAMES = {*SEEN, *AMONG, *UNSEEN, *LINKS}
OLD = 1_500_000_000


def is_bystander(key: str) -> bool:
    """Whether a file of a place, by its key, is one of those that were there before."""
    return key in NAMES


def local_root(url: Any) -> Path | None:
    """Give the folder that a place is, where it is one."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in {"file", "local"}:
        return None
    return Path(rest if separator else text).expanduser().absolute()


Facts = tuple[str, bytes | str, int]


def _facts(path: Path) -> Facts | None:
    """What a file is, holds, and when that was written; None where there is none."""
    if path.is_symlink():
        return "link", str(path.readlink()), path.lstat().st_mtime_ns
    if not path.is_file():
        return None
    return "file", path.read_bytes(), path.stat().st_mtime_ns


@dataclass
class Bystanders:
    """All such files of one test."""

    outside: Path
    """A folder for what is beside the places."""
    found: dict[Path, Facts | None] = field(default_factory=dict)

    def plant(self, root: Path, *kinds: Mapping[str, bytes]) -> None:
        """Put files of some kinds into a place that may not be there yet."""
        if not self.found:
            self._write(self.outside, OUTSIDE)
        for files in kinds:
            self._write(root, files)
        for name, target in LINKS.items():
            link = root / name
            if link.parent.is_dir() and not os.path.lexists(link):
                link.symlink_to(self.outside / target)
                os.utime(link, (OLD, OLD), follow_symlinks=False)
                self.found[link] = _facts(link)

    def _write(self, root: Path, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            path = root / name
            if not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, (OLD, OLD))
                self.found[path] = _facts(path)

    def check(self) -> None:
        """See that all of them are there, byte for byte, unless the test has removed the place itself."""
        roots = {path for path in self.found if path.parent.is_dir()}
        changed = [str(path) for path in roots if _facts(path) != self.found[path]]
        assert not changed, f"files that were there before were touched: {sorted(changed)}"
