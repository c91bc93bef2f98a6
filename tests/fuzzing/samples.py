"""Small sound repositories in memory, of which one file at a time is put in another form.

Owns which there are, and of which kind each of their files is. Ids and times come from a sample's name, so that a
seed gives the same bytes each time.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.formats.layout import parse_key
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.kit.workshop import Case, Seal, array_document, group_document
from tests.conformance.kit.writing import FOLDER
from tests.fuzzing.sheets import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "Sample", "keys_of_kind", "padded", "sample", "samples_of"]

KINDS = (
    "manifest",
    "structure",
    "attributes",
    "log",
    "branch",
    "tag",
    "hint",
    "ledger",
    "ledger log",
    "state",
    "config",
)
_ROLES = {"transaction": "log", "tag-deleted": "tag"}


@dataclass(frozen=True)
class Sample:
    """A sound repository as objects."""

    name: str
    objects: dict[str, bytes]
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kind."""

    @property
    def url(self) -> str:
        """Where its objects are put."""
        return self.place.url

    @property
    def place(self) -> MemoryStorage:
        """The same, to be written."""
        return MemoryStorage(f"fuzzing-{self.name}")

    def lay_out(self, changes: dict[str, bytes | None] | None = None) -> None:
        """Put all objects in their places, some of them changed or taken away; nothing else stays there."""
        place = self.place
        wanted = {**self.objects, **(changes or {})}
        there = {info.key for info in place.list()}
        same = {key for key in there if wanted.get(key) == place.get(key)}
        place.delete(sorted(there - same))
        for key, data in wanted.items():
            if data is not None and key not in same:
                place.put(key, data)


ROOM_BYTES = 4096
SETTINGS = {
    "inline-chunk-threshold-bytes": 8,
    "packed-chunk-threshold-bytes": 64,
    "checksum-chunks": True,
    "chunk-manifests": {
        "sets": [
            {"few": {"max-manifest-size": 50, "cardinality": 1, "overflow-to": "default"}},
            {"default": {"max-manifest-size": 100, "split-along": 0}},
        ],
        "rules": [{"path": ".*/s", "metadata-chunks": [0, 5000], "target": "few"}],
        "preload": {"max-manifest-size": 50, "max-manifests": 1, "arrays": [{"path": ".*"}]},
    },
}


def _plain(case: Case) -> None:
    repo = case.create(inline_attributes_threshold_bytes=10)
    session = repo.writable_session("main")
    session.set_document("/", group_document())
    session.set_document("/d", array_document([3, 2], [1, 1], dimension_names=["y", None]))
    session.set_document("/n", array_document([40], [20]))
    session.set_document("/s", array_document([66], [1], attributes={"text": "long enough"}))
    session.set_document("/t", group_document(text="long enough", more=[1, 2.5, None, {"a": 1}]))
    session.set_document("/v", array_document([9], [1]))
    session.set_document("/x", array_document([], [], data_type={"name": "uint8"}, unknown=[1]))
    for row in range(3):
        for column in range(2):
            session.write_chunk("/d", (row, column), case.noise(1))
    for index in range(2):
        session.write_chunk("/n", (index,), case.noise(20))
    for index in (1, 4, 65):
        session.write_chunk("/s", (index,), case.noise(1))
    for index in (2, 3):
        ref = ChunkRef(file="s3://bucket/x", offset=10 * index, length=1, etag="tag")
        session.set_chunk_ref("/v", (index,), ref)
    session.write_chunk("/x", (), case.noise(1))
    first = session.commit("one", {"who": "fuzzing", "runs": [1, 2.5, None]})
    session = repo.writable_session("main")
    session.write_chunk("/s", (4,), case.noise(1))
    session.write_chunk("/n", (1,), case.noise(20))
    session.delete_chunk("/s", (1,))
    session.set_document("/v", array_document([8], [1], attributes={"now": "shorter"}))
    session.commit("two")
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    repo.create_tag("v0", first)
    repo.delete_tag("v0")
    hint = {"sequence": 2, "snapshot": repo.lookup_branch("main")}
    case.write("refs/branch.main/hint.json", json.dumps(hint).encode())
    case.write("config.yaml", json.dumps(SETTINGS).encode())


