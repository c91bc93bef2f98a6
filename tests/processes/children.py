"""Children that are forked, how one of them ends, and where one hangs.

Owns the fork of a process at a line that a thread comes to, what a child leaves in its log, and the wait for it.
A child that hangs writes where all its threads are, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import icechunk_arrow

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = [
    "SECONDS",
    "Child",
    "ForkAt",
    "end_if_it_hangs",
    "fork",
    "fork_and_go_on",
    "live",
    "new_log",
]

SECONDS = int(os.environ.get("ICECHUNK_ARROW_PATIENCE", "60"))
"""After so long something hangs; what waits for it has twice as long."""
_PACKAGE = str(Path(icechunk_arrow.__file__).parent)


class Child:
    """A process that was forked, and what it leaves."""

    def __init__(self, process: int, log: Path, told: str) -> None:
        self.process = process
        self._log = log
        self._told = told

    def wait(self) -> None:
        """Wait until it has ended well; say what it left, where it did not."""
        deadline = time.monotonic() + 2 * SECONDS + 30
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                assert code == 0, f"{self._told} ended with {code}:\n{self._log.read_text()}"
                self._log.unlink()
                return
            time.sleep(0.002)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        raise AssertionError(f"{self._told} hangs:\n{self._log.read_text()}")


def end_if_it_hangs(seconds: float) -> None:
    """Have this process say where all its threads are, and end, after so long; 0 is never.

    By an alarm, since the thread by which ``faulthandler`` waits would itself be missing in forked children.
    """
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    signal.alarm(round(seconds))


def live(log: Path, life: Callable[[], None], seconds: int = 2 * SECONDS) -> None:
    """Live as a forked child, and end there: after so long at the latest."""
    sys.settrace(None)
    code = 1
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 2)
        end_if_it_hangs(seconds)
        life()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def fork(folder: Path, told: str, life: Callable[[], None], seconds: int = 2 * SECONDS) -> Child:
    """Have a child live."""
    log = new_log(folder)
    process = os.fork()
    if not process:
        live(log, life, seconds)
    return Child(process, log, told)


def fork_and_go_on(log: Path, told: str) -> Child | None:
    """Fork; give the child to its parent, and None to itself."""
    process = os.fork()
    if process:
        return Child(process, log, told)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    end_if_it_hangs(2 * SECONDS)
    return None


def new_log(folder: Path) -> Path:
    """Make the file in which a child leaves what went wrong."""
    log = folder / "children" / os.urandom(8).hex()
    log.parent.mkdir(exist_ok=True)
    log.touch()
    return log


class ForkAt:
    """Counts the lines of the package that a thread comes to, and forks at one of them.

    Parameters
    ----------
    step
        Which of them, counted from 0.
    folder
        Where children leave their logs.
    life
        What a child does that lives in the middle of it; without, it goes on where it is, and the caller sees
        that it is another process.
    """

    def __init__(self, step: int, folder: Path, life: Callable[[], None] | None) -> None:
        self._step = step
        self._folder = folder
        self._life = life
        self.count = 0
        self.child: Child | None = None
        self.log: Path | None = None

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if frame.f_code.co_name == "__del__":
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            if self.count == self._step and self.child is None:
                self._fork(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            self.count += 1
        return self._line

    def _fork(self, where: str) -> None:
        if self._life is not None:
            self.child = fork(
                self._folder, f"a child that lives there, forked at {where},", self._life
            )
        else:
            self.log = new_log(self._folder)
            self.child = fork_and_go_on(self.log, f"a child that goes on, forked at {where},")
