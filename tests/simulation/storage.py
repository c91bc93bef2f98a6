"""A place in memory that keeps the protocol's promises and nothing more: what is not synced may be lost.

``Shared`` is the place, ``SimulatedStorage`` one process's handle on it. A handle without a process belongs to
whoever looks from outside: nothing happens to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from icechunk_arrow.errors import (
    AlreadyExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icechunk_arrow.storage.port import (
    Capabilities,
    ObjectInfo,
    Storage,
    check_key,
    check_range,
    check_size,
    content_token,
    joined,
)
from tests.simulation.world import Died

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from icechunk_arrow.storage.port import Token, Writable
    from tests.simulation.world import Process, World

__all__ = ["URL", "Shared", "SimulatedStorage"]

T = TypeVar("T")
URL = "sim://place"


@dataclass(frozen=True, slots=True)
class Item:
    """One object."""

    data: bytes
    modified: datetime
    owner: Process | None = None
    handle: int = 0
    before: Item | None = None
    """What a power cut brings back, where this is not synced."""

    @property
    def is_durable(self) -> bool:
        return self.owner is None


class Shared:
    """What all handles see."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, Item] = {}
        self.ever: dict[str, bytes] = {}
        """All that was ever put under the names of snapshots; nothing of that is lost here."""
        self.removed: list[tuple[int, str, Item | None]] = []
        """When keys were made or removed, and what was there before: for listings that are old."""
        self.watch: Callable[[str, bytes | None, bytes], None] = lambda *_: None
        self.handles = 0
        self.is_being_made = False

    def set(self, key: str, item: Item) -> None:
        before = self.objects.get(key)
        self.removed.append((self.world.tick, key, before))
        self.objects[key] = item
        if key.startswith("s/"):
            self.ever.setdefault(key, item.data)
        elif (key.startswith("refs/") or key == "state.json") and not self.is_being_made:
            self.watch(key, None if before is None else before.data, item.data)

    def remove(self, key: str) -> None:
        before = self.objects.pop(key, None)
        if before is not None:
            self.removed.append((self.world.tick, key, before))

    def names_at(self, tick: int) -> list[str]:
        """Names as they were some time ago."""
        names = set(self.objects)
        for when, key, before in reversed(self.removed):
            if when < tick:
                break
            if before is None:
                names.discard(key)
            else:
                names.add(key)
        return sorted(names)

    def lose(self, process: Process | None) -> None:
        """Cut the power: of one machine, or of all."""
        for key, item in list(self.objects.items()):
            if item.owner is not None and process in {None, item.owner}:
                if item.before is not None:
                    self.objects[key] = item.before
                else:
                    del self.objects[key]
                self.removed.append((self.world.tick, key, item))

    def make_durable(self, handle: int | None) -> None:
        for key, item in self.objects.items():
            if item.owner is not None and handle in {None, item.handle}:
                self.objects[key] = Item(item.data, item.modified)


