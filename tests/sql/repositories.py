"""Repositories with everything that tables have to show."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

from icechunk_arrow import (
    ManifestSet,
    ManifestSettings,
    Repository,
    RepositoryConfig,
)
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icechunk_arrow import Session

__all__ = ["Filled", "add_array", "fill", "new_repository", "refer"]

STRANGE = 'it\'s "quoted"; --\n[a]*?{x} ß🎈'
"""A name that is a danger to whoever does not quote it."""
UNEQUAL = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10, 7],
    "data_type": "int32",
    "chunk_grid": {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[1, 2, [3, 2], 5], 3]},
    },
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 0,
}
"""An array with chunks of unequal length, which zarr 3.1 cannot write."""
CONFIG: dict[str, Any] = {"inline_chunk_threshold_bytes": 8, "packed_chunk_threshold_bytes": 64}


@dataclass
class Filled:
    """A repository, and its snapshots in order."""

    repository: Repository
    root: Path
    snapshots: list[str] = field(default_factory=list)


def new_repository(root: Path | str, *, rows: int = 12, **settings: Any) -> Repository:
    """Make a repository whose manifests have at most so many rows."""
    only = ManifestSet(name="default", max_manifest_size=rows)
    config = RepositoryConfig(
        chunk_manifests=ManifestSettings(sets=(only,), rules=()),
        **{**CONFIG, **settings},
    )
    return Repository.create(str(root), config=config, storage_settings=UNSYNCED)


def add_array(session: Session, path: str, shape: tuple[int, ...], **more: Any) -> Any:
    """Create an array of one-byte elements."""
    options = {"chunks": (1,) * len(shape), "dtype": "u1", "compressors": None, "fill_value": 0}
    return zarr.create_array(session.store, name=path, shape=shape, **{**options, **more})


def refer(session: Session, path: str, places: Sequence[tuple[int, ...]], **columns: Any) -> None:
    """Point chunks of an array to parts of files."""
    count = len(places)
    table: dict[str, Any] = {
        "index": pa.array([list(each) for each in places], pa.list_(pa.int64())),
        "location": [f"s3://bucket/{STRANGE}/{n % 3}.nc".replace("\n", "") for n in range(count)],
        "offset": pa.array([10 * n for n in range(count)], pa.int64()),
        "length": pa.array([n % 7 for n in range(count)], pa.int64()),
        **columns,
    }
    session.set_references(path, pa.table(table))


def fill(root: Path, *, wide: bool) -> Filled:
    """Write chunks of every kind in several commits."""
    filled = Filled(new_repository(root), root)
    filled.snapshots.append(filled.repository.lookup_branch("main"))
    for message, change in (
        (f"what there is: {STRANGE}", _create),
        ("chunks", _write),
        ("changed", _change),
        ("references", _refer),
        ("some references again", _refer_again),
    ):
        session = filled.repository.writable_session("main")
        change(session, wide)
        metadata = {"why": "a ß ' ;", "more": {"x": [1, 2]}} if change is _create else None
        filled.snapshots.append(session.commit(message, metadata))
    filled.repository.create_tag("after chunks", filled.snapshots[2])
    filled.repository.create_branch("side; drop", filled.snapshots[3])
    return filled


def _group(session: Session) -> Any:
    return zarr.open_group(session.store)


def _create(session: Session, wide: bool) -> None:
    zarr.create_group(session.store, attributes={"large": "ß" * 5000})
    zarr.create_group(session.store, path=STRANGE, attributes={"a'\"b": [1, None, "ß\n"]})
    add_array(session, "inline", (3, 4), chunks=(1, 4))
    names = ("y'", None)
    add_array(session, f"{STRANGE}/packed", (70, 40), chunks=(1, 40), dimension_names=names)
    add_array(session, "own file", (2, 200), chunks=(1, 100))
    add_array(session, "scalar", ())
    add_array(session, "sparse", (20_000,), chunks=(4,), dtype="f8", compressors="auto")
    add_array(session, "empty", (5, 3, 2))
    add_array(session, "no size", (0, 5), attributes={"big": "x" * 5000})
    nothing = np.datetime64("NaT", "s")
    add_array(session, "times", (4,), chunks=(2,), dtype="M8[s]", fill_value=nothing)
    add_array(session, "virtual", (30, 30))
    add_array(session, "checked", (40,))
    add_array(session, "deep", (3, 3, 3, 3, 3))
    add_array(session, "doomed", (4,), chunks=(2,))
    add_array(session, "moving", (100,), chunks=(10,))
    if wide:
        add_array(session, "far", (2**31, 100_000), chunks=(1, 1000))
        add_array(session, "too many", (2**40, 2**40, 2**40))
    session.set_document("/unequal", json.dumps(UNEQUAL).encode())


def _write(session: Session, wide: bool) -> None:
    group = _group(session)
    packed = group[f"{STRANGE}/packed"]
    for row in range(70):
        packed[row] = row % 250 + 1
    group["inline"][:] = 1
    group["own file"][0] = 2
    group["own file"][1, 100:] = 3
    group["scalar"][...] = 7
    for index in (0, 63, 64, 200, 4999):
        group["sparse"][4 * index : 4 * index + 4] = np.arange(4) + index
    group["times"][:] = np.array(["2024-01-01", "NaT", "2024-01-02", "2024-01-03"], "M8[s]")
    group["moving"][:] = np.arange(100) + 1
    group["doomed"][:] = 1
    group["deep"][1, 2, 0:2, 1, 2] = 9
    session.write_chunk("/unequal", (3, 1), b"abc")
    if wide:
        session.write_chunk("/far", (70_000, 3), b"x" * 30)
        session.write_chunk("/far", (2**31 - 1, 99), b"x" * 30)
        session.write_chunk("/too many", (2**39, 2**39, 2**39), b"x" * 9)


def _change(session: Session, wide: bool) -> None:
    group = _group(session)
    for row in (5, 64, 69):
        group[f"{STRANGE}/packed"][row] = 251
    group["inline"][1] = 2
    session.store.delete_sync("own file/c/0/1")
    group["moving"][95:] = 0
    group["moving"].resize((60,))
    group["sparse"].attrs["text"] = STRANGE
    session.move("/moving", "/moved")
    session.delete_nodes(["/doomed"])


def _refer(session: Session, wide: bool) -> None:
    places = [(row, column) for row in range(30) for column in range(30) if row != 7]
    refer(session, "/virtual", places)
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    times = [moment if n % 3 else None for n in range(40)]
    refer(
        session,
        "/checked",
        [(row,) for row in range(40)],
        etag=pa.array(["an 'etag'" if n % 2 else None for n in range(40)], pa.string()),
        last_modified=pa.array(times, pa.timestamp("us", "UTC")),
    )
    if wide:
        huge = "file:///data/huge.nc"
        session.store.set_virtual_ref("far/c/0/0", huge, offset=2**33, length=2**32)


def _refer_again(session: Session, wide: bool) -> None:
    places = [(3, column) for column in range(30)]
    refer(session, "/virtual", places, offset=pa.array([7] * 30))
    _group(session)["inline"][0] = 5
