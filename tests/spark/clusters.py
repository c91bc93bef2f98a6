"""Spark of other kinds than ``local[2]``, started for a test and ended with it; and killing parts of it.

Drivers run in processes of their own: a process has one Spark session, and the tests have theirs. Only processes
that a test started are ever killed: they are found below the driver's process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import icechunk_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "Driver",
    "connect_server",
    "package_zip",
    "parent_of",
    "processes_below",
    "standalone",
    "start_driver",
    "wait_for",
]

ROOT = Path(__file__).parents[2]
_SECONDS = 280
_HOME = Path(pyspark.__file__).parent


def package_zip(folder: Path) -> Path:
    """Pack this package for executors: what ``--py-files`` takes."""
    path = folder / "icechunk_arrow.zip"
    root = Path(icechunk_arrow.__file__).parent
    with zipfile.ZipFile(path, "w") as file:
        for each in sorted(root.rglob("*.py")):
            file.write(each, Path("icechunk_arrow") / each.relative_to(root))
    return path


def environment(**more: str) -> dict[str, str]:
    """What every driver and worker needs to know."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        **more,
    }


def parent_of(pid: int) -> int:
    """Give the process that a process is a child of."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_below(root: int) -> dict[int, str]:
    """Give the command lines of all processes below one."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            above = parent_of(int(folder.name))
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parents[int(folder.name)] = above
            commands[int(folder.name)] = command
    found = {}
    for pid, command in commands.items():
        above = parents[pid]
        while above and above != root:
            above = parents.get(above, 0)
        if above == root:
            found[pid] = command
    return found


def wait_for(condition: Callable[[], Any], what: str, seconds: float = _SECONDS) -> Any:
    """Wait until something is so, and give it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {seconds} s")


class Driver:
    """A driver in a process of its own: it runs a function of ``tests.spark.drivers``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def output(self) -> str:
        """What it said so far."""
        return self.log.read_text()

    def wait(self, seconds: float = _SECONDS) -> str:
        """Wait for a good end, and give what it said."""
        code = self.process.wait(seconds)
        assert code == 0, f"the driver ended with {code}:\n{self.output()[-4000:]}"
        return self.output()

    def kill(self) -> None:
        """Kill it with everything below it, hard."""
        for pid in [self.pid, *processes_below(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


@contextlib.contextmanager
def start_driver(
    folder: Path, job: str, *arguments: str, settings: Mapping[str, str] | None = None, **more: str
) -> Iterator[Driver]:
    """Run a job of ``tests.spark.drivers`` in a fresh process, with Spark set as it should be."""
    log = folder / f"{job}-{time.monotonic_ns()}.log"
    chosen = [f"{name}={value}" for name, value in (settings or {}).items()]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.drivers", job, *arguments, "--", *chosen],
            cwd=ROOT,
            env=environment(**more),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
    driver = Driver(process, log)
    try:
        yield driver
    finally:
        if process.poll() is None:
            driver.kill()


def free_port() -> int:
    """Find a port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _server(command: list[str], log: Path, port: int, **more: str) -> Iterator[int]:
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment(**more), stdout=out, stderr=subprocess.STDOUT, cwd=log.parent
        )
    try:
        wait_for(lambda: _answers(port) or process.poll() is not None, f"{command[0]} to listen")
        assert process.poll() is None, log.read_text()[-3000:]
        yield process.pid
    finally:
        for pid in [process.pid, *processes_below(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


def _answers(port: int, host: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 0.2):
        return True
    return False


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


def _class(name: str, *arguments: str) -> list[str]:
    return [
        str(_HOME / "bin" / "spark-class"),
        name,
        *arguments,
    ]


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Run a master and two workers of one core, on two addresses; give its URL, and the workers' processes."""
    port = free_port()
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        master = _class(
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        stack.enter_context(_server(master, folder / "master.log", port))
        workers = {}
        for host in ("127.0.0.2", "127.0.0.3"):
            log = folder / f"worker-{host}.log"
            command = _class(
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / host),
                f"spark://127.0.0.1:{port}",
            )
            workers[host] = stack.enter_context(_server(command, log, port, SPARK_LOCAL_IP=host))
            wait_for(
                partial(_says, log, "Successfully registered with master"),
                f"the worker on {host}",
            )
        yield f"spark://127.0.0.1:{port}", workers


@contextlib.contextmanager
def connect_server(folder: Path, **settings: str) -> Iterator[str]:
    """Run a Spark Connect server, whose Python workers do not have this package; give its URL."""
    port = free_port()
    folder.mkdir(exist_ok=True)
    chosen = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **settings,
    }
    command = [
        str(_HOME / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *[part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")],
        "spark-internal",
    ]
    with _server(command, folder / "connect.log", port):
        yield f"sc://127.0.0.1:{port}"
