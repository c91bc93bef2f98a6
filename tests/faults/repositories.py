"""Repositories to be damaged, and pictures of them that can be compared.

Owns the base that all fault tests begin with, and what "the same state" means: everything that a
reader sees, without ids and times, which are random.
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icechunk_arrow import Repository, RepositoryConfig
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.engine import opening
from icechunk_arrow.engine.state_catalog import StateCatalog
from icechunk_arrow.formats.layout import FileKind, chunk_key, key_of, parse_key
from icechunk_arrow.storage.scratch import SCRATCH
from tests.bystanders import is_bystander
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icechunk_arrow import Session
    from icechunk_arrow.storage.port import Storage

    Picture = dict[str, Any]

__all__ = [
    "CONFIG",
    "array_document",
    "contents",
    "copy_objects",
    "make_base",
    "payload",
    "picture",
    "referenced_keys",
    "through",
]

CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=32,
    inline_attributes_threshold_bytes=64,
    packed_chunk_threshold_bytes=2000,
    chunk_file_size_bytes=6000,
    checksum_chunks=True,
)
"""Small thresholds, so that few bytes take every path."""

INLINE, PACKED, OWN = 20, 500, 3000
"""Sizes of chunks that go each of the three ways."""


def payload(seed: str, size_bytes: int) -> bytes:
    """Bytes that nothing else has."""
    return random.Random(seed).randbytes(size_bytes)


def array_document(chunk_count: int, *, attributes: Mapping[str, Any] | None = None) -> bytes:
    """Document of an array of one dimension with chunks of ten values."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [10 * chunk_count],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": dict(attributes or {}),
        }
    ).encode()


def group_document(**attributes: Any) -> bytes:
    """Document of a group."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def make_base(
    url: str,
    *,
    catalog: str = "branches",
    config: RepositoryConfig = CONFIG,
    manifest_count: int = 3,
) -> None:
    """Make a repository of a few commits: every kind of chunk, branches, tags."""
    repo = Repository.create(url, config=config, storage_settings=UNSYNCED, catalog=catalog)
    session = repo.writable_session("main")
    session.set_document("/", group_document(title="base"))
    session.set_document("/a", array_document(40, attributes={"note": "x" * 200}))
    session.set_document("/b", array_document(4, attributes={"unit": "K"}))
    for index, size in enumerate([INLINE, PACKED, OWN, INLINE, PACKED, PACKED]):
        session.write_chunk("/a", (2 * index,), payload(f"a {index}", size))
    for index in range(4):
        session.write_chunk("/b", (index,), payload(f"b {index}", PACKED))
    first = session.commit("first", {"who": "base"})
    for number in range(manifest_count - 1):
        session = repo.writable_session("main")
        session.write_chunk("/a", (20 + number,), payload(f"more {number}", INLINE))
        session.commit(f"more {number}")
    repo.create_branch("other", first)
    repo.create_branch("gone", first)
    repo.delete_branch("gone")
    repo.create_tag("v1", first)
    repo.create_tag("v0", first)
    repo.delete_tag("v0")


def contents(session: Session) -> Picture:
    """Read all documents and all chunks of a snapshot."""
    found: Picture = {}
    for path in session.node_paths():
        node = session.find_node(path)
        assert node is not None
        found[path] = json.loads(session.document(node))
        if node.is_array:
            view = session.get_array(path)
            for batch in session.chunk_coordinates(path):
                for coord in batch.tolist():
                    chunk = session.find_chunk(view, tuple(coord))
                    assert chunk is not None, f"chunk {coord} of {path} is listed and not there"
                    length = len(chunk) if isinstance(chunk, bytes) else chunk.length
                    key = f"{path}/c/{'/'.join(map(str, coord))}"
                    found[key] = bytes(session.read_chunk(chunk, 0, length))
    return found


def picture(repo: Repository) -> Picture:
    """Show what a reader of a repository sees: histories, and all of each newest snapshot."""
    read: dict[str, Picture] = {}

    def show(snapshot_id: str) -> Picture:
        if snapshot_id not in read:
            read[snapshot_id] = contents(repo.readonly_session(snapshot_id=snapshot_id))
        return read[snapshot_id]

    branches, tags = {}, {}
    for name in sorted(repo.list_branches()):
        history = list(repo.ancestry(branch=name))
        assert history[-1].parent_id is None
        if len(history) > 1:
            repo._context.files.read_log(history[0].id)
        branches[name] = {
            "history": [(info.message, dict(info.metadata)) for info in history],
            "contents": show(history[0].id),
        }
    for name in sorted(repo.list_tags()):
        tags[name] = show(repo.lookup_tag(name))
    return {"branches": branches, "tags": tags}


def referenced_keys(repo: Repository) -> set[str]:
    """Keys of all files that a snapshot of some branch or tag needs."""
    context = repo._context
    starts = [repo.lookup_branch(name) for name in repo.list_branches()]
    starts += [repo.lookup_tag(name) for name in repo.list_tags()]
    found: set[str] = set()
    for start in starts:
        for info in repo.ancestry(snapshot_id=start):
            snapshot = context.files.read_snapshot(info.id)
            found.add(key_of(FileKind.STRUCTURE, info.id))
            if info.parent_id is not None:
                found.add(key_of(FileKind.TRANSACTION, info.id))
            for node in snapshot.nodes():
                if node.attributes_ref is not None:
                    found.add(key_of(FileKind.ATTRIBUTES, node.attributes_ref.identifier))
            for name in snapshot.manifest_sizes:
                found.add(key_of(FileKind.MANIFEST, name))
                files = context.files.read_manifest(name)["chunk_file"].to_pylist()
                found.update(chunk_key(file) for file in files if file is not None)
    return found


def check_layout(repo: Repository, storage: Storage) -> None:
    """Check that nothing is missing, that whatever is left over has a name of ours, and no gap."""
    keys = {info.key for info in storage.list() if not is_bystander(info.key)}
    assert not referenced_keys(repo) - keys, "a snapshot refers to files that are not there"
    # a process that is killed while it tries what a server can do leaves its probe
    strange = [key for key in keys if parse_key(key) is None and not key.startswith(SCRATCH)]
    assert not strange, f"files that no cleaning would find: {strange}"
    sequences: dict[str, list[int]] = {}
    for key in keys:
        parsed = parse_key(key)
        if parsed is not None and parsed.role == "branch":
            assert parsed.ref is not None
            assert parsed.sequence is not None
            sequences.setdefault(parsed.ref, []).append(parsed.sequence)
    for name, numbers in sequences.items():
        assert sorted(numbers) == list(range(len(numbers))), f"the sequence of {name} has a gap"
    if not isinstance(repo._context.catalog, StateCatalog):
        assert f"refs/branch.main/{sequence_name(0)}.json" in keys


def copy_objects(source: Storage, target: Storage) -> None:
    """Copy a whole place."""
    for info in source.list():
        target.put(info.key, source.get(info.key))


@contextmanager
def through(wrap: Callable[[Storage], Storage]) -> Iterator[None]:
    """Have repositories opened in the block use a wrapper of their storage."""
    real = vars(opening)["open_storage"]
    vars(opening)["open_storage"] = lambda *args, **kwargs: wrap(real(*args, **kwargs))
    try:
        yield
    finally:
        vars(opening)["open_storage"] = real


def write_many(session: Session, path: str, step: int, count: int) -> None:
    """Write many small chunks, every ``step``-th, each with bytes of its own."""
    data = payload(path, 4 * count)
    for number in range(count):
        session.write_chunk(path, (step * number,), data[4 * number : 4 * number + 4])
