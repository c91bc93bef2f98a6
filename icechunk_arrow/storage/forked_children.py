"""What a forked child must not take over: locks and pending answers of threads that it does not have, connections.

Owns the list of live things that have such, and their renewal; knows nothing else of them. Whatever keeps
a lock, a pool of threads or a future beyond one call belongs in the list. A value that is made on first use
is made without a lock (:mod:`icechunk_arrow.core.lazy`).

Connections stay with the parent. fsspec's file systems close theirs when they are collected, or when Python ends.
In a child that reaches into the parent: both share the list of sockets that the system watches, and encrypted
connections would be told that they end. The parent then waits for answers that never come. So what a child
inherits of these is neither closed nor freed there.

Modules are imported when they are needed, here and in numpy. One that another thread is just importing would be
half a module in a child, under a lock that nobody lifts: a process forks when that is over.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import weakref
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from icechunk_arrow.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable


class Renewable(Protocol):
    """Something with locks, threads or connections."""

    def renew_after_fork(self) -> None:
        """Make them anew; called in the child, before anything else runs. It must not fail."""


_live: dict[int, weakref.ref[Renewable]] = {}
_functions: list[Callable[[], None]] = []


def renew_in_forks(thing: Renewable) -> None:
    """Have a thing renewed in every forked child."""
    # by identity: some of these are equal to others, or have no hash
    number = id(thing)

    def forget_collected(_: weakref.ref[Renewable]) -> None:
        _live.pop(number, None)

    _live[number] = weakref.ref(thing, forget_collected)


def run_in_forks(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called in every forked child: for what belongs to a module."""
    _functions.append(function)
    return function


def refuse_child(process: int, work: str) -> None:
    """Refuse to go on in a forked child with what its parent, a process of this number, was at."""
    if os.getpid() != process:
        raise StorageError(f"this process was forked while its parent {work}")


def _renew() -> None:
    for function in _functions:
        function()
    for reference in list(_live.values()):
        thing = reference()
        if thing is not None:
            thing.renew_after_fork()


def _finish_imports() -> None:
    """Wait for what other threads are importing; what this thread is importing itself is passed over."""
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            with suppress(Exception):  # the thread that imports it is told
                importlib.import_module(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports, after_in_child=_renew)


@cache
def leave_connections_to_parents() -> None:
    """See to it that children forked from now on leave the connections of fsspec's file systems alone."""
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415 - a process without connections does without it

    held: list[tuple[weakref.finalize[Any, Any], Any]] = []

    def keep() -> None:
        """Hold all that are connected while the process forks: fsspec forgets its own in the child at once."""
        registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
        for closing in list(registry):
            watched = closing.peek()
            if watched is not None and isinstance(watched[0], AsyncFileSystem):
                held.append((closing, watched[0]))

    def leave() -> None:
        """In the child: let nothing close what was held, nor free it, for as long as the child lives."""
        for closing, fs in held:
            closing.detach()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(fs))
        held.clear()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=keep, after_in_parent=held.clear, after_in_child=leave)
