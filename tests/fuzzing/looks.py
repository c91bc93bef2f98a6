"""Ways to look at a repository: opened, listed, read, queried, committed upon.

Owns what is asked in each way, and how an answer differs from an error of ours and from anything else.
"""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from operator import lt
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import zarr

import icechunk_arrow
import icechunk_arrow.duckdb
from icechunk_arrow import IcechunkArrowError, NotAuthorizedError, Repository
from icechunk_arrow.core import coords
from icechunk_arrow.engine.files import find_ledger
from icechunk_arrow.formats import transaction
from icechunk_arrow.formats.layout import FileKind, key_of
from tests.conformance.foreign import second_reader
from tests.conformance.kit import reading
from tests.conformance.kit.workshop import group_document
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow import Session

__all__ = [
    "LACKS",
    "LOOKS",
    "NEW_BYTES",
    "NEW_GROUP",
    "Answer",
    "EngineError",
    "look",
    "operation_of",
    "views_of",
]

LACKS = "asked one by one,"
TABLES = {
    "manifest": ("manifests",),
    "structure": ("nodes", "manifests", "snapshots"),
    "attributes": ("nodes",),
    "log": ("operations", "snapshots"),
    "branch": ("refs", "snapshots"),
    "tag": ("refs", "snapshots"),
    "hint": ("refs",),
    "ledger": ("refs",),
    "ledger log": ("refs",),
    "state": ("refs", "snapshots"),
    "config": ("config",),
}
"""What can show a damage of each kind."""
VIEWS = {
    "manifest": ("chunks",),
    "structure": ("nodes", "chunks"),
    "attributes": ("nodes",),
    "log": ("operations",),
    "config": ("config",),
}


def views_of(kind: str) -> tuple[str, ...]:
    """Name the views that show a damage of a kind."""
    return VIEWS.get(kind, ("refs",))


_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{19}[0G]")
_NO_MEMORY = re.compile("alloc of size|bad_alloc|out of memory|MemoryError", re.IGNORECASE)
"""What errors say that came of asking for too much, and were taken for damage."""
NEW_GROUP, NEW_BYTES = "/fuzzed", b"\x07"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a look: a value, an error of ours that names a file, or something else."""

    value: Any = None
    refusal: str | None = None
    engine: str | None = None
    """An error of DuckDB's own, while it carried out a query of ours."""
    crash: str | None = None


@cache
def connection() -> Any:
    """A connection to DuckDB that is used again and again, by one thread."""
    con = duckdb.connect()
    con.execute("SET threads = 1")
    return con


def opened(url: str) -> Repository:
    """Open it anew: no handle, and nothing that another has cached, is used."""
    return Repository.open(url, storage_settings=UNSYNCED)


def read(url: str, kind: str) -> Any:
    """List branches and tags, and read every snapshot behind them: documents, chunks, logs."""
    repo = opened(url)
    context = repo._context
    found: dict[str, Any] = {
        "repository": context.files.repository,
        "branches": {name: reading._branch(repo, name) for name in sorted(repo.list_branches())},
        "tags": {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())},
        "ledger": None,
        "snapshots": {},
    }
    ledger = find_ledger(context.storage, context.files.repository)
    if ledger is not None:
        found["ledger"] = {
            "retired": dict(ledger.retired),
            "rewritten": dict(ledger.rewritten),
            "census": ledger.census,
            "verified": sorted(ledger.verified),
        }
    tips = {each["snapshot"] for each in found["branches"].values()} | {*found["tags"].values()}
    for tip in sorted(tips):
        for snapshot in reading._kept_ancestors(repo, found["ledger"] or {}, tip):
            if snapshot in found["snapshots"]:
                break
            found["snapshots"][snapshot] = _snapshot(repo, snapshot)
    return json.loads(json.dumps(found))


def _snapshot(repo: Repository, identifier: str) -> dict[str, Any]:
    """All of a snapshot, in the form of the conformance kit."""
    facts = repo._context.files.read_facts(identifier)
    return {
        "parent": facts.parent_id,
        **reading._facts(facts),
        "history": [each.id for each in facts.history],
        "nodes": _nodes(repo, identifier),
        "operations": None if facts.parent_id is None else _operations(repo, identifier),
    }


def _nodes(repo: Repository, identifier: str) -> dict[str, Any]:
    session = repo.readonly_session(snapshot_id=identifier)
    nodes = {}
    for path in session.node_paths():
        node = session.find_node(path)
        assert node is not None
        nodes[path] = {"id": node.id, "document": reading._document(session, path)}
        if node.is_array:
            nodes[path]["chunks"] = list(_chunks(session, path))
    return nodes


