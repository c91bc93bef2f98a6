"""What a forked child must not take over: locks and pending answers of threads that it does not have, connections.

Owns the list of live things that have such, and their renewal; knows nothing else of them. Whatever keeps
a lock, a pool of threads or a future beyond one call belongs in the list. A value that is made on first use
is made without a lock (:mod:`icechunk_arrow.core.lazy`).

Connections stay with the parent. fsspec's file systems close theirs when they are collected, or when Python ends.
In a child that reaches into the parent: both share the list of sockets that the system watches, and encrypted
connections would be told that they end. The parent then waits for answers that never come. So what a child
inherits of these is neither closed nor freed there.

Modules are imported when they are needed, here and in numpy. One that another thread is just importing would be
half a module in a child, under a lock that nobody lifts: a process forks when that is over. Between the last look
and the fork another thread can begin a new one: that the child forgets.
"""

from __future__ import annotations

import _frozen_importlib
import ctypes
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from icechunk_arrow.errors import StorageError
from icechunk_arrow.storage import clock

if TYPE_CHECKING:
    from collections.abc import Callable


class Renewable(Protocol):
    """Something with locks, threads or connections."""

    def renew_after_fork(self) -> None:
        """Make them anew; called in the child, before anything else runs. It must not fail."""


_live: dict[int, weakref.ref[Renewable]] = {}
_functions: list[Callable[[], None]] = []
_IMPORT_SECONDS = 5.0


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


def _importing_threads() -> dict[str, int | None]:
    """Which thread is importing each module whose lock is there."""
    locks: dict[str, Any] = getattr(_frozen_importlib, "_module_locks", {})
    held = ((name, reference()) for name, reference in list(locks.items()))
    return {name: getattr(lock, "owner", None) for name, lock in held}


def _finish_imports() -> None:
    """Wait for what other threads are importing: a while, since they could wait for this one."""
    mine = {None, threading.get_ident()}
    deadline = clock.seconds() + _IMPORT_SECONDS
    while not mine.issuperset(_importing_threads().values()) and clock.seconds() < deadline:
        clock.pause(0.001)


def _forget_imports() -> None:
    """In the child: let what vanished threads were importing be imported anew."""
    for name, thread in _importing_threads().items():
        if thread != threading.get_ident():
            getattr(_frozen_importlib, "_module_locks", {}).pop(name, None)
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]
    getattr(_frozen_importlib, "_blocking_on", {}).clear()


class _Held(threading.local):
    """What is connected while a thread forks; others may fork at the same time."""

    def __init__(self) -> None:
        self.connected: list[tuple[weakref.finalize[Any, Any], Any]] = []


_held = _Held()


def _connected() -> list[tuple[weakref.finalize[Any, Any], Any]]:
    """How fsspec will close what is connected, and what that is."""
    kind = getattr(sys.modules.get("fsspec.asyn"), "AsyncFileSystem", None)
    if kind is None:
        return []
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    watched = [(closing, closing.peek()) for closing in list(registry)]
    return [(closing, found) for closing, found in watched if found and isinstance(found[0], kind)]


def _hold_connections() -> None:
    """Before fsspec forgets its own in the child, which it does at once."""
    _held.connected = _connected()


def _leave_connections() -> None:
    """In the child: let nothing close them, nor free them, for as long as the child lives."""
    for closing, found in _held.connected + _connected():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
        closing.detach()
    _held.connected = []


def _before() -> None:
    _finish_imports()
    _hold_connections()  # last, so that nothing connects between this and the fork


def _in_parent() -> None:
    _held.connected = []


def _in_child() -> None:
    _forget_imports()
    _leave_connections()
    _renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
