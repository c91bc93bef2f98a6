"""What makes the kit the same each time, a clock that is ours and ids from a seed; files opened and sealed again.

Owns every way to alter a sound repository into one that no writer of ours would make.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow import Repository
from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.ids import ID_BYTES, encode_id, sequence_name
from icechunk_arrow.engine import commit, context
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.formats import envelope
from icechunk_arrow.formats.layout import FileKind
from icechunk_arrow.storage import clock
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icechunk_arrow import Session

__all__ = ["Case", "Seal", "array_document", "group_document", "json_bytes"]

_BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
_FIXED = struct.Struct("<8s20sII")
_ENTRY = struct.Struct("<QI")


def json_bytes(value: Any) -> bytes:
    """A document as a client writes it."""
    return json.dumps(value).encode()


def group_document(**attributes: Any) -> bytes:
    """The document of a group."""
    return json_bytes({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def array_document(shape: list[int], chunks: list[int], **more: Any) -> bytes:
    """The document of an array of bytes, each of which is one element; ``...`` takes a member out."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 255,
        "codecs": [{"name": "bytes"}],
        "storage_transformers": [],
        "attributes": {},
        **more,
    }
    return json_bytes({name: value for name, value in document.items() if value is not ...})


@dataclass(kw_only=True)
class Seal:
    """A sealed file taken apart: what each part says can be altered before it is put together again."""

    body: bytes
    """All up to the seal."""
    entries: list[tuple[int, int]]
    name: bytes
    footer: bytes
    magic: bytes = b"ICASEAL\x01"
    count: int | None = None
    footer_length: int | None = None
    digest: Callable[[bytes], bytes] = field(default=lambda data: hashlib.sha256(data).digest())

    @classmethod
    def of(cls, data: bytes) -> Seal:
        """Take a file apart, as the specification says."""
        length = int.from_bytes(data[-8:-4], "little")
        trailer_at = len(data) - 8 - length - 68
        _, name, count, _ = _FIXED.unpack_from(data, trailer_at)
        at = trailer_at - 12 * count
        entries = list(_ENTRY.iter_unpack(data[at:trailer_at]))
        return cls(body=data[:at], entries=entries, name=name, footer=data[-8 - length : -8])

    def put_together(self) -> bytes:
        """Seal the parts."""
        entries = b"".join(_ENTRY.pack(*each) for each in self.entries)
        count = len(self.entries) if self.count is None else self.count
        said = len(self.footer) if self.footer_length is None else self.footer_length
        fixed = _FIXED.pack(self.magic, self.name, count, said)
        end = self.footer + len(self.footer).to_bytes(4, "little") + b"PAR1"
        return self.body + entries + fixed + self.digest(entries + fixed + end) + end


class _Clock(clock.Clock):
    """A clock that goes on by a minute whenever somebody looks."""

    def __init__(self) -> None:
        self.moment = _BEGIN

    def now(self) -> datetime:
        self.moment += timedelta(seconds=60, microseconds=7)
        return self.moment