def _chunks(session: Session, path: str) -> Iterator[dict[str, Any]]:
    """Chunks as they are listed; where there may be few each is asked for too, and must be found alike."""
    rows = [row for batch in session.chunk_references(path) for row in plain_rows(batch)]
    rows.sort(key=lambda row: list(row["index"]))
    view = session.get_array(path)
    counts = view.grid.chunk_counts
    if prod(counts) <= reading.MOST_ASKED:
        there = [each for each in product(*map(range, counts)) if session.find_chunk(view, each)]
        listed = [tuple(row["index"]) for row in rows]
        listed = [each for each in listed if all(map(lt, each, counts))]  # others do not exist
        assert {*there} <= {*listed}, f"{path} has chunks that are not listed, asked one by one"
        assert there == listed, f"{LACKS} {path} lacks chunks that are listed"
    for row in rows:
        chunk: dict[str, Any] = {name: row[name] for name in ("index", "kind", "length")}
        if row["kind"] != "inline":
            chunk |= {"location": row["location"], "offset": row["offset"]}
        for name in ("etag", "crc32c", "last_modified"):
            if row[name] is not None:
                chunk[name] = row[name]
        if row["kind"] != "virtual":
            ref = session.find_chunk(view, tuple(row["index"]))
            assert ref is not None
            chunk |= reading._said(bytes(session.read_chunk(ref, 0, row["length"])))
        yield chunk


def plain_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Give rows as values; times as numbers, since not every time is a date of Python's."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.int64()))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def _operations(repo: Repository, identifier: str) -> list[dict[str, Any]]:
    """What a log says, of each operation what belongs to it (R34: values in other columns are ignored)."""
    files = repo._context.files
    log = files.read_log(identifier)
    assert len(log.names) >= 0
    data = files.storage.get(key_of(FileKind.TRANSACTION, identifier))
    _, table = transaction.read_rows(data, identifier)
    rows = plain_rows(table)[1:]
    return [operation_of(row) for row in rows if row["operation"] in transaction.EFFECTS]


def operation_of(row: dict[str, Any]) -> dict[str, Any]:
    """Give what the table of operations in the specification gives one."""
    names = {"operation", "effect", *second_reader.NEEDED.get(row["operation"], _OF_A_SOURCE)}
    if row["operation"] in second_reader.NEEDED:
        names |= {"node_id", "node_type", "path"}
    found = {name: row[name] for name in sorted(names) if row.get(name) is not None}
    if isinstance(found.get("coord"), bytes):
        found["coord"] = list(coords.decode_one(found["coord"]))
    return found


_OF_A_SOURCE = ("location", "etag", "last_modified", "size_bytes")


def through_zarr(url: str, kind: str) -> Any:
    """Open main as a hierarchy of Zarr and read its arrays, of a long one the beginning.

    What zarr itself says of a document that it does not take is an answer: no rule of ours is about it.
    """
    store = opened(url).readonly_session("main").store
    found: dict[str, Any] = {}
    try:
        for path in store.session.node_paths():
            try:
                found[path] = _through_zarr(store, path)
            except Exception as error:
                if _passed_through_us(error):
                    raise
                found[path] = f"zarr: {type(error).__name__}"
    finally:
        store.close()
    return found


def _through_zarr(store: Any, path: str) -> list[Any]:
    node = zarr.open(store, path=path.removeprefix("/"), mode="r")
    if not isinstance(node, zarr.Array):
        return [json.dumps(node.attrs.asdict(), sort_keys=True)]
    found = [json.dumps(node.attrs.asdict(), sort_keys=True), str(node.dtype), node.shape]
    many = 50 * _MOST_VALUES if node.ndim == 1 else _MOST_VALUES
    if prod(node.shape) <= many and prod(node.chunks) <= _MOST_VALUES and path not in _VIRTUAL:
        values = node[:5] if node.ndim == 1 and node.shape[0] > 50 else node[...]
        found.append(np.asarray(values).tobytes())
    return found


_MOST_VALUES = 1 << 12
_VIRTUAL = {"/v", "/virtual"}


def _passed_through_us(error: BaseException) -> bool:
    """Whether an error came out of this package, or through it."""
    if isinstance(error, IcechunkArrowError):
        return True
    if isinstance(error, BaseExceptionGroup):
        return any(map(_passed_through_us, error.exceptions))
    frames = traceback.extract_tb(error.__traceback__)
    return any("/icechunk_arrow/" in frame.filename for frame in frames)


