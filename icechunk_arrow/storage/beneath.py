# Strings and descriptors, not paths: pathlib costs more than these system calls.
# ruff: noqa: PTH114
"""Opening a file below a folder without ever being led out of it.

Owns the calls that refuse symbolic links on the way. Nothing is remembered between two calls and no
descriptor stays open: a link that is put there later is met by the next call, and no volume is kept
from being unmounted. Knows no keys and no places; raises plain ``OSError``.

- Where the kernel can do it (``openat2``, Linux from 5.6) one call opens the file and refuses links
  in the whole path. A folder that a person has named may itself be reached through links: only
  where that call meets one, the folder is opened as it is named, and the file beneath it.
- Elsewhere the way is walked, folder by folder.
- A pipe does not make anybody wait, and only a regular file is given back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from typing import Any

__all__ = ["leads_over_link", "open_beneath"]

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_SYS_OPENAT2 = 437
"""The same number on every architecture that Python runs on, Alpha excepted."""
_AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_AGAIN = frozenset({errno.EINTR, errno.EAGAIN})
_TRIES = 1000
"""The kernel asks for another try while somebody renames folders on the way."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _find_openat2() -> Any:
    """Find the system call; None where there is none, or where it is not let through."""
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.POINTER(_OpenHow),
        ctypes.c_size_t,
    )
    how = ctypes.pointer(_OpenHow(_FOLDER, 0, _RESOLVE_NO_SYMLINKS))
    descriptor = call(_SYS_OPENAT2, _AT_FDCWD, b"/", how, ctypes.sizeof(_OpenHow))
    if descriptor < 0:
        return None
    os.close(descriptor)
    return call


_openat2 = _find_openat2()
_PLAIN = ctypes.pointer(_OpenHow(_FLAGS, 0, _RESOLVE_NO_SYMLINKS))
_BENEATH = ctypes.pointer(_OpenHow(_FLAGS, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH))
_SIZE = ctypes.sizeof(_OpenHow)


def open_beneath(folder: str, path: str) -> tuple[int, os.stat_result]:
    """Open a regular file that stands below a folder, and give a descriptor and its facts.

    Parameters
    ----------
    folder
        An absolute path that ends with ``/``. It may be reached through links: somebody named it.
    path
        The file's path, which begins with ``folder``, without ``.`` and ``..`` parts.

    Raises
    ------
    OSError
        ``ELOOP`` for a symbolic link below the folder, ``EINVAL`` for what is no regular file.
    """
    if _openat2 is None:
        descriptor = _walk(folder, path)
    else:
        descriptor = _ask(_AT_FDCWD, path, _PLAIN)
        if descriptor == -errno.ELOOP:
            descriptor = _beneath(folder, path[len(folder) :])
        if descriptor < 0:
            raise OSError(-descriptor, os.strerror(-descriptor), path)
    try:
        facts = os.fstat(descriptor)
        _check_regular(facts, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, facts


def leads_over_link(folder: str, path: str) -> bool:
    """Whether one of the folders between a folder and a file below it is a symbolic link now."""
    place = folder.rstrip("/")
    for part in path[len(folder) :].split("/")[:-1]:
        place = f"{place}/{part}"
        if os.path.islink(place):
            return True
    return False


def _check_regular(facts: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)


def _ask(folder: int, path: str, how: Any) -> int:
    """Open a file with one call: a descriptor, or an error's number below zero."""
    name = os.fsencode(path)
    for _ in range(_TRIES):
        descriptor: int = _openat2(_SYS_OPENAT2, folder, name, how, _SIZE)
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in _AGAIN:
            return -number
    return -number


def _beneath(folder: str, rest: str) -> int:
    """Open a file beneath a folder that is opened as it is named."""
    above = os.open(folder, _FOLDER)
    try:
        return _ask(above, rest.lstrip("/"), _BENEATH)
    finally:
        os.close(above)


def _walk(folder: str, path: str) -> int:
    """Open a file folder by folder, where no call does it at once."""
    *parts, name = filter(None, path[len(folder) :].split("/"))
    above = os.open(folder, _FOLDER)
    try:
        for part in parts:
            _refuse_link(part, above, path)
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            os.close(above)
            above = below
        _refuse_link(name, above, path)
        return os.open(name, _FLAGS, dir_fd=above)
    finally:
        os.close(above)


def _refuse_link(name: str, above: int, path: str) -> None:
    """Say that a name is a link; systems differ in what they call it when it is opened."""
    if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
