"""Running Python under ``strace``, and its system calls as values.

Owns the call of the tracer and the parsing of its lines; knows nothing of what the calls mean.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.promises import required

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["RETURNED", "Call", "returned", "run_traced"]

RETURNED = "/a call of ours has returned"
"""Asked for by the traced program to leave a mark among its system calls."""
_CALLS = (
    "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,copy_file_range,"
    "sendfile,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,fsync,fdatasync,syncfs,sync,"
    "unlink,unlinkat,rmdir,access,faccessat,faccessat2"
)
_LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)")
_DESCRIPTOR = re.compile(r"(?:-?\d+|AT_FDCWD)<([^>]*)>")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_UNFINISHED = " <unfinished ...>"
_LONGEST = 1 << 17
_MOST_SECONDS = 400


def returned() -> None:
    """Say in the trace that a call of the package has returned, so that its promise holds by now."""
    os.access(RETURNED, os.F_OK)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A system call, as it begins or as it has ended well."""

    name: str
    arguments: str
    began: int
    """When it began, in lines of the trace."""
    ended: int | None = None
    """When it had ended; None while it goes on."""

    @cached_property
    def descriptors(self) -> list[str]:
        """The paths of the descriptors that it was given."""
        return _DESCRIPTOR.findall(self._without_texts)

    @cached_property
    def _without_texts(self) -> str:
        return _TEXT.sub('""', self.arguments)

    @cached_property
    def texts(self) -> list[str]:
        """The texts that it was given, decoded."""
        found = _TEXT.findall(self.arguments)
        return [text.encode("latin-1").decode("unicode_escape") for text in found]

    @cached_property
    def paths(self) -> list[str]:
        """The paths that it was given, each below the descriptor before it."""
        if self.name in {"open", "creat", "rename", "link", "mkdir", "unlink", "rmdir", "access"}:
            return list(self.texts)
        return [
            os.path.normpath(f"{folder}/{name}") if not name.startswith("/") else name
            for folder, name in zip(self.descriptors, self.texts, strict=False)
        ]


def _calls(lines: Iterator[str]) -> Iterator[Call]:
    """Give each call twice: when it begins, and when it has ended without an error."""
    open_calls: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines):
        parsed = _LINE.match(line.rstrip("\n"))
        if parsed is None:
            continue
        pid, name, rest, resumed, end = parsed.groups()
        if resumed is not None:
            if pid not in open_calls:
                continue
            name, begun, began = open_calls.pop(pid)
            arguments = begun + end
        else:
            began, arguments = number, rest
            yield Call(name=name, arguments=rest, began=number)
            if rest.endswith(_UNFINISHED):
                open_calls[pid] = name, rest.removesuffix(_UNFINISHED), number
                continue
        results = _RESULT.findall(arguments)
        if results and int(results[-1]) >= 0:
            yield Call(name=name, arguments=arguments, began=began, ended=number)


def run_traced(arguments: Sequence[str], trace: Path, *, data: bool = True) -> Iterator[Call]:
    """Run Python, and all processes that it starts, under the tracer; give what they asked of the system.

    Without ``data`` what is written is left out of the trace: a Java machine writes much.
    """
    strace = shutil.which("strace")
    reason = "strace is not installed, which shows what was synced and when"
    if strace is not None:
        found = subprocess.run(
            [strace, "-f", "-o", os.devnull, "true"], check=False, capture_output=True
        )
        if found.returncode:
            reason = f"strace may not trace here: {found.stderr.decode(errors='replace').strip()}"
            strace = None
    if strace is None:
        assert not required("strace"), reason
        pytest.skip(reason)
    command = [
        strace,
        "-f",
        "--seccomp-bpf",
        "-y",
        "-qq",
        "-e",
        "signal=none",
        "-e",
        f"trace={_CALLS}",
    ]
    command += ["-s", str(_LONGEST if data else 0), "-o", str(trace), sys.executable, *arguments]
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        timeout=_MOST_SECONDS,
    )
    assert not done.returncode, done.stderr.decode(errors="replace")[-4000:]
    with trace.open(encoding="latin-1") as lines:
        yield from _calls(lines)
