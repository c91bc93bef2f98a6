# It is about system calls.
# ruff: noqa: PTH208
"""A local place whose volume takes names for one that differ in large and small letters alone, as many do.

It keeps the spelling that a name was given first. It stands in place of the module ``os``, as
:mod:`tests.faults.calls` does, for machines that have no such volume.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.faults.calls import Calls

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Folding"]


class Folding(Calls):
    """Leads every name below a folder to what is there by any spelling."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)
        self.path = SimpleNamespace(**{name: getattr(os.path, name) for name in dir(os.path)})
        for name in ("lexists", "isdir", "islink"):
            setattr(self.path, name, self._led(getattr(os.path, name)))

    def _led(self, call: Any) -> Any:
        return lambda path, *given, **more: call(self._found(path), *given, **more)

    def _found(self, path: Any) -> Any:
        """Spell a path as it is there, as far as it is."""
        if not isinstance(path, str) or not path.startswith(f"{self.root}/"):
            return path
        place = self.root
        for part in path[len(self.root) + 1 :].split("/"):
            try:
                known = os.listdir(place)
            except OSError:
                known = []
            place = (
                f"{place}/{next((each for each in known if each.lower() == part.lower()), part)}"
            )
        return place

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name in {"open", "mkdir", "lstat", "stat", "scandir", "listdir", "unlink"}:
            return self._led(found)
        if name in {"link", "replace"}:
            return lambda source, target, **more: found(source, self._found(target), **more)
        return found

    def rename_new(self, source: str, target: str, *, src_dir_fd: int) -> None:
        super().rename_new(source, self._found(target), src_dir_fd=src_dir_fd)
