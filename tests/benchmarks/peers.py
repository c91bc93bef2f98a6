"""A peer in a process of its own, with an interpreter of its own, spoken to in lines of JSON.

Owns the process and the protocol: ``{"call": name, ...}`` goes in, ``{"result": ...}`` or ``{"error": ...}``
comes back. Times are taken over there, so the pipe costs nothing. A fresh process for each measurement is the
same with another module: memory and first times are only to be had in a new one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["Peer", "PeerError", "answer_calls", "start_icechunk", "start_worker"]

_ROOT = Path(__file__).parents[2]
_ICECHUNK = "tests.benchmarks.peer_icechunk"
_WORKER = "tests.benchmarks.worker"


class PeerError(Exception):
    """The peer did not start, or could not do what it was asked."""


class Peer:
    """A running peer; every call waits for its answer."""

    def __init__(self, python: str, module: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- a pipe would fill up, and stop it
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=_ROOT,
        )
        self.versions: str = self("versions")

    def __call__(self, name: str, **arguments: Any) -> Any:
        """Have the peer do something, and give what it answers."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise PeerError(said[-1] if said else f"it ended with {process.returncode}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{name}: {answer['error']}")
        return answer["result"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process = self._process
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe is not None:
                pipe.close()
        process.wait(timeout=60)


def start_icechunk(python: str | None) -> Peer:
    """Start icechunk; ``PeerError`` says why it cannot be measured."""
    chosen = python or sys.executable
    try:
        return Peer(chosen, _ICECHUNK)
    except (PeerError, OSError) as error:
        raise PeerError(f"{chosen} cannot run icechunk: {error}") from error


def start_worker() -> Peer:
    """Start a fresh process with our side; when this returns, everything is imported there."""
    return Peer(sys.executable, _WORKER)


def answer_calls(*functions: Callable[..., Any]) -> None:
    """Answer calls of these functions until the pipe ends: the other side's main loop."""
    calls = {call.__name__: call for call in functions}
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": calls[request.pop("call")](**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
