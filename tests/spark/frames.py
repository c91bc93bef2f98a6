"""Frames for the tests of writing from Spark, and what a repository holds afterwards, as plain values."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from icechunk_arrow import Repository

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icechunk_arrow import Session

__all__ = [
    "check_manifests",
    "check_only_orphans",
    "files_of",
    "new_repository",
    "reference_table",
    "references_of",
    "single_process",
]


def new_repository(place: Path | str, **arrays: tuple[int, ...]) -> Repository:
    """Make a repository with arrays of bytes, each element a chunk."""
    repository = Repository.create(place)
    if arrays:
        session = repository.writable_session("main")
        for name, shape in arrays.items():
            zarr.create_array(
                session.store,
                name=name,
                shape=shape,
                chunks=(1,) * len(shape),
                dtype="u1",
                compressors=None,
                fill_value=0,
            )
        session.commit("create")
    return repository


def reference_table(
    shape: Sequence[int], *, seed: int = 0, count: int | None = None, path: str | None = None
) -> pa.Table:
    """Give references to some chunks of a grid, or all, in no order."""
    random = np.random.default_rng(seed)
    places = random.permutation(int(np.prod(shape)))[:count]
    index = np.stack(np.unravel_index(places, shape)).T
    columns: dict[str, Any] = {
        "index": [list(map(int, row)) for row in index],
        "location": [f"s3://bucket/file-{int(row[0]) % 7}.nc" for row in index],
        "offset": random.integers(0, 1 << 40, len(index)),
        "length": random.integers(1, 1 << 20, len(index)),
        "etag": [f"e{int(row[0]) % 3}" for row in index],
    }
    if path is not None:
        columns["path"] = [path] * len(index)
    return pa.table(columns)


def references_of(repository: Repository, path: str, **which: Any) -> list[dict[str, Any]]:
    """Give all that an array's chunks refer to, in order of their places."""
    session = repository.readonly_session(**(which or {"branch": "main"}))
    rows = [row for batch in session.chunk_references(path) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["index"])


def single_process(place: Path, like: Session, table: pa.Table, path: str | None) -> Repository:
    """Write the same rows with ``set_references``, into a repository with the same arrays."""
    repository = Repository.create(place)
    session = repository.writable_session("main")
    for each in like.node_paths():
        node = like.find_node(each)
        assert node is not None
        session.set_document(each, like.document(node))
    session.set_references(path, table)
    session.commit("the same")
    return repository


def check_manifests(root: Path, repository: Repository, *, one_write: bool = True) -> int:
    """Check that live manifests are sorted and that no chunk stands in two; tell how many there are.

    Those of one write lie side by side; those of many small commits may reach over each other.
    """
    session = repository.readonly_session("main")
    count = 0
    seen: Counter[tuple[int, bytes]] = Counter()
    ranges: dict[int, list[tuple[bytes, bytes]]] = {}
    for batch in session.manifests():
        for name in batch.column("manifest").to_pylist():
            count += 1
            rows = pq.read_table(root / "i" / f"{name}.parquet", columns=["array_id", "coord"])
            keys = list(zip(*rows.to_pydict().values(), strict=True))
            assert keys == sorted(keys)
            seen.update(keys)
            for array_id in {key[0] for key in keys}:
                mine = [key[1] for key in keys if key[0] == array_id]
                ranges.setdefault(array_id, []).append((mine[0], mine[-1]))
    assert not seen or max(seen.values()) == 1
    for found in ranges.values() if one_write else ():
        found.sort()
        assert all(one[1] < two[0] for one, two in pairwise(found)), "manifests overlap"
    return count


def files_of(root: Path) -> set[str]:
    """Give the keys of all files of a repository but those of its branches."""
    return {
        f"{folder}/{path.name}"
        for folder in "cista"
        for path in (root / folder).glob("*")
        if path.is_file()
    }


def check_only_orphans(root: Path, repository: Repository, before: set[str]) -> set[str]:
    """Check that the query for orphans lists every file that is left over, and none that is needed.

    ``before`` are files that were there already; gives the files left over.
    """
    found = repository.inspect("unreferenced_files")["location"].to_pylist()
    left = {location.removeprefix(f"file://{root}/") for location in found}
    needed: set[str] = set()
    for branch in repository.list_branches():
        for info in repository.ancestry(branch=branch):
            needed |= {f"s/{info.id}.parquet", f"t/{info.id}.parquet"}
            session = repository.readonly_session(snapshot_id=info.id)
            for batch in session.manifests():
                needed |= {f"i/{name}.parquet" for name in batch.column("manifest").to_pylist()}
            for path in session.array_paths():
                for batch in session.chunk_references(path):
                    native = batch.filter(pa.compute.equal(batch.column("kind"), "native"))
                    needed |= {f"c/{name}" for name in native.column("location").to_pylist()}
    everything = files_of(root)
    attributes = {key for key in everything if key.startswith("a/")}
    assert left == everything - needed - attributes
    assert not left & before
    return left
