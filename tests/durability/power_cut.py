"""A disk that keeps only what was synced, worked out from system calls.

Owns the strict reading of what the system promises: a file's content stays when it was synced after its last
write, a name when its folder was synced after the name was made, everything when the file system was. Knows the
layout of a repository: what makes an entry, and what an entry reaches.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.files import Files
from icechunk_arrow.formats.layout import STATE_KEY, FileKind, chunk_key, key_of
from icechunk_arrow.storage.local import LocalStorage
from tests.durability.tracing import RETURNED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.durability.tracing import Call

__all__ = ["Disk", "Loss"]

_WRITES = {
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev2",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "sendfile",
}
_ENTRIES = ("refs/", STATE_KEY, "config.yaml")


@dataclass(frozen=True, order=True)
class Loss:
    """Something that a power cut at a moment would take although it should stay."""

    moment: str
    """The entry that is about to get its name, or a call that has returned."""
    path: str
    what: str


@dataclass(eq=False)
class _File:
    written: int = -1
    synced: int = -1
    data: list[str] = field(default_factory=list)


class Disk:
    """Files below a folder, and which of them would be there after a power cut."""

    def __init__(self, top: Path) -> None:
        self._top = f"{top}/"
        self._files: dict[str, _File] = {}
        self._made: dict[str, int] = {}
        """When names came to be; those from before the trace are durable."""
        self._folders: dict[str, int] = defaultdict(lambda: -1)
        """When folders were synced last, that is when a sync began that ended well."""
        self._everything = -1
        self._now = 0
        self.roots: set[str] = set()
        self.entries: list[str] = []
        """Paths of entries that got their names."""
        self.losses: set[Loss] = set()
        for folder, _, names in os.walk(top):
            self._files.update({f"{folder}/{name}": _File() for name in names})

    def run(self, calls: Iterable[Call]) -> Disk:
        """Follow system calls."""
        for call in calls:
            if call.ended is None:
                self._begin(call)
                continue
            self._now = call.ended
            if call.name in _WRITES:
                self._write(call)
            elif call.name == "sync":
                self._everything = max(self._everything, call.began)
            elif call.name in {"fsync", "fdatasync", "syncfs"}:
                self._sync(call)
            else:
                self._name(call)
        return self

    def _ours(self, path: str) -> bool:
        return path.startswith(self._top)

    def _begin(self, call: Call) -> None:
        if "access" in call.name and RETURNED in call.texts:
            for path in self.entries:
                self._check("a call has returned", path)
        if call.name.startswith(("link", "rename")):
            source, target = call.paths[:2]
            key = self._entry_key(target)
            if key is not None and source in self._files:
                self._check_reached(key, source, target)

    def _write(self, call: Call) -> None:
        file = self._files.get(call.descriptors[0]) if call.descriptors else None
        if file is not None:
            file.written = self._now
            file.data += call.texts

    def _sync(self, call: Call) -> None:
        (path,) = call.descriptors[:1]
        if call.name == "syncfs":
            self._everything = max(self._everything, call.began)
        elif path in self._files:
            file = self._files[path]
            file.synced = max(file.synced, call.began)
        else:
            self._folders[path] = max(self._folders[path], call.began)

    def _name(self, call: Call) -> None:
        paths = call.paths
        if not any(map(self._ours, paths)):
            return
        if call.name.startswith("open") or call.name == "creat":
            if "O_CREAT" in call.arguments and paths[0] not in self._files:
                self._files[paths[0]] = _File(written=self._now)
                self._made[paths[0]] = self._now
        elif call.name.startswith("mkdir"):
            self._made[paths[0]] = self._now
        elif call.name.startswith(("link", "rename")):
            source, target = paths[:2]
            self._files[target] = self._files[source]
            self._made[target] = self._now
            if call.name.startswith("rename"):
                del self._files[source]
            if self._entry_key(target) is not None:
                self.entries.append(target)
        elif call.name.startswith("unlink"):
            self._files.pop(paths[0], None)

    def _entry_key(self, path: str) -> str | None:
        """Give the key of an entry, for which the root is looked up that it is below."""
        if not self._ours(path):
            return None
        for root in self.roots or self._find_roots(path):
            if path.startswith(f"{root}/"):
                key = path[len(root) + 1 :]
                return key if key.startswith(_ENTRIES) else None
        return None

    @staticmethod
    def _find_roots(path: str) -> list[str]:
        for mark in ("/refs/", f"/{STATE_KEY}", "/config.yaml"):
            if mark in path:
                return [path[: path.rindex(mark)]]
        return []

    def _is_kept(self, path: str) -> str | None:
        """Say what of a file would not be there: its content, or a name on the way to it."""
        file = self._files.get(path)
        if file is None:
            return "it is not there"
        if file.written >= max(file.synced, self._everything):
            return "its content"
        while self._ours(path):
            above = str(Path(path).parent)
            if self._made.get(path, -1) >= max(self._folders[above], self._everything, 0):
                return f"the name {path}"
            path = above
        return None

    def _check(self, moment: str, path: str) -> None:
        lost = self._is_kept(path)
        if lost is not None:
            self.losses.add(Loss(moment, path, lost))

    def _check_reached(self, key: str, source: str, target: str) -> None:
        root = target[: -len(key) - 1]
        file = self._files[source]
        if file.written >= max(file.synced, self._everything):
            self.losses.add(Loss(key, target, "its content"))
        data = "".join(file.data)
        for reached in sorted(_reached_by(root, key, data)):
            self._check(key, f"{root}/{reached}")


def _reached_by(root: str, key: str, data: str) -> set[str]:
    """Give the keys of everything that a reader of an entry goes on to."""
    if key.startswith("refs/"):
        entry = json.loads((Path(root) / key).read_text())
        return _reached_by_snapshot(root, entry["snapshot"])
    if key == STATE_KEY:
        state = json.loads(data)
        place = state.get("store_root") or root
        if place != root:
            return set()
        found = (each["snapshot-id"] for each in state["snapshots"])
        return set().union(*(_reached_by_snapshot(root, snapshot) for snapshot in found))
    return set()


def _reached_by_snapshot(root: str, snapshot_id: str) -> set[str]:
    files = Files(LocalStorage(root), ByteCache(1 << 20))
    snapshot = files.read_snapshot(snapshot_id)
    found = {key_of(FileKind.STRUCTURE, snapshot_id)}
    if snapshot.facts.history:
        found.add(key_of(FileKind.TRANSACTION, snapshot_id))
    for node in snapshot.nodes():
        if node.attributes_ref is not None:
            found.add(key_of(FileKind.ATTRIBUTES, node.attributes_ref.identifier))
    for name in snapshot.manifest_sizes:
        found.add(key_of(FileKind.MANIFEST, name))
        names = files.read_manifest(name)["chunk_file"].to_pylist()
        found.update(chunk_key(each) for each in names if each is not None and ":" not in each)
    return found
