"""Every way of writing, each into a place of its own below a folder: what the tracer looks at.

Run as ``python -m tests.durability.ways FOLDER [NAME …]``.
"""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import zarr

from icechunk_arrow import (
    ConflictDetector,
    Repository,
    RepositoryConfig,
    StorageSettings,
)
from icechunk_arrow.core.manifest_settings import ManifestSet, ManifestSettings
from icechunk_arrow.engine import references
from icechunk_arrow.engine.bulk import BulkSettings
from tests.durability.tracing import returned
from tests.processes.children import SECONDS, end_if_it_hangs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow import Session

__all__ = ["WAYS"]

CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=32,
    inline_attributes_threshold_bytes=64,
    packed_chunk_threshold_bytes=500,
    chunk_file_size_bytes=2000,
)
"""Small thresholds: chunks of 20 bytes are inline, of 200 gathered, of 2,000 files of their own."""
CHUNKS = {"inline": 5, "packed": 50, "own": 500}
MANY = 150


def make(root: Path, *, catalog: str = "branches", count: int = 8, **more: Any) -> Repository:
    """Make a repository with three arrays of chunks of three sizes, and commit them."""
    repo = Repository.create(root, config=CONFIG, catalog=catalog, **more)
    returned()
    session = repo.writable_session("main")
    for name, size in CHUNKS.items():
        zarr.create_array(
            session.store,
            name=name,
            shape=(count, size),
            chunks=(1, size),
            dtype="i4",
            fill_value=-1,
            compressors=None,
            attributes={"note": "x" * 200},
        )
    session.commit("arrays")
    returned()
    return repo


def fill(session: Session, rows: slice = slice(0, 3), value: int = 1) -> None:
    for name in CHUNKS:
        zarr.open_array(session.store, path=name, mode="r+")[rows] = value


def commit_alone(repo: Repository, rows: slice, value: int = 1) -> str:
    session = repo.writable_session("main")
    fill(session, rows, value)
    return session.commit("rows")


def commit(repo: Repository, rows: slice = slice(0, 3), value: int = 1) -> str:
    snapshot_id = commit_alone(repo, rows, value)
    returned()
    return snapshot_id


def plain_commits(root: Path) -> None:
    """New chunks, chunks over others, deletions, in folders that are new themselves."""
    repo = make(root / "new" / "newer")
    commit(repo)
    commit(repo, slice(1, 5), 2)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="own", mode="r+").resize((2, CHUNKS["own"]))
    session.commit("smaller")
    returned()


def state_file(root: Path) -> None:
    """Commits, branches and tags by the state file."""
    repo = make(root, catalog="state")
    first = commit(repo)
    repo.create_branch("b", first)
    returned()
    commit(repo, slice(3, 4))
    repo.reset_branch("b", repo.lookup_branch("main"))
    repo.create_tag("t", first)
    returned()
    repo.delete_tag("t")
    repo.delete_branch("b")
    returned()


def branches_and_tags(root: Path) -> None:
    """Each makes an entry, some in folders that nobody had made."""
    repo = make(root)
    first = commit(repo)
    other = Repository.open(root)
    other.create_branch("b", first)
    returned()
    commit(repo, slice(3, 4))
    other.reset_branch("b", repo.lookup_branch("main"))
    returned()
    repo.create_tag("t", first)
    returned()
    other.delete_tag("t")
    other.delete_branch("b")
    other.create_branch("b", first)
    returned()
    session = repo.writable_session("main")
    fill(session, slice(5, 6))
    repo.create_branch("of-a-fork", session.fork().snapshot_id)
    returned()


def settings_and_exports(root: Path) -> None:
    """What is replaced."""
    repo = make(root)
    repo.save_config()
    returned()
    repo.export_state()
    returned()
    commit(repo)
    other = Repository.open(root, config=replace(CONFIG, inline_chunk_threshold_bytes=33))
    other.save_config()
    other.export_state()
    returned()


def many_files(root: Path) -> None:
    """More files than are synced one by one."""
    repo = make(root, count=MANY)
    commit(repo, slice(0, MANY))
    session = repo.writable_session("main")
    fill(session, slice(0, MANY), 2)
    session.commit("again", rebase_with=ConflictDetector())
    returned()