@dataclass(kw_only=True)
class Case:
    """One case while it is made: a folder with a repository in it."""

    folder: Path
    random: random.Random

    @classmethod
    @contextmanager
    def begun(cls, folder: Path, name: str) -> Iterator[Case]:
        """Make a case whose ids and times depend on its name alone."""
        case = cls(folder=folder, random=random.Random(name))
        with ExitStack() as stack:
            stack.enter_context(patch.object(context, "random_bytes", case.random.randbytes))
            stack.enter_context(patch.object(clock, "in_use", _Clock()))
            stack.enter_context(patch.object(commit, "_CLOCK_DIFFERENCE", timedelta.max))
            stack.enter_context(patch.object(os, "fsync", lambda _: None))  # it only takes time
            folder.mkdir(parents=True)
            yield case
            shutil.rmtree(folder / "repository" / "tmp", ignore_errors=True)
            shutil.rmtree(folder / "state" / "tmp", ignore_errors=True)
            for empty in sorted(folder.rglob("*"), reverse=True):
                if empty.is_dir() and not any(empty.iterdir()):
                    empty.rmdir()

    @property
    def root(self) -> Path:
        """The root of the repository."""
        return self.folder / "repository"

    def new_id(self) -> str:
        """A fresh id."""
        return encode_id(self.random.randbytes(ID_BYTES))

    def noise(self, count: int) -> bytes:
        """Bytes of a chunk, which do not compress."""
        return self.random.randbytes(count)

    def create(
        self, *, catalog: str = "branches", apart: bool = False, synced: bool = True, **config: Any
    ) -> Repository:
        """Make the repository, with small thresholds, so that few bytes make every kind of chunk."""
        sizes = {"inline_chunk_threshold_bytes": 8, "packed_chunk_threshold_bytes": 64}
        return Repository.create(
            self.root,
            config=RepositoryConfig(**{**sizes, **config}),
            storage_settings=None if synced else UNSYNCED,
            catalog=catalog,
            state_url=self.folder / "state" if apart else None,
        )

    def open(self) -> Repository:
        """Open it anew."""
        apart = self.folder / "state"
        return Repository.open(self.root, state_url=apart if apart.exists() else None)

    def session(self) -> Session:
        """Write to main."""
        return self.open().writable_session("main")

    def tip(self, branch: str = "main") -> str:
        """Where a branch stands."""
        return self.open().lookup_branch(branch)

    def shrink(self) -> None:
        """Leave out what no reader needs: of small structure files the Arrow schema is the larger half."""
        for key in self.keys("s"):
            if key.endswith(".parquet"):
                self.rewrite(key)

    # -- single files

    def read(self, key: str) -> bytes:
        """Bytes of a file."""
        return (self.root / key).read_bytes()

    def write(self, key: str, data: bytes) -> None:
        """Put other bytes into a file, or make it."""
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(data)

    def write_json(self, key: str, value: Any) -> None:
        """The same, as JSON."""
        self.write(key, json.dumps(value).encode())

    def entry_key(self, number: int, branch: str = "main") -> str:
        """Key of an entry of a branch."""
        return f"refs/branch.{branch}/{sequence_name(number)}.json"

    def keys(self, folder: str) -> list[str]:
        """Keys of the files of a folder."""
        return sorted(f"{folder}/{each.name}" for each in (self.root / folder).iterdir())

    def the_one(self, folder: str) -> str:
        """Key of the only file of a folder."""
        (key,) = self.keys(folder)
        return key

    def reseal(self, key: str, alter: Callable[[Seal], Seal]) -> str:
        """Alter what a file's seal says; give the key."""
        self.write(key, alter(Seal.of(self.read(key))).put_together())
        return key

    def rewrite(
        self,
        key: str,
        *,
        rows: Callable[[list[dict[str, Any]]], Any] | None = None,
        schema: Callable[[pa.Schema], pa.Schema] | None = None,
        texts: Callable[[dict[str, str]], Any] | None = None,
        group_rows: int | None = None,
    ) -> str:
        """Alter rows, columns or the key-values of a Parquet file, and seal it rightly; give the key."""
        kind = FileKind(key[0])
        source = pa.BufferReader(self.read(key))
        table = pq.read_table(source)
        found = pq.read_metadata(source).metadata or {}
        known = {k.decode(): v.decode() for k, v in found.items() if k != b"ARROW:schema"}
        values = table.to_pylist()
        values = (rows(values) if rows is not None else None) or values
        if texts is not None:
            texts(known)
        wanted = table.schema.remove_metadata()
        wanted = wanted if schema is None else schema(wanted)
        names = wanted.names
        made = pa.Table.from_pylist([{n: v.get(n) for n in names} for v in values], schema=wanted)
        step = group_rows or max(len(values), 1)
        data = envelope.write(
            made,
            kind=kind,
            identifier=key[2:-8],
            facts={k: v for k, v in known.items() if v is not None},
            boundaries=[*range(step, len(values), step), *([len(values)] if values else [])],
            settings={"write_statistics": ["array_id", "coord"]} if group_rows else {},
        )
        self.write(key, data)
        return key

    def facts(self, snapshot: str, alter: Callable[[dict[str, Any]], Any]) -> str:
        """Alter the facts of a snapshot; give the key."""

        def change(texts: dict[str, str]) -> None:
            found = json.loads(texts["icechunk.snapshot"])
            alter(found)
            texts["icechunk.snapshot"] = json.dumps(found)

        return self.rewrite(f"s/{snapshot}.parquet", texts=change)

    def nodes(self, snapshot: str, alter: Callable[[dict[str, dict[str, Any]]], Any]) -> str:
        """Alter the rows of a structure file, which are given by path; give the key."""

        def change(rows: list[dict[str, Any]]) -> None:
            alter({row["path"]: row for row in rows})

        return self.rewrite(f"s/{snapshot}.parquet", rows=change)

    def state(self, alter: Callable[[dict[str, Any]], Any], *, summed: bool = True) -> str:
        """Alter the state file, with a right checksum or without one; give the key."""
        folder = self.folder / "state" if (self.folder / "state").exists() else self.root
        found = json.loads((folder / "state.json").read_bytes())
        del found["crc32c"]
        alter(found)
        if summed:
            found["crc32c"] = "00000000"
        data = json.dumps(found, indent=1).encode()
        if summed:
            head, _, tail = data.rpartition(b"00000000")
            data = head + f"{crc32c(data):08x}".encode() + tail
        (folder / "state.json").write_bytes(data)
        return "state.json"