def _state(case: Case) -> None:
    repo = case.create(catalog="state")
    session = repo.writable_session("main")
    session.set_document("/a", array_document([3], [1]))
    session.write_chunk("/a", (1,), case.noise(1))
    first = session.commit("one", {"who": "fuzzing"})
    session = repo.writable_session("main")
    session.write_chunk("/a", (0,), case.noise(1))
    session.commit("two")
    repo.create_branch("dev", first)
    repo.create_tag("v1", first)
    repo.create_tag("v0", first)
    repo.delete_tag("v0")


_MADE: dict[str, Callable[[Case], None]] = {"plain": _plain, "state": _state}
_OF_THE_KIT = ("ledger", "rare-operations", "statistics", "row-groups", "wide", "extensions")
"""Cases of the conformance kit that have what the others have not."""
_SAMPLES_OF = {
    "manifest": ("plain", "plain", "plain", "statistics", "row-groups", "wide"),
    "structure": ("plain", "plain", "plain", "wide", "extensions", "state"),
    "log": ("plain", "rare-operations"),
    "ledger": ("ledger",),
    "ledger log": ("ledger",),
    "state": ("state",),
}


def samples_of(kind: str) -> tuple[str, ...]:
    """Name the samples that have files of a kind; one may come more than once, to be taken more often."""
    return _SAMPLES_OF.get(kind, ("plain",))


@cache
def sample(name: str) -> Sample:
    """Make a sample, or read it from the kit; ``refused/…`` is one that breaks a rule."""
    with tempfile.TemporaryDirectory() as folder:
        if name in _MADE:
            with Case.begun(Path(folder) / "case", f"fuzzing {name}") as case:
                _MADE[name](case)
            root = Path(folder) / "case" / "repository"
        else:
            root = FOLDER / name / "repository"
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        objects = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    objects = {key: data for key, data in objects.items() if parse_key(key) is not None}
    if not name.startswith("refused/"):
        objects = _with_room(objects)
    return Sample(name.replace("/", "-"), objects, _keys(objects))


def _with_room(objects: dict[str, bytes]) -> dict[str, bytes]:
    """Let manifests have room before their seals, so that a damaged one can have the size that is recorded."""
    made = dict(objects)
    sizes = {}
    for key, data in objects.items():
        if key.startswith("i/"):
            made[key] = padded(data, len(data) + ROOM_BYTES)
            sizes[key[2:]] = len(made[key])
    for key, data in objects.items():
        if key.startswith("s/"):
            sheet = Sheet.of(data, key[2:-8], ())
            cells = [entry for cell in sheet.column("inventories") for entry in cell or ()]
            files = dict.fromkeys(entry["inventory_file"] for entry in cells)
            facts = json.loads(dict(sheet.texts)["icechunk.snapshot"])
            packed = np.array([sizes[file] for file in files], "<u8").tobytes()
            facts["manifest_files"]["size_bytes"] = base64.b64encode(
                pa.compress(packed, codec="zstd", asbytes=True)
            ).decode()
            texts = dict(sheet.texts) | {"icechunk.snapshot": json.dumps(facts)}
            sheet.texts = list(texts.items())
            made[key] = sheet.write()
    return made


def padded(data: bytes, size_bytes: int) -> bytes:
    """Let a Parquet file have so many bytes, if it has fewer, by some that nobody reads."""
    seal = Seal.of(data)
    return replace(seal, body=seal.body + bytes(max(size_bytes - len(data), 0))).put_together()


def _keys(objects: dict[str, bytes]) -> dict[str, tuple[str, ...]]:
    logs = {
        f"t/{json.loads(data)['log']}.parquet"
        for key, data in objects.items()
        if key.startswith("refs/ledger/")
    }
    found: dict[str, list[str]] = {}
    for key in sorted(objects):
        parsed = parse_key(key)
        assert parsed is not None
        role = "ledger log" if key in logs else _ROLES.get(parsed.role, parsed.role)
        found.setdefault(role, []).append(key)
    return {kind: tuple(keys) for kind, keys in found.items()}


def keys_of_kind(name: str, kind: str) -> tuple[str, ...]:
    """Keys of a sample's files of a kind."""
    return sample(name).keys.get(kind, ())
