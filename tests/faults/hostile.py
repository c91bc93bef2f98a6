"""A repository made by somebody who wishes harm, out of files that are sealed rightly.

Owns the ways to alter one file of a sound repository on a disk, beside a secret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icechunk_arrow import Repository
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.formats import envelope, manifest
from icechunk_arrow.formats.layout import FileKind, key_of
from tests.faults.repositories import CONFIG, PACKED, array_document, contents, payload
from tests.places import UNSYNCED
from tests.refs import table_of_refs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SECRET", "Victim", "state_victim"]

SECRET = b"nobody may read this " * 50


class Victim:
    """A repository on a disk beside a secret file, of which single files are exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "repository"
        (folder / "secret").write_bytes(SECRET)
        (folder / "x.parquet").write_bytes(SECRET)
        repo = Repository.create(self.root, config=CONFIG, storage_settings=UNSYNCED)
        session = repo.writable_session("main")
        session.set_document("/a", array_document(8, attributes={"note": "x" * 300}))
        session.set_document("/b", array_document(8))
        for index in (0, 1, 3):
            session.write_chunk("/a", (index,), payload(f"{index}", PACKED))
        for index in range(4):
            session.write_chunk("/b", (index,), b"b")
        self.snapshot_id = session.commit("sound")
        files = repo._context.files
        snapshot = files.read_snapshot(self.snapshot_id)
        (self.manifest,) = snapshot.manifest_sizes
        self.array_id = snapshot.get_node("/a").id
        self.table = files.read_manifest(self.manifest)

    def write(self, key: str, data: bytes) -> None:
        (self.root / key).write_bytes(data)

    def set_refs(self, refs: dict[bytes, ChunkRef], *, array_id: int | None = None) -> None:
        """Put other references of the first array into the manifest, which stays where it is."""
        others = self.table.filter(pc.not_equal(self.table["array_id"], self.array_id))
        mine = table_of_refs(self.array_id if array_id is None else array_id, refs)
        rows = sorted([mine, others], key=lambda t: t["array_id"][0].as_py())
        data = manifest.encode(pa.concat_tables(rows), self.manifest)
        self.write(key_of(FileKind.MANIFEST, self.manifest), data)

    def set_first_ref(self, ref: ChunkRef) -> None:
        sound = ChunkRef(inline=b"x", length=1)
        self.set_refs({b"\x00": ref, b"\x01": sound, b"\x03": sound})

    def alter_structure(
        self,
        rows: Callable[[list[dict[str, Any]]], None] | None = None,
        facts: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Change rows or facts of the structure file, and seal it again."""
        key = key_of(FileKind.STRUCTURE, self.snapshot_id)
        old = (self.root / key).read_bytes()
        table = pq.read_table(pa.BufferReader(old))
        metadata = pq.read_metadata(pa.BufferReader(old)).metadata
        texts = {k.decode(): v.decode() for k, v in metadata.items() if k != b"ARROW:schema"}
        values = table.to_pylist()
        if rows is not None:
            rows(values)
        if facts is not None:
            found = json.loads(texts["icechunk.snapshot"])
            facts(found)
            texts["icechunk.snapshot"] = json.dumps(found)
        data = envelope.write(
            pa.Table.from_pylist(values, schema=table.schema),
            kind=FileKind.STRUCTURE,
            identifier=self.snapshot_id,
            facts=texts,
            boundaries=[len(values)],
            settings={},
        )
        self.write(key, data)

    def read(self, allowed: Any = None) -> Any:
        repo = Repository.open(self.root, authorize_virtual_chunk_access=allowed)
        return contents(repo.readonly_session("main"))


def state_victim(folder: Path) -> Path:
    """Make a repository whose catalog is a state file."""
    root = folder / "repository"
    repo = Repository.create(root, config=CONFIG, storage_settings=UNSYNCED, catalog="state")
    session = repo.writable_session("main")
    session.set_document("/a", array_document(2))
    session.commit("sound")
    return root
