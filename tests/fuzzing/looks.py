"""Ways to look at a repository: opened, listed, read, queried, committed upon.

Owns what is asked in each way, and how an answer differs from an error of ours and from anything else.
"""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import zarr

import icechunk_arrow
import icechunk_arrow.duckdb
from icechunk_arrow import IcechunkArrowError, Repository
from icechunk_arrow.engine.files import find_ledger
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.kit import reading
from tests.conformance.kit.workshop import group_document
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow import Session

__all__ = ["LOOKS", "TABLES", "Answer", "look"]

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
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{19}[0G]")
NEW_GROUP, NEW_BYTES = "/fuzzed", b"\x07"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a look: a value, an error of ours that names a file, or something else."""

    value: Any = None
    refusal: str | None = None
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


def read(url: str, kind: str) -> Any:  # noqa: ARG001 -- everything is read, whatever was damaged
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
            found["snapshots"][snapshot] = reading._snapshot(repo, snapshot)
    return json.loads(json.dumps(found))


def through_zarr(url: str, kind: str) -> Any:  # noqa: ARG001
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
        return [json.dumps(node.attrs.asdict())]
    found = [json.dumps(node.attrs.asdict()), str(node.dtype), node.shape]
    many = 50 * _MOST_VALUES if node.ndim == 1 else _MOST_VALUES
    if prod(node.shape) <= many and prod(node.chunks) <= _MOST_VALUES and path not in _VIRTUAL:
        found.append(np.asarray(node[:5] if node.ndim == 1 and len(node) > 50 else node[...]).tobytes())
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
    return {name: _sorted(session.table(name).to_pylist()) for name in TABLES[kind]}


def through_duckdb(url: str, kind: str) -> Any:
    """Attach it, and ask some views for all that they have."""
    con = connection()
    icechunk_arrow.duckdb.attach(con, url, "r")
    try:
        found = {
            name: _sorted(con.sql(f"FROM r.{name}").to_arrow_table().to_pylist())
            for name in VIEWS.get(kind, ("refs",))
        }
    finally:
        icechunk_arrow.duckdb.detach(con, "r")
    return found


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


def commit(url: str, kind: str) -> Any:  # noqa: ARG001
    """Write a chunk and a group, commit, and read what stands there then."""
    session = opened(url).writable_session("main")
    where = _array_to_write(session)
    session.set_document(NEW_GROUP, group_document())
    if where is not None:
        session.write_chunk(*where, NEW_BYTES)
    made = session.commit("committed upon")
    repo = opened(url)
    assert repo.lookup_branch("main") == made, "the commit is not where the branch stands"
    found = json.loads(json.dumps(reading._snapshot(repo, made)))
    return {"nodes": found["nodes"], "where": where, "parent": found["parent"]}


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
    except Exception as error:
        if isinstance(error, ExceptionGroup):  # as newer versions of zarr hand ours on
            ours, others = error.split(IcechunkArrowError)
            if others is None and ours is not None:
                return _refusal(ours.exceptions[0])
        if isinstance(error, duckdb.Error) and _names_a_file(str(error)):
            return Answer(refusal=f"through DuckDB: {error}")  # an engine passes on texts alone
        return Answer(crash=_told(error))
    except BaseException as error:
        return Answer(crash=_told(error))


def _refusal(error: BaseException) -> Answer:
    text = f"{type(error).__name__}: {error}"
    if _names_a_file(text):
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


def exists(url: str) -> bool:
    """Whether anything is there at all."""
    return any(MemoryStorage(url.partition("//")[2]).list(limit=1))
