"""What this package's reader finds in a repository, in the form of the kit's `expected.json`."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import TYPE_CHECKING, Any

from icechunk_arrow import Repository
from icechunk_arrow.core import coords
from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.engine.files import find_ledger
from icechunk_arrow.errors import CorruptFileError, SnapshotNotFoundError
from icechunk_arrow.formats import transaction
from icechunk_arrow.formats.facts import extra_facts
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.formats.times import encode_time
from tests.conformance.places import document_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from icechunk_arrow import Session
    from icechunk_arrow.core.snapshot import SnapshotFacts

__all__ = ["FEW_BYTES", "read_all"]

MOST_ASKED = 300
"""Of arrays with up to so many chunks in their grid each is asked for, as Zarr does."""
FEW_BYTES = 40
"""Chunks of up to so many bytes stand in `expected.json`, of longer ones a checksum."""


def read_all(
    url: str | os.PathLike[str],
    state_url: str | os.PathLike[str] | None = None,
    *,
    branches: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Read branches and tags, every snapshot behind them, every document, chunk and log.

    Names of branches and tags are given where a place cannot be listed.
    """
    repo = Repository.open(url, state_url=state_url)
    context = repo._context
    storage = context.storage
    found: dict[str, Any] = {
        "repository": context.files.repository,
        "branches": {
            name: _branch(repo, name)
            for name in sorted(repo.list_branches() if branches is None else branches)
        },
        "tags": {
            name: repo.lookup_tag(name)
            for name in sorted(repo.list_tags() if tags is None else tags)
        },
        "ledger": None,
        "snapshots": {},
    }
    ledger = find_ledger(storage, context.files.repository)
    if ledger is not None:
        found["ledger"] = {
            "retired": dict(ledger.retired),
            "rewritten": dict(ledger.rewritten),
            "census": ledger.census,
            "verified": sorted(ledger.verified),
        }
    tips = {each["snapshot"] for each in found["branches"].values()} | {*found["tags"].values()}
    for tip in sorted(tips):
        for snapshot in _kept_ancestors(repo, found["ledger"] or {}, tip):
            if snapshot in found["snapshots"]:
                break
            found["snapshots"][snapshot] = _snapshot(repo, snapshot)
    found["snapshots"] = dict(sorted(found["snapshots"].items()))
    return found


def _branch(repo: Repository, name: str) -> dict[str, Any]:
    repo.lookup_branch(name)
    snapshot = repo.lookup_branch(name)
    tip = repo._context.catalog.get_tip(name)
    while tip.snapshot_id != snapshot:
        tip = repo._context.catalog.tip_before(tip)
    return {"snapshot": snapshot, "sequence": tip.named_by if tip.named_by >= 0 else None}


def _kept_ancestors(repo: Repository, ledger: dict[str, Any], tip: str) -> Iterator[str]:
    """Walk to the first snapshot, over those that are retired."""
    files, seen = repo._context.files, set[str]()
    current: str | None = tip
    while current is not None:
        if current in seen:
            key = key_of(FileKind.STRUCTURE, current)
            raise CorruptFileError(f"the ledger leads {key} back to itself", key=key)
        seen.add(current)
        try:
            facts = files.read_facts(current)
        except SnapshotNotFoundError:
            if current not in ledger.get("retired", {}):
                raise
            current = ledger["retired"][current]
            continue
        yield facts.id
        current = facts.parent_id


def _snapshot(repo: Repository, identifier: str) -> dict[str, Any]:
    session = repo.readonly_session(snapshot_id=identifier)
    facts = repo._context.files.read_snapshot(identifier).facts
    nodes = {}
    for path in session.node_paths():
        node = session.find_node(path)
        assert node is not None
        nodes[path] = {"id": node.id, "document": _document(session, path)}
        if node.is_array:
            nodes[path]["chunks"] = list(_chunks(session, path))
    return {
        "parent": facts.parent_id,
        **_facts(facts),
        "history": [each.id for each in facts.history],
        "nodes": nodes,
        "operations": None if facts.parent_id is None else _operations(repo, facts),
    }


def _facts(facts: SnapshotFacts) -> dict[str, Any]:
    return {
        "message": facts.message,
        "written_at": encode_time(facts.written_at),
        "started_at": encode_time(facts.started_at),
        "properties": dict(facts.properties),
        "total_parents": facts.total_parents,
        "next_node_id": facts.next_node_id,
        "branch": facts.branch,
        "sequence": facts.sequence,
        **extra_facts(facts),
    }


def _document(session: Session, path: str) -> str:
    return json.dumps(document_of(session.store, path.removeprefix("/")), sort_keys=True)


def _chunks(session: Session, path: str) -> Iterator[dict[str, Any]]:
    rows = [row for batch in session.chunk_references(path) for row in batch.to_pylist()]
    view = session.get_array(path)
    if math.prod(view.grid.chunk_counts) <= MOST_ASKED:
        there = [
            c for c in product(*map(range, view.grid.chunk_counts)) if session.find_chunk(view, c)
        ]
        assert there == sorted(tuple(row["index"]) for row in rows), (
            "asked one by one it has others"
        )
    for row in sorted(rows, key=lambda row: list(row["index"])):
        chunk: dict[str, Any] = {
            "index": list(row["index"]),
            "kind": row["kind"],
            "length": row["length"],
        }
        if row["kind"] != "inline":
            chunk |= {"location": row["location"], "offset": row["offset"]}
        for name in ("etag", "crc32c"):
            if row[name] is not None:
                chunk[name] = row[name]
        if row["last_modified"] is not None:
            chunk["last_modified"] = encode_time(row["last_modified"])
        if row["kind"] != "virtual":
            ref = session.find_chunk(view, tuple(row["index"]))
            assert ref is not None
            chunk |= _said(bytes(session.read_chunk(ref, 0, row["length"])))
        yield chunk


def _said(data: bytes) -> dict[str, str]:
    if len(data) <= FEW_BYTES:
        return {"bytes": data.hex()}
    return {"bytes_crc32c": f"{crc32c(data):08x}"}


def _operations(repo: Repository, facts: SnapshotFacts) -> list[dict[str, Any]]:
    storage = repo._context.storage
    log = repo._context.files.read_log(facts.id)
    assert len(log.names) >= 0
    _, table = transaction.read_rows(storage.get(key_of(FileKind.TRANSACTION, facts.id)), facts.id)
    said = json.loads(table["snapshot"][0].as_py())
    same = {name: said.get(name) for name in _facts(facts)}
    assert same == _facts(facts), said
    return [_operation(row) for row in table.to_pylist()[1:] if row["operation"] in KNOWN]


KNOWN = transaction.EFFECTS


def _operation(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if value is not None and name != "id"}
    if "coord" in found:
        found["coord"] = list(coords.decode_one(found["coord"]))
    if "last_modified" in found:
        found["last_modified"] = encode_time(found["last_modified"])
    return found
