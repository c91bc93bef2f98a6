"""Servers for the tests: versitygw, an S3 server that keeps objects as files; and what small HTTP servers share.

Owns where versitygw's program comes from, how it is started, and that it never outlives the tests; and how a
test runs a server of its own in a thread. What those answer stands in modules of their own.
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
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "Handler",
    "S3Server",
    "ServerUnavailableError",
    "find_versitygw",
    "listening",
    "s3_server",
    "served",
]

MODULE = "github.com/versity/versitygw"
VERSION = "v1.8.0"
BUCKET = "test-bucket"
_BUILD_SECONDS = 1200
_START_SECONDS = 30
_PR_SET_PDEATHSIG = 1


class Handler(BaseHTTPRequestHandler):
    """Answers requests on connections that stay open, without a word in the log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for somebody to acknowledge its head

    def log_message(self, *_: object) -> None:
        """Be quiet."""

    def received(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer."""
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(
        self, status: int, headers: Mapping[str, str], body: bytes = b"", sent: int | None = None
    ) -> None:
        """Send an answer; only so many bytes of its body, if ``sent`` says so, and then no more."""
        given = {name.lower() for name in headers}
        length = {} if "content-length" in given else {"Content-Length": str(len(body))}
        self.begin(status, {**headers, **length})
        if self.command == "HEAD":
            return
        self.send(body[:sent])
        if sent is not None:
            self.close_connection = True

    def send_without_end(self, announced: int | None) -> None:
        """Answer with zeros for as long as somebody takes them, whatever was announced."""
        sizes = {"Transfer-Encoding": "chunked"}
        piece = b"%x\r\n%s\r\n" % (1 << 20, bytes(1 << 20))
        if announced is not None:
            sizes, piece = {"Content-Length": str(announced)}, bytes(1 << 20)
        self.begin(200, {"ETag": '"endless"', **sizes})
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            while True:
                self.wfile.write(piece)

    def send(self, data: bytes) -> None:
        """Send bytes, to whoever is still there."""
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Be quiet where a client leaves early."""


@contextlib.contextmanager
def listening(handler: Any, state: object = None) -> Iterator[str]:
    """Run a server on a free port of this machine, and give its address; a handler finds ``state`` in itself."""
    if state is not None:
        handler = type(handler.__name__, (handler,), {"state": state})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Folder(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Be quiet."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder on a static host, as Python has one: read-only, without ranges, and nothing to list."""
    with listening(partial(_Folder, directory=str(folder))) as url:
        yield url


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

    def find_object(self, path: str) -> bytes | None:
        """The object of a request's path."""
        try:
            return (self.folder / unquote(urlsplit(path).path)[1:]).read_bytes()
        except OSError:
            return None

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
