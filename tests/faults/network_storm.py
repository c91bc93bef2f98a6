"""A storm on the network between a repository and all who use it: writers, readers, and what must hold afterwards.

Histories of random operations (`tests/replay`) are made by several writers through a proxy that spoils what passes
(`proxy.py`), in a bucket of a real S3 server, on either catalog, while readers look through every client that the
package has:

- ``storage.s3``: the repository, written and read; chunks packed, inline, and in files of their own
- ``storage.http``: the same files on a static host that serves ranges, read
- ``storage.fsspec``: the same bucket through a file system of which the package knows nothing (``foreign://``)
- ``storage.external``: virtual chunks, whose files stand in the bucket and on the web, allowed redirects included
- ``storage.table_files``: what DuckDB reads, from the bucket and from the web
- ``storage.source_files``: NetCDF files that are ingested, from the bucket and from the web
- the command line, which opens as the library does

What holds: whatever is asked is answered rightly or by an error of ours that names a file or place; nothing hangs.
What was acknowledged is in history, once and in order; what got an error is there wholly or not at all; what was
refused is not there. What was read is what was written. Afterwards whoever held a handle sees what is there.

What nobody can notice is not asked for (:func:`may`): flipped bits, and answers meant for another file, where no
checksum covers the bytes: `config.yaml`, listings, references over plain HTTP (over S3 the answer to a whole
object brings a checksum with it), and files of others that virtual chunks and ingests read. A file system of others
believes any range that comes; the ranges of what it reads here are sealed. It follows redirects, as an ingest does,
which is built on such: these two are never misled.
"""

from __future__ import annotations

import random
import re
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from icechunk_arrow import Repository, StorageSettings
from icechunk_arrow.storage.open import open_storage
from tests.faults.network_clients import (
    ENDURED,
    FOREIGN,
    LOOKS,
    Look,
    Reader,
    as_ours,
    ingested,
    listed,
    names_a_thing,
    register_foreign,
)
from tests.faults.proxy import AWAY, FaultProxy, Spoil, fault_proxy, seeded
from tests.ingest.files import weather_file
from tests.replay.checking import check
from tests.replay.model import source_bytes
from tests.replay.operations import array, perform
from tests.replay.running import begin
from tests.replay.writers import Writer
from tests.servers import s3_server
from tests.storage.web import Page, web

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.replay.writers import Place
    from tests.servers import S3Server

__all__ = ["RATES", "Figures", "Weather", "may", "storm"]

RATES: Mapping[Spoil, float] = {
    **dict.fromkeys(Spoil, 0.008),
    Spoil.SILENT: 0.001,
    Spoil.REDIRECTED: 0.001,
    Spoil.MISLED: 0.001,
    Spoil.STALE: 0.3,
}
"""What is an error at once is rarer than what another try overcomes, or nothing would ever come of anything."""
PERSISTENT = 0.04
SETTINGS = StorageSettings(
    durable=False,
    retry_tries=8,
    retry_backoff_seconds=0.01,
    retry_backoff_max_seconds=0.3,
    timeout_seconds=2,
)
HANGS_SECONDS = 300
_PAUSE_SECONDS = 0.3
"""So long readers leave the machine to the writers between two looks."""
_SEALED = re.compile(r"/[sitac]/[^/?]+(\?x-id=GetObject)?")
_REFERENCE = re.compile(r"/(refs/.*|state)\.json(\?x-id=GetObject)?")
_CONFUSING = frozenset({Spoil.FLIPPED, Spoil.OTHER_FILE})
_OF_RANGES = frozenset({Spoil.OTHER_RANGE, Spoil.WHOLE, Spoil.MISPLACED, Spoil.LONGER, Spoil.SHORT})


def may(spoil: Spoil, method: str, path: str, *, is_web: bool) -> bool:
    """Whether something may be done to a request: not, where nobody could notice that."""
    if "/ingested/" in path:
        return spoil not in _CONFUSING | _OF_RANGES | {Spoil.MISLED}
    if spoil in _CONFUSING:
        place = path.removeprefix(AWAY)
        sealed = _SEALED.search(place) is not None
        summed = not is_web and spoil is Spoil.FLIPPED and _REFERENCE.search(place) is not None
        return method == "GET" and (sealed or summed)
    return spoil is not Spoil.STALE or is_listing(method, path)


