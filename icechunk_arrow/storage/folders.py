# Strings, not paths: pathlib costs more than some of these system calls.
# ruff: noqa: PTH102, PTH112, PTH120
"""The folders of a local place: there, durable, and not symbolic links.

Owns what one handle has found out about them, so that nothing is looked at twice. Knows paths below
one root; raises plain ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from icechunk_arrow.storage import disk

__all__ = ["Folders"]


class Folders:
    """What is known of the folders below a root."""

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        self._plain: set[str] = set()
        self._made: set[str] = set()

    def check_plain(self, key: str) -> None:
        """Refuse a key below a symbolic link; a folder found right is not looked at again."""
        folder = key.rpartition("/")[0]
        if not folder or folder in self._plain:
            return
        place = self._root
        for part in folder.split("/"):
            place = f"{place}/{part}"
            if stat.S_ISLNK(os.lstat(place).st_mode):
                raise OSError(errno.ELOOP, "a folder is a symbolic link", place)
        self._plain.add(folder)

    def make(self, folder: str) -> None:
        """Make a folder and those above it, and their names durable, unless this was done."""
        if folder in self._made:
            return
        self._make_root(self._root)
        place = self._root
        for part in folder.split("/") if folder else ():
            above, place = place, f"{place}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)
            if self._durable:  # also where it was there: its maker may not have come so far
                disk.sync_folder(above)
        self.check_plain(f"{folder}/")
        self._made.add(folder)

    def forget(self) -> None:
        """Look again: somebody has removed a folder."""
        self._made.clear()

    def _make_root(self, root: str) -> None:
        """Make the root and what is missing above it; where it is there, its maker may not have come so far."""
        above = os.path.dirname(root)
        made = not os.path.isdir(root)
        if made:
            if above != root:
                self._make_root(above)
            with contextlib.suppress(FileExistsError):
                os.mkdir(root)
        if self._durable:
            # a folder that is somebody else's may be one that cannot be opened, only passed through
            with contextlib.nullcontext() if made else contextlib.suppress(PermissionError):
                disk.sync_folder(above)
