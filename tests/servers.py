"""Real servers for the tests: versitygw, an S3 server that keeps objects as files.

Owns where its program comes from, how it is started, and that it never outlives the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["S3Server", "ServerUnavailableError", "find_versitygw", "s3_server"]

MODULE = "github.com/versity/versitygw"
VERSION = "v1.8.0"
BUCKET = "test-bucket"
_BUILD_SECONDS = 1200
_START_SECONDS = 30
_PR_SET_PDEATHSIG = 1


class ServerUnavailableError(Exception):
    """The server's program is not there and cannot be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server."""

    endpoint: str
    key: str
    secret: str
    folder: Path
    """Where its buckets lie: ``folder / bucket / key`` is an object."""
    bucket: str = BUCKET

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{self.bucket}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What s3fs needs to talk to it."""
        return {
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }


def find_versitygw() -> Path:
    """Find the program, or build it with Go into the cache folder."""
    cache = Path(
        os.environ.get("ICECHUNK_ARROW_CACHE") or Path(__file__).resolve().parent.parent / ".cache"
    )
    built = cache / f"versitygw-{VERSION}" / "versitygw"
    found = shutil.which("versitygw")
    for path in (built, Path.home() / "go" / "bin" / "versitygw", Path(found) if found else None):
        if path is not None and path.is_file() and _has_version(path):
            return path
    go = shutil.which("go") or (
        "/usr/local/go/bin/go" if Path("/usr/local/go/bin/go").is_file() else None
    )
    if go is None:
        raise ServerUnavailableError(f"neither versitygw {VERSION} nor Go to build it is installed")
    built.parent.mkdir(parents=True, exist_ok=True)
    with (built.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.is_file():
            _build(go, built.parent)
    return built


def _build(go: str, folder: Path) -> None:
    command = [go, "install", f"{MODULE}/cmd/versitygw@{VERSION}"]
    environment = {**os.environ, "GOBIN": str(folder)}
    try:
        subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=_BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise ServerUnavailableError(
            f"{' '.join(command)} failed: {error.stderr.decode()[-2000:]}"
        ) from error


def _has_version(path: Path) -> bool:
    """Whether the build facts in a Go program name our version."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(f"mod\t{MODULE}\t{VERSION}".encode()) >= 0


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server on a free port of this machine until the block ends, or this process."""
    program = find_versitygw()
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)
    key, secret = secrets.token_hex(10), secrets.token_hex(20)
    with (folder / "versitygw.log").open("wb") as log:
        process, port = _start(
            program, data, {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}, log
        )
        try:
            yield S3Server(endpoint=f"http://127.0.0.1:{port}", key=key, secret=secret, folder=data)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(
    program: Path, data: Path, keys: dict[str, str], log: Any
) -> tuple[subprocess.Popen[bytes], int]:
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    for _ in range(5):  # the free port may be taken before the server gets it
        port = _free_port()
        process = subprocess.Popen(
            [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", data],
            env={**os.environ, **keys},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl, no locks
        )
        if _answers(process, port):
            return process, port
        process.kill()
        process.wait()
    raise ServerUnavailableError(f"versitygw does not start; see {log.name}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
        except urllib.error.HTTPError as error:  # it refuses us: it is there
            error.close()
            return True
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False