class SimulatedStorage(Storage):
    """One process's handle."""

    def __init__(self, shared: Shared, process: Process | None) -> None:
        self._shared = shared
        self._world = shared.world
        self._process = process
        shared.handles += 1
        self._number = shared.handles

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive_elsewhere, (id(self._world),)

    def __repr__(self) -> str:
        return f"<SimulatedStorage of {getattr(self._process, 'name', 'nobody')}>"

    @property
    def url(self) -> str:
        return URL

    @property
    def capabilities(self) -> Capabilities:
        schedule = self._world.schedule
        return Capabilities(
            create=True,
            replace=True,
            limited_listing=schedule.ordered,
            fast=True,
            lingering=schedule.lingering,
        )

    # -- what happens to a call

    def _read(self, method: str, key: str, effect: Callable[[], T]) -> T:
        return self._run(method, key, effect)[0]

    def _run(
        self, method: str, key: str, effect: Callable[[], T], again: Callable[[], T] | None = None
    ) -> tuple[T, dict[str, Any]]:
        if self._process is None:
            return effect(), {}
        if self._process.is_dead:
            raise Died
        decision = self._world.call(method, key)
        fault = decision.get("fault", "")
        match fault:
            case "fail":
                raise StorageError(f"{method} of {key} failed")
            case "interrupt":
                raise KeyboardInterrupt
            case "crash":
                self._die()
            case "late":
                self._world.later(decision["ticks"], lambda: _quietly(effect))
                raise StorageError(f"no answer to {method} of {key} came in time")
        found = effect()
        match fault:
            case "lost":
                raise StorageError(f"the answer to {method} of {key} was lost")
            case "interrupt after":
                raise KeyboardInterrupt
            case "crash after":
                self._die()
            case "double" if again is not None:
                return again(), decision
        return found, decision

    def _die(self) -> None:
        assert self._process is not None
        self._process.is_dead = True
        self._shared.lose(self._process)
        raise Died

    def _bytes(
        self, method: str, key: str, effect: Callable[[], tuple[bytes, T]]
    ) -> tuple[bytes, T]:
        (data, more), decision = self._run(method, key, effect)
        if decision.get("fault") == "cut":
            if key == "config.yaml":  # nothing in it tells, so the place has to notice
                raise StorageError(f"the answer to {method} of {key} was cut")
            data = data[: int(len(data) * decision["share"])]
        return data, more

    def _find(self, key: str) -> Item:
        item = self._shared.objects.get(check_key(key))
        if item is None:
            raise ObjectNotFoundError(f"there is no object {key!r} in {self.url}", key=key)
        return item

    # -- reading

    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        data, _ = self._bytes("get", key, lambda: (self._find(key).data, None))
        check_size(key, len(data), limit_bytes)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        part = slice(start, start + length)
        return self._bytes("get_range", key, lambda: (self._find(key).data[part], None))[0]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        def tail() -> tuple[bytes, int]:
            data = self._find(key).data
            return data[max(0, len(data) - length) :], len(data)

        return self._bytes("get_tail", key, tail)

    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        def versioned() -> tuple[bytes, Token]:
            data = self._find(key).data
            return data, content_token(data)

        data, token = self._bytes("get_versioned", key, versioned)
        check_size(key, len(data), limit_bytes)
        return data, token

    def exists(self, key: str) -> bool:
        return self._read("exists", key, lambda: check_key(key) in self._shared.objects)

    def time_of_put(self, key: str) -> datetime | None:
        return self._find(key).modified if self._world.schedule.tells_time else None

    def _names(self, method: str, prefix: str) -> list[str]:
        names, decision = self._run(method, prefix, lambda: sorted(self._shared.objects))
        if decision.get("fault") == "stale":
            names = self._shared.names_at(self._world.tick - decision["ticks"])
        return [name for name in names if name.startswith(prefix)]

    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        names = self._names("list", prefix)[:limit]
        items = [(name, self._shared.objects.get(name)) for name in names]
        return iter(
            ObjectInfo(
                key=name,
                size_bytes=0 if item is None else len(item.data),
                modified=None if item is None else item.modified,
            )
            for name, item in items
        )

    def _list_folders(self, prefix: str) -> Iterable[str]:
        names = (name[len(prefix) :] for name in self._names("list_folders", prefix))
        return {name.partition("/")[0] for name in names if "/" in name}

    # -- writing

    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        whole = joined(data)
        check_key(key)

        def put() -> None:
            item = self._shared.objects.get(key)
            if item is not None and item.data != whole:
                raise AlreadyExistsError(f"{key!r} is there already", key=key)
            if item is None:
                item = Item(whole, self._world.now(), self._process, self._number)
                self._shared.set(key, item)

        self._run("put", key, put)

    def sync(self) -> None:
        self._run("sync", "", lambda: self._shared.make_durable(self._number))

    def sync_everything(self) -> None:
        self._run("sync", "everything", lambda: self._shared.make_durable(None))

    def create(self, key: str, data: bytes) -> None:
        check_key(key)

        def create() -> None:
            if key in self._shared.objects:
                raise AlreadyExistsError(f"{key!r} is there already", key=key)
            self._shared.set(key, Item(bytes(data), self._world.now()))

        self._run("create", key, create, create)

    def replace(self, key: str, data: bytes, token: Token) -> None:
        check_key(key)

        def replace() -> None:
            item = self._shared.objects.get(key)
            if item is None or content_token(item.data) != token:
                raise PreconditionFailedError(f"{key!r} has changed", key=key)
            self._shared.set(key, Item(bytes(data), self._world.now()))

        self._run("replace", key, replace, replace)

    def overwrite(self, key: str, data: bytes) -> None:
        check_key(key)

        def overwrite() -> None:
            before = self._shared.objects.get(key)
            owner, number = self._process, self._number
            item = Item(bytes(data), self._world.now(), owner, number, before)
            self._shared.set(key, item)

        self._run("overwrite", key, overwrite)

    def delete(self, keys: Iterable[str]) -> None:
        names = [check_key(key) for key in keys]

        def delete() -> None:
            for name in names:
                self._shared.remove(name)

        self._run("delete", " ".join(names), delete)


def _quietly(effect: Callable[[], object]) -> None:
    """Carry out what nobody waits for any more."""
    try:
        effect()
    except StorageError:
        pass
    except AlreadyExistsError:
        pass


worlds: dict[int, Shared] = {}
"""Where pickles of handles find their places again."""


def _arrive_elsewhere(world: int) -> SimulatedStorage:
    """Open the place in the process that unpickles a handle."""
    shared = worlds[world]
    running = shared.world.running
    assert running is not None
    return SimulatedStorage(shared, running.process)
