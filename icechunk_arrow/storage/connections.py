"""Connections of a parent process, which a forked child must leave alone.

fsspec's file systems close theirs when they are collected, or when Python ends. In a child that reaches into
the parent: both share the list of sockets that the system watches, and encrypted connections would be told
that they end. The parent then waits for answers that never come. So what a child inherits of these is neither
closed nor freed there.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from typing import Any

from fsspec.asyn import AsyncFileSystem

__all__ = ["leave_connections_to_parents"]

_kept: list[tuple[weakref.finalize[Any, Any], Any]] = []


def _keep() -> None:
    """Hold all connected file systems while the process forks: fsspec forgets its own in the child at once."""
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    for each in list(registry):
        found = each.peek()
        if found is not None and isinstance(found[0], AsyncFileSystem):
            _kept.append((each, found[0]))


def _leave() -> None:
    """In the child: let nothing close what was held, nor free it, for as long as the child lives."""
    for closing, fs in _kept:
        closing.detach()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(fs))
    _kept.clear()


@cache
def leave_connections_to_parents() -> None:
    """See to it that children forked from now on do so."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_keep, after_in_parent=_kept.clear, after_in_child=_leave)