def is_listing(method: str, path: str) -> bool:
    """Whether a request asks S3 for a listing."""
    return method == "GET" and "list-type=2" in path


class _Pages(dict[str, Page]):
    """The files of a folder, as pages of a web server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def get(self, path: str, default: Any = None) -> Any:
        file = self._folder / unquote(urlsplit(path).path)[1:]
        try:
            return Page(data=file.read_bytes())
        except OSError:
            return default


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How bad the network is."""

    rates: Mapping[Spoil, float] = field(default_factory=lambda: RATES)
    persistent: float = PERSISTENT
    late_seconds: float = 3
    """More than all tries take: what was given up arrives all the same."""
    only: Callable[[str, str], bool] = lambda *_: True
    """Which requests are spoilt at all."""
    tries: int = SETTINGS.retry_tries
    """How often a request is sent."""


@dataclass(kw_only=True)
class Figures:
    """What a storm was."""

    snapshots: int = 0
    left_open: int = 0
    requests: int = 0
    spoilt: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class _Network:
    """The places, with the proxies before them."""

    server: S3Server
    prefix: str
    s3: FaultProxy
    web: FaultProxy
    foreign: FaultProxy
    """Before the S3 server too, for a client that follows redirects."""
    seed: int
    tries: int

    @property
    def proxies(self) -> tuple[FaultProxy, ...]:
        return self.s3, self.web, self.foreign

    @property
    def folder(self) -> Path:
        """Where the objects of this storm lie."""
        return self.server.folder / self.server.bucket / self.prefix

    @property
    def url(self) -> str:
        return f"{self.server.url}/{self.prefix}"

    @property
    def options(self) -> dict[str, Any]:
        """What leads through the proxy."""
        return {**self.server.storage_options, "endpoint_url": self.s3.endpoint}

    @property
    def web_url(self) -> str:
        return f"{self.web.endpoint}/{self.prefix}"

    def allowed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Where virtual chunks may be, under other paths of the web too."""
        return {
            f"{self.url}/virtual": options,
            f"{self.web_url}/virtual": None,
            f"{self.web.endpoint}{AWAY}/{self.prefix}/virtual": None,
        }

    def choices(self) -> dict[str, Any]:
        return {
            "storage_settings": replace(SETTINGS, retry_tries=self.tries),
            "authorize_virtual_chunk_access": self.allowed(self.options),
            "pickle_secrets": True,
        }

    def rise(self, weather: Weather) -> None:
        """Begin to spoil."""
        for number, proxy in enumerate(self.proxies):

            def fits(spoil: Spoil, method: str, path: str, proxy: FaultProxy = proxy) -> bool:
                if proxy is self.foreign and spoil is Spoil.MISLED:
                    return False
                is_web = proxy is self.web
                return weather.only(method, path) and may(spoil, method, path, is_web=is_web)

            proxy.late_seconds = weather.late_seconds
            proxy.plan = seeded(
                3 * self.seed + number, weather.rates, may=fits, persistent=weather.persistent
            )

    def calm(self) -> None:
        """Spoil nothing any more, and let everything arrive."""
        for proxy in self.proxies:
            proxy.plan = lambda *_: None
            proxy.settle()

    def readers(self) -> list[Reader]:
        """One for each client."""
        choices = self.choices()
        slow = {"read_timeout": 2, "connect_timeout": 2, "retries": {"total_max_attempts": 2}}
        foreign = {
            **self.server.storage_options,
            "endpoint_url": self.foreign.endpoint,
            "config_kwargs": slow,
        }
        address = f"{FOREIGN}://{self.server.bucket}/{self.prefix}"

        def opened(url: str, options: Mapping[str, Any]) -> Callable[[], Repository]:
            return lambda: Repository.open(url, options, **choices)

        bucket, site = opened(self.url, self.options), opened(self.web_url, {})
        return [
            Reader("s3", ("values", "tables"), bucket),
            Reader("http", ("values", "tables"), site, lists=False),
            Reader("foreign", ("values", "tables"), opened(address, foreign)),
            Reader("duckdb over s3", ("queried",), bucket),
            Reader("duckdb over http", ("queried",), site, lists=False),
            Reader("command", ("listed",), url=self.url, options=self.options),
        ]


class _Storm:
    """Threads that go on until the writers are done, and what came of them."""

    def __init__(
        self, net: _Network, place: Place, count: int, *, readers: Collection[str] | None
    ) -> None:
        self.net, self.place, self.count = net, place, count
        self.figures = Figures()
        self.looks: list[Look] = []
        self.failures: list[str] = []
        self.done = threading.Event()
        everybody = net.readers()
        self.readers = [each for each in everybody if readers is None or each.name in readers]
        self.ingests = readers is None or "ingest" in readers
        self.writers = [
            Writer(
                replace(
                    place,
                    options=net.options,
                    choices=net.choices(),
                    endured=ENDURED,
                    source_url=f"{net.web_url if number % 2 else net.url}/virtual/bytes",
                ),
                net.seed,
                number,
            )
            for number in range(3)
        ]
        self._refer()
        self.copied = ingested([f"{net.url}/ingested/w.nc"], net.server.storage_options)

    def _refer(self) -> None:
        """Commit virtual chunks in both places, of which there would be few at first.

        Two arrays in each, of one shape: a range that is not the one asked for is then as long as it.
        """
        session = self.place.open().writable_session("main")
        operations = []
        for number in range(4):
            path, writer = f"/v{number}", self.writers[number % 2]
            chunks = [[[n], 32 * n + number] for n in range(24)]
            for operation in (
                array(path, (96,), (4,), "int32"),
                {"op": "refer", "path": path, "chunks": chunks},
            ):
                perform(session, operation, writer.place.source)
                operations.append(operation)
        session.commit("references", {"replay": {"name": "references", "operations": operations}})
        (Path(self.place.folder) / "acknowledged-references").write_text('"references"\n')

    def run(self, weather: Weather) -> None:
        writing = [self._thread(self._write, each) for each in self.writers]
        reading = [self._thread(self._read, each) for each in self.readers]
        if self.ingests:
            reading += [
                self._thread(self._ingest, f"{self.net.url}/ingested/w.nc", self.net.options),
                self._thread(self._ingest, f"{self.net.web_url}/ingested/w.nc", {}),
            ]
        self.net.rise(weather)
        for thread in writing + reading:
            thread.start()
        self._join(writing)
        self.done.set()
        self._join(reading)
        self.net.calm()

    def _thread(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*given)
            except BaseException:
                self.failures.append(f"{given}: {traceback.format_exc()}")

        return threading.Thread(target=guarded, daemon=True, name=f"{work.__name__} {given[0]}")

    def _join(self, threads: list[threading.Thread]) -> None:
        end = time.monotonic() + HANGS_SECONDS + 10 * self.count
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                frames = sys._current_frames()
                stack = "".join(traceback.format_stack(frames[thread.ident or 0]))
                raise AssertionError(f"{thread.name} hangs:\n{stack}")

    def _write(self, writer: Writer) -> None:
        taking = writer.steps()
        for _ in range(self.count):
            next(taking)

    def _read(self, reader: Reader) -> None:
        rng = random.Random(f"{self.net.seed} {reader.name}")
        self._go_on(reader.name, lambda: self._look(reader, rng))

    def _look(self, reader: Reader, rng: random.Random) -> None:
        look = reader.look(rng)
        if look is not None:
            self.looks.append(look)

    def _ingest(self, url: str, options: Mapping[str, Any]) -> None:
        def copy() -> None:
            assert ingested([url], options) == self.copied

        self._go_on(f"ingest over {url.partition(':')[0]}", copy)

    def _go_on(self, name: str, act: Callable[[], None]) -> None:
        """Act as long as writers write, and until it went well once; what is raised is ours."""
        while not (self.done.is_set() and self.figures.looks[name]):
            try:
                act()
            except Exception as error:
                ours = as_ours(error)
                if ours is None:
                    raise
                self._judge(name, ours)
            else:
                self.figures.looks[name] += 1
            self.done.wait(_PAUSE_SECONDS)

    def _judge(self, name: str, error: Exception) -> None:
        kind = type(error).__name__
        assert isinstance(error, ENDURED) or kind == "CommandError", f"{name}: {error!r}"
        assert names_a_thing(error), f"{name}: {error!r} names nothing"  # type: ignore[arg-type]
        self.figures.errors[f"{name}: {kind}"] += 1

    def judge(self) -> Figures:
        """Compare, where the network is good."""
        assert not self.failures, "\n".join(self.failures)
        net, figures = self.net, self.figures
        for writer in self.writers:
            for error in writer.errors:
                self._judge("writer", error)
        local = replace(
            self.place,
            url=str(net.folder),
            options={},
            choices={"authorize_virtual_chunk_access": net.allowed(net.server.storage_options)},
        )
        found = check(local, [look.snapshot_id for look in self.looks])
        plain, known = local.open(), {}
        for look in self.looks:
            key = look.way, look.snapshot_id
            if key not in known:
                known[key] = self._plainly(plain, *key)
            assert look.answer == known[key], f"{look.way} of {look.snapshot_id}"
        tip = plain.lookup_branch("main")
        handles = {each.name: each.repo for each in self.readers}
        handles |= {f"writer {each.number}": each._repo for each in self.writers}
        for name, repo in handles.items():
            if repo is not None:
                assert repo.lookup_branch("main") == tip, f"the old handle of {name}"
        for proxy in net.proxies:
            assert not proxy.strayed, proxy.strayed
            figures.requests += len(proxy.passed)
            figures.spoilt.update({spoil.name: n for spoil, n in proxy.spoilt.items()})
        figures.snapshots = found.snapshots
        figures.left_open = len(list(Path(self.place.folder).glob("open-*")))
        return figures

    def _plainly(self, repo: Repository, way: str, snapshot_id: str) -> Any:
        if way == "listed":
            return listed(str(self.net.folder), {}, snapshot_id)
        return LOOKS[way](repo, snapshot_id)


def storm(
    folder: Path,
    seed: int,
    count: int,
    *,
    catalog: str = "branches",
    server: S3Server | None = None,
    weather: Weather | None = None,
    readers: Collection[str] | None = None,
) -> Figures:
    """Let three writers take so many steps each through a bad network, beside readers; judge what came of it.

    Without names of ``readers`` there are all.
    """
    weather = weather or Weather()
    register_foreign()
    prefix = secrets.token_hex(8)
    with ExitStack() as stack:
        if server is None:
            (folder / "server").mkdir()
            server = stack.enter_context(s3_server(folder / "server"))
        bucket = server.folder / server.bucket
        site = stack.enter_context(web())
        site.pages = _Pages(bucket)
        s3, foreign = (
            stack.enter_context(
                fault_proxy(
                    server.endpoint,
                    lambda *_: None,
                    is_listing=is_listing,
                    whole=server.find_object,
                    chance=random.Random(f"{seed} {name}"),
                )
            )
            for name in ("s3", "foreign")
        )
        before_site = stack.enter_context(
            fault_proxy(site.endpoint, lambda *_: None, chance=random.Random(f"{seed} web"))
        )
        net = _Network(server, prefix, s3, before_site, foreign, seed, weather.tries)
        plain = open_storage(net.url, server.storage_options)
        plain.put("virtual/bytes", source_bytes(seed))
        plain.put("ingested/w.nc", weather_file(folder / "w.nc").read_bytes())
        place = begin(folder, seed, catalog, net.url, **server.storage_options)
        try:
            under_way = _Storm(net, place, count, readers=readers)
            under_way.run(weather)
            return under_way.judge()
        except BaseException as error:
            error.add_note(f"seed {seed}, catalog {catalog!r}, count {count}")
            raise