def in_bulk(root: Path) -> None:
    """References and encoded chunks by the table, of which many are written while they come."""
    repo = make(root, count=MANY)
    session = repo.writable_session("main")
    index = pa.array([[row, 0] for row in range(MANY)], pa.list_(pa.int64()))
    data = pa.array([bytes([row % 256]) * 2000 for row in range(MANY)], pa.binary())
    session.set_encoded_chunks("/own", pa.table({"index": index, "data": data}))
    places = {
        "index": index,
        "location": pa.array(["s3://bucket/key"] * MANY),
        "offset": pa.array(range(MANY), pa.uint64()),
        "length": pa.array([1] * MANY, pa.uint64()),
    }
    small = partial(BulkSettings, held_rows=10, slice_rows=40)
    with patch.object(references, "BulkSettings", small):
        session.set_references("/packed", pa.table(places))
    session.commit("bulk")
    returned()


def _write(fork: Any, row: int) -> Any:
    fill(fork, slice(row, row + 1), row)
    return fork


def _write_and_tell(fork: Any, row: int) -> Any:
    fill(fork, slice(row, row + 1), row)
    return fork.finish()


def forks_in_processes(root: Path) -> None:
    """Forks that come back pickled, and what they said on finishing."""
    repo = make(root)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="own", mode="r+")[7] = 7
        back = list(pool.map(_write, [session.fork()] * 3, range(3)))
        session.merge(*back)
        session.commit("forks")
        returned()
        session = repo.writable_session("main")
        session.merge_written(list(pool.map(_write_and_tell, [session.fork()] * 3, range(3))))
        session.commit("what they said")
        returned()


def forks_in_one_process(root: Path) -> None:
    """Forks in threads, forks that were pickled here, and forks that nobody finished."""
    repo = make(root)
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        back = list(pool.map(_write, forks, range(3)))
    copy = pickle.loads(pickle.dumps(session.fork()))
    session.merge(*back, _write(copy, 5), pickle.loads(pickle.dumps(_write(session.fork(), 4))))
    session.commit("forks")
    returned()


def a_child_of_os_fork(root: Path) -> None:
    """A child works on with the repository that its parent opened."""
    repo = make(root)
    session = repo.writable_session("main")
    fill(session, slice(0, 2))
    child = os.fork()
    if not child:
        end_if_it_hangs(SECONDS)
        commit(repo, slice(2, 3))
        os._exit(0)
    assert not os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    fill(session, slice(4, 5))
    session.commit("the parent", rebase_with=ConflictDetector())
    returned()


def housekeeping(root: Path) -> None:
    """Chunk files and manifests that are written anew."""
    repo = make(root)
    for row in range(6):
        commit(repo, slice(row, row + 1))
    assert repo.compact_chunks("main", "compact").snapshot_id is not None
    returned()
    only = ManifestSet(name="default", max_manifest_size=2)
    settings = RepositoryConfig(chunk_manifests=ManifestSettings(sets=(only,), rules=()))
    other = Repository.open(root, config=settings)
    assert other.rewrite_manifests("main", "rewrite").snapshot_id is not None
    returned()


def several_handles(root: Path) -> None:
    """Each syncs what it wrote, whoever made the folders."""
    make(root)
    first, second = (Repository.open(root).writable_session("main") for _ in range(2))
    fill(first, slice(0, 2))
    fill(second, slice(4, 6))
    first.commit("first")
    returned()
    second.commit("second", rebase_with=ConflictDetector())
    returned()


def after_not_durable(root: Path) -> None:
    """Commits, tags and branches on what somebody did not sync."""
    make(root)
    careless = Repository.open(root, storage_settings=StorageSettings(durable=False))
    first = commit_alone(careless, slice(0, 2))
    Repository.open(root).create_tag("t", first)
    returned()
    commit_alone(careless, slice(2, 4))
    commit(Repository.open(root), slice(4, 5))


WAYS: dict[str, Callable[[Path], None]] = {
    way.__name__: way
    for way in (
        plain_commits,
        state_file,
        branches_and_tags,
        settings_and_exports,
        many_files,
        in_bulk,
        forks_in_processes,
        forks_in_one_process,
        a_child_of_os_fork,
        housekeeping,
        several_handles,
        after_not_durable,
    )
}


def main(folder: str, *names: str) -> None:
    """Go some ways, or all."""
    for name in names or WAYS:
        WAYS[name](Path(folder) / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
