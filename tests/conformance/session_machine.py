"""Random sequences of everything a session can do, against a dictionary.

The model is a dictionary of nodes, each with its document and its chunks by key. Sizes are set so that
a few bytes are inline, packed with others, or in a file of their own. After every step the store shows
what the model says; every commit is read back from a repository opened anew, and in the end every
snapshot that was ever made still shows what it showed.
"""

from __future__ import annotations

import copy
import json
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from icechunk_arrow import (
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    NodeNotFoundError,
    RebaseFailedError,
    Repository,
)
from icechunk_arrow.engine.config import RepositoryConfig
from tests.conformance.session_model import (
    ONE_CHUNK,
    Model,
    Node,
    attributes,
    documents,
    full_key,
    is_below,
    payloads,
)

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from icechunk_arrow import IcechunkStore, Session

__all__ = ["SETTINGS", "SessionMachine"]

SETTINGS = RepositoryConfig(
    inline_chunk_threshold_bytes=4,
    packed_chunk_threshold_bytes=30,
    chunk_file_size_bytes=80,
    inline_attributes_threshold_bytes=40,
    checksum_chunks=True,
)
PATHS = ("/", "/a", "/b", "/a/x", "/a/y", "/a/y/z", "/ab", "/a/x/c")
SOURCE = bytes(range(256))


