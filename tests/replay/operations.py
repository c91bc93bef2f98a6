"""Random operations on a session: drawn, written down as JSON, and carried out.

Drawing looks at the session for what is there, never at the clock: the same random numbers on the same hierarchy
give the same operation.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

from tests.replay.model import SOURCE_BYTES, chunk_bytes, fill_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from icechunk_arrow.session import Session
    from tests.replay.model import Operation, Place

__all__ = ["draw", "draw_in_fork", "perform", "set_up"]

KINDS = {"int32": 7, "float64": "NaN", "uint8": 0, "int16": -1, "bool": False, "float32": 0.5}
NAMES = "abcd"
MOST = 12
"""Arrays grow up to this many chunks along a dimension."""


def set_up(session: Session) -> list[Operation]:
    """Make what every history begins with; give the operations."""
    operations: list[Operation] = [
        {"op": "create_group", "path": "/"},
        {"op": "create_group", "path": "/g"},
        array("/a", (16, 16), (2, 2), "int32"),
        array("/g/b", (24,), (2,), "float64"),
        array("/s", (), (), "int16"),
    ]
    for operation in operations:
        perform(session, operation, "")
    return operations


def array(
    path: str,
    shape: Place,
    chunks: Place,
    dtype: str,
    shards: Place | None = None,
    raw: bool = True,
) -> Operation:
    """The creation of an array."""
    return {
        "op": "create_array",
        "path": path,
        "shape": list(shape),
        "chunks": list(chunks),
        "shards": None if shards is None else list(shards),
        "dtype": dtype,
        "fill": KINDS[dtype],
        "raw": raw,
    }


# -- carried out


def _document(op: Operation) -> bytes:
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if not op["raw"]:
        codecs.append({"name": "gzip", "configuration": {"level": 1}})
    if op["shards"]:
        inner = {
            "chunk_shape": op["chunks"],
            "codecs": codecs,
            "index_codecs": [codecs[0], {"name": "crc32c"}],
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"chunk_shape": op["shards"] or op["chunks"]}
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": op["shape"],
            "data_type": op["dtype"],
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": op["fill"],
            "codecs": codecs,
            "attributes": {},
        }
    ).encode()


GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'


def _document_of(session: Session, path: str) -> dict[str, Any]:
    node = session.find_node(path)
    assert node is not None, path
    found: dict[str, Any] = json.loads(session.document(node))
    return found


def _grid(session: Session, path: str) -> tuple[Place, Place, str]:
    """Shape, chunks and type of an array."""
    found = _document_of(session, path)
    chunks = found["chunk_grid"]["configuration"]["chunk_shape"]
    return tuple(found["shape"]), tuple(chunks), found["data_type"]


def _is_raw(session: Session, path: str) -> bool:
    codecs = _document_of(session, path)["codecs"]
    return [codec["name"] for codec in codecs] == ["bytes"]


def perform(session: Session, op: Operation, source: str) -> None:
    """Carry out one operation; ``source`` is the location that virtual chunks refer to."""
    _DO[op["op"]](session, op, source)


def _create(session: Session, op: Operation, _: str) -> None:
    data = GROUP if op["op"] == "create_group" else _document(op)
    session.set_document(op["path"], data)
    # as zarr spells it, so that a later change by zarr is that change alone
    zarr.open(session.store, path=op["path"][1:], mode="r+").update_attributes({})


def _write(session: Session, op: Operation, _: str) -> None:
    opened = zarr.open_array(session.store, path=op["path"][1:], mode="r+")
    shape = tuple(b - a for a, b in op["region"])
    fill = fill_of(
        {"dtype": str(opened.dtype), "fill": _document_of(session, op["path"])["fill_value"]}
    )
    values = values_of(op["value"], str(opened.dtype), shape, fill)
    opened[tuple(slice(a, b) for a, b in op["region"]) or ...] = values


def _resize(session: Session, op: Operation, _: str) -> None:
    zarr.open_array(session.store, path=op["path"][1:], mode="r+").resize(tuple(op["shape"]))


def _attributes(session: Session, op: Operation, _: str) -> None:
    zarr.open(session.store, path=op["path"][1:], mode="r+").update_attributes(op["set"])


def _delete(session: Session, op: Operation, _: str) -> None:
    session.delete_nodes([path for path, _ in op["nodes"]])


def _move(session: Session, op: Operation, _: str) -> None:
    session.move(op["path"], op["to"])


def _index(places: list[Any]) -> pa.Array:
    return pa.array([list(place) for place in places], pa.list_(pa.int64()))


def _refer(session: Session, op: Operation, source: str) -> None:
    _, chunks, dtype = _grid(session, op["path"])
    size = int(np.prod(chunks)) * np.dtype(dtype).itemsize
    count = len(op["chunks"])
    columns = {
        "index": _index([place for place, _ in op["chunks"]]),
        "location": pa.array([source] * count),
        "offset": pa.array([offset for _, offset in op["chunks"]], pa.int64()),
        "length": pa.array([size] * count, pa.int64()),
    }
    session.set_references(op["path"], pa.table(columns))


def _encoded(session: Session, op: Operation, _: str) -> None:
    chunks, dtype = _grid(session, op["path"])[1:]
    found = [chunk_bytes(op, tuple(place), dtype, chunks) for place in op["chunks"]]
    columns = {"index": _index(op["chunks"]), "data": pa.array(found, pa.binary())}
    session.set_encoded_chunks(op["path"], pa.table(columns))


def _clear(session: Session, op: Operation, _: str) -> None:
    session.clear_array(op["path"])


_DO: dict[str, Callable[[Session, Operation, str], None]] = {
    "create_group": _create,
    "create_array": _create,
    "write": _write,
    "resize": _resize,
    "attributes": _attributes,
    "delete": _delete,
    "move": _move,
    "refer": _refer,
    "encoded": _encoded,
    "clear": _clear,
}


# -- drawn


def draw(rng: Random, session: Session) -> Operation | None:
    """An operation that the session can do now; None where what was drawn does not go."""
    weights = {
        _draw_write: 50,
        _draw_chunks: 14,
        _draw_resize: 10,
        _draw_clear: 3,
        _draw_array: 7,
        _draw_group: 2,
        _draw_attributes: 4,
        _draw_delete: 3,
        _draw_move: 2,
    }
    chosen = rng.choices(list(weights), list(weights.values()))[0]
    return chosen(rng, session)


def draw_in_fork(rng: Random, session: Session) -> Operation | None:
    """An operation that a fork can do."""
    return rng.choice([_draw_write, _draw_write, _draw_chunks])(rng, session)


def _some_array(rng: Random, session: Session) -> str | None:
    paths = session.array_paths()
    number = rng.random()
    return paths[int(number * len(paths))] if paths else None


def _draw_write(rng: Random, session: Session) -> Operation | None:
    path = _some_array(rng, session)
    if path is None:
        return None
    shape, chunks, _ = _grid(session, path)
    whole = rng.random() < 0.15
    region = []
    for n, c in zip(shape, chunks, strict=True):
        start, size = rng.random(), rng.random()
        if not n:
            return None
        if whole:
            region.append([0, n])
            continue
        first = int(start * n)
        if size < 0.6:  # within a chunk or two
            region.append([first, min(first + 1 + int(size * 2 * c), n)])
        else:
            first -= first % c
            region.append([first, min(first + c * (1 + int((size - 0.6) * 15)), n)])
    kind = rng.choice(["fill", "fill", "constant", "random", "random"])
    value = [kind, rng.randrange(1, 90)]
    return {"op": "write", "path": path, "region": region, "value": value}


def _draw_chunks(rng: Random, session: Session) -> Operation | None:
    path = _some_array(rng, session)
    if path is None:
        return None
    shape, chunks, dtype = _grid(session, path)
    counts = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    places = list(itertools.product(*map(range, counts)))
    first, length, refer = rng.random(), rng.randrange(1, 20), rng.random() < 0.5
    step, seed = rng.choice([1, 1, 2]), rng.randrange(1000)
    chosen = places[int(first * len(places)) :: step][:length]
    if not chosen or not _is_raw(session, path):
        return None
    if refer and dtype != "bool":
        pairs = [
            [list(place), (seed + 64 * i) % (SOURCE_BYTES - 1024)] for i, place in enumerate(chosen)
        ]
        return {"op": "refer", "path": path, "chunks": pairs}
    return {"op": "encoded", "path": path, "chunks": [list(p) for p in chosen], "seed": seed}


def _draw_resize(rng: Random, session: Session) -> Operation | None:
    path = _some_array(rng, session)
    numbers = [(rng.random(), rng.randrange(-8, 9)) for _ in range(3)]
    if path is None:
        return None
    shape, chunks, _ = _grid(session, path)
    if not shape:
        return None
    sharded = _document_of(session, path)["codecs"][0]["name"] == "sharding_indexed"
    new = []
    for (chance, change), n, c in zip(numbers, shape, chunks, strict=False):
        size = n + (change * c if sharded else change) if chance < 0.7 else n
        new.append(max(0, min(size, MOST * c)))
    return {"op": "resize", "path": path, "shape": new}


def _draw_clear(rng: Random, session: Session) -> Operation | None:
    path = _some_array(rng, session)
    return None if path is None else {"op": "clear", "path": path}


def _groups(session: Session) -> list[str]:
    arrays = set(session.array_paths())
    return [path for path in session.node_paths() if path not in arrays]


def _free_path(rng: Random, session: Session) -> str | None:
    groups, number, name = _groups(session), rng.random(), rng.choice(NAMES)
    if not groups:
        return None
    path = groups[int(number * len(groups))].rstrip("/") + "/" + name
    taken = session.node_paths()
    below = any(each.startswith(path + "/") for each in taken)
    return None if path in taken or below or path.count("/") > 3 else path


def _draw_array(rng: Random, session: Session) -> Operation | None:
    path, dtype, form = _free_path(rng, session), rng.choice(list(KINDS)), rng.randrange(6)
    if path is None:
        return None
    if form == 0:
        return array(path, (), (), dtype)
    if form == 1:
        return array(path, (8, 12), (1, 2), dtype, shards=(2, 4))
    if form == 2:
        return array(path, (4, 3, 5), (2, 1, 2), dtype, raw=False)
    if form == 3:
        return array(path, (40,), (2,), dtype)
    return array(path, (9, 13), (2, 3), dtype, raw=form == 4)


def _draw_group(rng: Random, session: Session) -> Operation | None:
    path = _free_path(rng, session)
    return None if path is None else {"op": "create_group", "path": path}


def _draw_attributes(rng: Random, session: Session) -> Operation | None:
    paths, number = session.node_paths(), rng.random()
    value = rng.choice(["x" * 6000, "K", 5, None])
    if not paths:
        return None
    name = rng.choice(["units", "notes"])
    return {"op": "attributes", "path": paths[int(number * len(paths))], "set": {name: value}}


def _draw_delete(rng: Random, session: Session) -> Operation | None:
    paths, number = [p for p in session.node_paths() if p != "/"], rng.random()
    if not paths:
        return None
    chosen = paths[int(number * len(paths))]
    below = [p for p in paths if p.startswith(chosen + "/")]
    return {"op": "delete", "nodes": [[p, _known_id(session, p)] for p in [chosen, *below]]}


def _known_id(session: Session, path: str) -> int | None:
    """The id of a node that others know too."""
    node = session.find_node(path)
    assert node is not None
    return node.id if session._staging.is_committed(node.id) else None


def _draw_move(rng: Random, session: Session) -> Operation | None:
    paths, number = [p for p in session.node_paths() if p != "/"], rng.random()
    to = _free_path(rng, session)
    if not paths or to is None:
        return None
    path = paths[int(number * len(paths))]
    return None if to.startswith(path + "/") else {"op": "move", "path": path, "to": to}