def through_tables(url: str, kind: str) -> Any:
    """Make the tables that a kind of file shows itself in."""
    session = opened(url).readonly_session("main")
    return {name: _sorted(_shown(name, session.table(name))) for name in TABLES[kind]}


def through_duckdb(url: str, kind: str) -> Any:
    """Attach it, and ask some views for all that they have."""
    con = connection()
    icechunk_arrow.duckdb.attach(con, url, "r")
    try:
        return {name: _sorted(_shown(name, _asked(con, name))) for name in views_of(kind)}
    finally:
        if con is connection():
            icechunk_arrow.duckdb.detach(con, "r")


class EngineError(Exception):
    """What DuckDB itself says against a query."""


def _asked(con: Any, name: str) -> pa.Table:
    try:
        return con.sql(f"FROM r.{name}").to_arrow_table()
    except (duckdb.InternalException, duckdb.FatalException, duckdb.OutOfMemoryException):
        connection.cache_clear()  # from this one it does not recover
        raise
    except duckdb.Error as error:  # an engine passes on texts alone
        text = str(error)
        ours = re.search(r"\w+Error: .*", text.rpartition("Traceback")[2])
        if ours and _names_a_file(ours[0]):
            raise IcechunkArrowError(f"through DuckDB: {ours[0]}") from error
        raise EngineError(text.partition("\n")[0]) from error


def _shown(name: str, rows: pa.Table) -> list[Any]:
    """Give the rows of a table; of operations what belongs to each, as the table has rows as they stand (R34)."""
    if name == "nodes":
        return [
            {
                key: _as_json(value) if isinstance(value, str) else value
                for key, value in row.items()
            }
            for row in plain_rows(rows)
        ]
    if name != "operations":
        return plain_rows(rows)
    known = [row for row in plain_rows(rows) if row["operation"] in transaction.EFFECTS]
    known.sort(key=lambda row: (row["snapshot"], row["ordinal"]))  # others may stand between them
    return [
        operation_of(row) | {"place": place, "snapshot": row["snapshot"]}
        for place, row in enumerate(known)
    ]


def _as_json(text: str) -> str:
    """Say what JSON means, which is shown as it is spelt."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


def _array_to_write(session: Session) -> tuple[str, tuple[int, ...]] | None:
    """Choose an array, and the last chunk of its grid."""
    for path in session.node_paths():
        node = session.find_node(path)
        assert node is not None
        if node.is_array:
            counts = session.get_array(path).grid.chunk_counts
            if all(counts) and path != "/n":
                return path, tuple(count - 1 for count in counts)
    return None


def commit(url: str, kind: str) -> Any:
    """Write a chunk and a group, commit, and read what stands there then."""
    session = opened(url).writable_session("main")
    where = _array_to_write(session)
    root = session.find_node("/")
    if root is None or not root.is_array:  # arrays have nothing below them
        session.set_document(NEW_GROUP, group_document())
    if where is not None:
        session.write_chunk(*where, NEW_BYTES)
    made = session.commit("committed upon")
    repo = opened(url)
    assert repo.lookup_branch("main") == made, "the commit is not where the branch stands"
    nodes = json.loads(json.dumps(_nodes(repo, made)))
    return {"nodes": nodes, "where": where, "parent": repo.lookup_snapshot(made).parent_id}


LOOKS: dict[str, Callable[[str, str], Any]] = {
    "read": read,
    "zarr": through_zarr,
    "tables": through_tables,
    "duckdb": through_duckdb,
    "commit": commit,
}


def look(name: str, url: str, kind: str) -> Answer:
    """Look in one way, and keep what came of it."""
    try:
        return Answer(value=LOOKS[name](url, kind))
    except IcechunkArrowError as error:
        return _refusal(error)
    except EngineError as error:
        return Answer(engine=str(error))
    except Exception as error:
        if isinstance(error, ExceptionGroup):  # as newer versions of zarr hand ours on
            ours, others = error.split(IcechunkArrowError)
            if others is None and ours is not None:
                return _refusal(ours.exceptions[0])
        return Answer(crash=_told(error))
    except BaseException as error:
        return Answer(crash=_told(error))


def _refusal(error: BaseException) -> Answer:
    text = f"{type(error).__name__}: {error}"
    if _NO_MEMORY.search(text):
        return Answer(crash=f"there is no memory for it: {text}")
    if _names_a_file(text) or isinstance(error, NotAuthorizedError):  # which tells the location
        return Answer(refusal=text)
    return Answer(crash=f"an error that names no file: {text}")


def _names_a_file(text: str) -> bool:
    return bool(_ID.search(text) or re.search(r"refs/|config\.yaml|state\.json", text))


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames)
    )
    return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]} ({where})"