class SessionMachine(RuleBasedStateMachine):
    """A session and its store, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.source = Path(self.folder.name) / "source.bin"
        self.source.write_bytes(SOURCE)
        self.url = f"memory://{secrets.token_hex(8)}"
        Repository.create(self.url, config=SETTINGS)
        self.model: Model = {}
        self.snapshots: dict[str, Model] = {self.open().lookup_branch("main"): {}}
        self.session: Session = self.open().writable_session("main")
        self.theirs = 0
        self.may_conflict = False
        """Whether something was moved, or the root changed, which holds what others create."""

    def open(self) -> Repository:
        allowed = [f"file://{self.folder.name}/"]
        return Repository.open(self.url, authorize_virtual_chunk_access=allowed)

    @property
    def store(self) -> IcechunkStore:
        return self.session.store

    @property
    def base(self) -> Model:
        return self.snapshots[self.session.snapshot_id]

    def teardown(self) -> None:
        repository = self.open()
        for snapshot_id, model in self.snapshots.items():
            self.compare(repository.readonly_session(snapshot_id=snapshot_id).store, model)
        self.folder.cleanup()

    # -- what is compared

    def compare(self, store: IcechunkStore, model: Model) -> None:
        """Whether a store shows a model: its keys, and what stands under each."""
        expected = {
            full_key(path, relative)
            for path, node in model.items()
            for relative in ("zarr.json", *node.chunks)
        }

        async def keys() -> list[str]:
            return [key async for key in store.list()]

        found = sync(keys())
        assert len(found) == len(set(found)), "a key is listed twice"
        assert set(found) == expected
        for path, node in model.items():
            document = store.get_sync(full_key(path, "zarr.json"))
            assert document is not None
            assert json.loads(document.to_bytes()) == node.document
            for relative in node.keys if node.is_array else ():
                chunk = store.get_sync(full_key(path, relative))
                wanted = node.chunks.get(relative)
                assert (None if chunk is None else chunk.to_bytes()) == wanted, (path, relative)

    @invariant()
    def the_store_shows_the_model(self) -> None:
        self.compare(self.store, self.model)

    @invariant()
    def changes_are_noticed(self) -> None:
        if self.model != self.base:
            assert self.session.has_uncommitted_changes

    # -- nodes

    @initialize(document=documents(), in_groups=st.booleans())
    def begin(self, document: dict[str, Any], in_groups: bool) -> None:
        for path in ("/", "/a") if in_groups else ():
            self.set_document(path, {"zarr_format": 3, "node_type": "group"})
        self.set_document("/a/x", document)

    @rule(path=st.sampled_from(PATHS), document=documents())
    def set_document(self, path: str, document: dict[str, Any]) -> None:
        node = Node(document)
        above = [p for p, n in self.model.items() if n.is_array and is_below(path, p)]
        below = [p for p in self.model if is_below(p, path)]
        data = cpu.Buffer.from_bytes(json.dumps(document).encode())
        if above or (below and node.is_array):
            with pytest.raises(InvalidInputError, match="array"):
                self.store.set_sync(full_key(path, "zarr.json"), data)
            return
        self.store.set_sync(full_key(path, "zarr.json"), data)
        self.may_conflict |= path == "/"
        old = self.model.get(path)
        if old is not None and node.is_array and old.is_array and old.identity == node.identity:
            keys = node.keys
            node.chunks = {key: chunk for key, chunk in old.chunks.items() if key in keys}
        self.model[path] = node

    def draw_node(self, data: DataObject, *, array: bool = False) -> str:
        return data.draw(
            st.sampled_from([p for p, n in self.model.items() if n.is_array or not array])
        )

    @precondition(lambda self: self.model)
    @rule(data=st.data(), changed=attributes)
    def change_attributes(self, data: DataObject, changed: dict[str, Any]) -> None:
        path = self.draw_node(data)
        self.set_document(path, {**self.model[path].document, "attributes": changed})

    @precondition(lambda self: any(node.is_array for node in self.model.values()))
    @rule(data=st.data())
    def resize(self, data: DataObject) -> None:
        path = self.draw_node(data, array=True)
        document = self.model[path].document
        shape = [data.draw(st.integers(0, 9)) for _ in document["shape"]]
        self.set_document(path, {**document, "shape": shape})

    @rule(path=st.sampled_from(PATHS))
    def delete_document(self, path: str) -> None:
        self.store.delete_sync(full_key(path, "zarr.json"))
        self.model.pop(path, None)
        self.may_conflict |= path == "/"

    @rule(path=st.sampled_from(PATHS))
    def delete_folder(self, path: str) -> None:
        sync(self.store.delete_dir(path[1:]))
        self.may_conflict |= path == "/"
        self.model = {p: n for p, n in self.model.items() if p != path and not is_below(p, path)}
        for above, node in self.model.items():
            if is_below(path, above):  # the folder may be one of an array's chunks
                folder = path.removeprefix(above).strip("/") + "/"
                node.chunks = {k: d for k, d in node.chunks.items() if not k.startswith(folder)}

    @precondition(lambda self: self.model)
    @rule(data=st.data(), to=st.sampled_from([*PATHS, "/c", "/a/c"]))
    def move(self, data: DataObject, to: str) -> None:
        path = self.draw_node(data)
        parent = self.model.get(to.rpartition("/")[0] or "/")
        taken = any(p == to or is_below(p, to) for p in self.model)
        fits = parent is not None and not parent.is_array and not taken
        if path in ("/", to) or is_below(to, path) or not fits:
            with pytest.raises((InvalidInputError, NodeNotFoundError)):
                self.session.move(path, to)
            return
        self.session.move(path, to)
        self.may_conflict = True
        moved = {p: n for p, n in self.model.items() if p == path or is_below(p, path)}
        for old, node in moved.items():
            del self.model[old]
            self.model[to + old[len(path) :]] = node

    # -- chunks

    @precondition(lambda self: any(node.is_array for node in self.model.values()))
    @rule(data=st.data(), payload=payloads)
    def write_chunk(self, data: DataObject, payload: bytes) -> None:
        path = self.draw_node(data, array=True)
        node = self.model[path]
        inside = node.coords
        if not inside:
            outside = full_key(path, node.key_of((99,) * len(node.counts)))
            with pytest.raises(InvalidInputError, match="outside"):
                self.store.set_sync(outside, cpu.Buffer.from_bytes(payload))
            return
        relative = node.key_of(data.draw(st.sampled_from(inside)))
        self.store.set_sync(full_key(path, relative), cpu.Buffer.from_bytes(payload))
        node.chunks[relative] = payload

    @precondition(lambda self: any(node.is_array for node in self.model.values()))
    @rule(data=st.data(), size=st.integers(0, 50))
    def write_every_chunk(self, data: DataObject, size: int) -> None:
        path = self.draw_node(data, array=True)
        node = self.model[path]
        for number, coord in enumerate(node.coords):
            payload = bytes([number % 256]) * size
            key = full_key(path, node.key_of(coord))
            self.store.set_sync(key, cpu.Buffer.from_bytes(payload))
            node.chunks[node.key_of(coord)] = payload

    @precondition(lambda self: any(node.chunks for node in self.model.values()))
    @rule(data=st.data())
    def delete_chunk(self, data: DataObject) -> None:
        path = data.draw(st.sampled_from([p for p, n in self.model.items() if n.chunks]))
        relative = data.draw(st.sampled_from(sorted(self.model[path].chunks)))
        self.store.delete_sync(full_key(path, relative))
        del self.model[path].chunks[relative]

    @precondition(lambda self: any(node.is_array for node in self.model.values()))
    @rule(data=st.data())
    def set_references(self, data: DataObject) -> None:
        path = self.draw_node(data, array=True)
        node = self.model[path]
        if not node.coords:
            return
        places = data.draw(st.lists(st.sampled_from(node.coords), unique=True))
        ranges = [
            data.draw(st.tuples(st.integers(0, 200), st.integers(0, 56)), label="range")
            for _ in places
        ]
        table = pa.table(
            {
                "index": pa.array([list(each) for each in places], pa.list_(pa.int64())),
                "location": pa.array([self.source.as_uri()] * len(places), pa.string()),
                "offset": pa.array([offset for offset, _ in ranges], pa.int64()),
                "length": pa.array([length for _, length in ranges], pa.int64()),
            }
        )
        self.session.set_references(path, table)
        for coord, (offset, length) in zip(places, ranges, strict=True):
            node.chunks[node.key_of(coord)] = SOURCE[offset : offset + length]

    @precondition(lambda self: any(node.chunks for node in self.model.values()))
    @rule(data=st.data(), start=st.integers(0, 60), length=st.integers(0, 60))
    def read_a_part(self, data: DataObject, start: int, length: int) -> None:
        path = data.draw(st.sampled_from([p for p, n in self.model.items() if n.chunks]))
        relative = data.draw(st.sampled_from(sorted(self.model[path].chunks)))
        key, whole = full_key(path, relative), self.model[path].chunks[relative]
        for request, expected in (
            (RangeByteRequest(start, start + length), whole[start : start + length]),
            (OffsetByteRequest(start), whole[start:]),
            (SuffixByteRequest(length), whole[max(len(whole) - length, 0) :]),
        ):
            part = self.store.get_sync(key, byte_range=request)
            assert part is not None
            assert part.to_bytes() == expected
        assert sync(self.store.getsize(key)) == len(whole)

    # -- versions

    @rule()
    def commit(self) -> None:
        if self.session.has_uncommitted_changes:
            try:
                snapshot_id = self.session.commit("a step")
            except ConflictError:
                self.rebase()
                if not self.session.has_uncommitted_changes:
                    return
                snapshot_id = self.session.commit("a step, rebased")
            self.snapshots[snapshot_id] = copy.deepcopy(self.model)
        self.begin_anew()
        self.compare(self.open().readonly_session("main").store, self.model)
        self.check_counts()

    def check_counts(self) -> None:
        """Every chunk stands in exactly one live manifest, so that counting rows counts chunks."""
        snapshot = self.session._staging.base
        for path, node in self.model.items():
            found = snapshot.get_node(path)
            rows = sum(entry.row_count for entry in found.inventories or ())
            assert rows == len(node.chunks), path

    @rule()
    def discard(self) -> None:
        self.session.discard_changes()
        self.model = copy.deepcopy(self.base)
        self.may_conflict = False
        assert not self.session.has_uncommitted_changes

    @rule()
    def status(self) -> None:
        """Telling the changes changes nothing."""
        assert str(self.session.status()) is not None

    @rule(payload=payloads, path=st.sampled_from(["", "", *PATHS[1:]]))
    def somebody_else_commits(self, payload: bytes, path: str) -> None:
        """A commit to the branch that creates an array, perhaps where ours has something too."""
        other = self.open().writable_session("main")
        before = self.snapshots[other.snapshot_id]
        if path:
            self.may_conflict = True
        else:
            path, self.theirs = f"/theirs{self.theirs}", self.theirs + 1
        above = any(node.is_array and is_below(path, p) for p, node in before.items())
        if above or any(p == path or is_below(p, path) for p in before):
            return
        node = Node({**ONE_CHUNK, "attributes": {"theirs": self.theirs}}, {"c/0": payload})
        document = json.dumps(node.document).encode()
        other.store.set_sync(full_key(path, "zarr.json"), cpu.Buffer.from_bytes(document))
        other.store.set_sync(full_key(path, "c/0"), cpu.Buffer.from_bytes(payload))
        self.snapshots[other.commit("theirs")] = {**copy.deepcopy(before), path: node}

    def rebase(self) -> None:
        old = self.base
        try:
            self.session.rebase(ConflictDetector())
            failed = False
        except RebaseFailedError:
            assert self.may_conflict
            failed = True
        for path in self.base.keys() - old.keys():
            self.model[path] = copy.deepcopy(self.base[path])
        self.compare(self.store, self.model)
        if failed:  # it kept its changes, on top of the commits that did not conflict
            self.begin_anew()

    def begin_anew(self) -> None:
        self.session = self.open().writable_session("main")
        self.model = copy.deepcopy(self.base)
        self.may_conflict = False

    @rule()
    def rebase_now(self) -> None:
        self.rebase()
