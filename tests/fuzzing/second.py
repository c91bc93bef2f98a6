"""What the second reader says of a sample in which files are others.

It was made from schemas/README.md alone and shares no code with this package, so it decides who is right. Owns how
it is run many times, and how its answer is brought into the form of :func:`tests.fuzzing.looks.read`.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.conformance.foreign import second_reader
from tests.fuzzing.looks import operation_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.fuzzing.samples import Sample

__all__ = ["Said", "read_by_the_second"]


class _Second(second_reader.Repository):
    """The second reader, where it looks at more than this package does on the way to a chunk.

    That a log repeats a snapshot's facts shows in two files (R102), of which this package reads the other. Rows of
    a manifest are numbered, and nobody who looks for chunks decodes the numbers. The mark that is there says that a
    tag is withdrawn (R43), whatever is in it. Sound files are opened once.
    """

    def check_rest(self, key: str, holds: object, fact: str) -> None:
        if not holds:
            _FOLDERS[self.root].doubts.append(f"{key}: {fact}")

    def small_file(self, key: str, data: bytes, known: set[str]) -> dict[str, Any]:
        if key.endswith("/deleted.json"):
            return {"snapshot": "0" * 20, "key": key, "deleted": True}
        return super().small_file(key, data, known)

    def check_log_facts(self, key: str, first: dict[str, Any], facts: dict[str, Any]) -> None:
        found = second_reader.parsed(key, first["snapshot"] or "", once=True)
        good = isinstance(found, dict) and found.get("id") == facts["metadata"]["id"]
        second_reader.need(key, good, "is another log")

    def open(self, key: str) -> second_reader.Sealed:
        folder = _FOLDERS[self.root]
        if key in folder.opened and key not in folder.changed:
            return folder.opened[key]
        found = super().open(key)
        if key.startswith("i/"):
            found.unread = frozenset({"id"})
        if key not in folder.changed:
            folder.opened[key] = found
        return found


class _Folder:
    """A sample's objects as files."""

    def __init__(self, of: Sample) -> None:
        self.objects = of.objects
        self.kept = tempfile.TemporaryDirectory(prefix="fuzzing-")
        self.root = Path(self.kept.name)
        self.opened: dict[str, second_reader.Sealed] = {}
        self.changed: frozenset[str] = frozenset()
        self.doubts: list[str] = []
        for key, data in of.objects.items():
            self._put(key, data)
        _FOLDERS[self.root] = self

    def _put(self, key: str, data: bytes | None) -> None:
        path = self.root / key
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    @contextmanager
    def altered(self, changes: Mapping[str, bytes | None]) -> Iterator[None]:
        """Let some files be others meanwhile."""
        self.changed = frozenset(changes)
        try:
            for key, data in changes.items():
                self._put(key, data)
            yield
        finally:
            for key in changes:
                self._put(key, self.objects.get(key))
            self.changed = frozenset()


_FOLDERS: dict[Path, _Folder] = {}


@cache
def _folder(name: str) -> _Folder:
    from tests.fuzzing.samples import sample

    return _Folder(sample(name))


@dataclass(frozen=True)
class Said:
    """What the second reader says: what there is, or why it refuses."""

    value: dict[str, Any] | None
    refusal: str = ""
    doubts: tuple[str, ...] = ()
    """What it would refuse as well, and a reader may pass over."""


def read_by_the_second(name: str, changes: Mapping[str, bytes | None]) -> Said:
    """Let the second reader read a sample."""
    folder = _folder(name)
    folder.doubts.clear()
    try:
        with folder.altered(changes), patch.object(second_reader, "Repository", _Second):
            found = second_reader.read(folder.root)
    except second_reader.RefusalError as error:
        return Said(None, str(error))
    for snapshot in found["snapshots"].values():
        for node in snapshot["nodes"].values():
            for chunk in node.get("chunks", ()):
                if "last_modified" in chunk:
                    chunk["last_modified"] = _micros(chunk["last_modified"])
        if snapshot["operations"] is not None:
            snapshot["operations"] = [*map(_operation, snapshot["operations"])]
    return Said(json.loads(json.dumps(found)), doubts=tuple(folder.doubts))


def _operation(row: dict[str, Any]) -> dict[str, Any]:
    found = operation_of(row)
    if "last_modified" in found:
        found["last_modified"] = _micros(found["last_modified"])
    return found


def _micros(time: str) -> int:
    return (datetime.fromisoformat(time) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
