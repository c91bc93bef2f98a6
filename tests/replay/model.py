"""What a hierarchy shows after some operations: dictionaries and numpy, and nothing of the package.

Owns what each operation of a commit's metadata means. An array is what its chunks are, whole ones, as Zarr writes
them: also what stands in an edge chunk outside of the array counts, since it comes back when the array grows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Array",
    "Group",
    "Place",
    "Tree",
    "chunk_bytes",
    "fill_of",
    "replayed",
    "source_bytes",
    "values_of",
]

Place = tuple[int, ...]
Operation = dict[str, Any]
SOURCE_BYTES = 4096


def source_bytes(seed: int) -> bytes:
    """The bytes of the file that virtual chunks refer to."""
    return np.random.default_rng(seed).bytes(SOURCE_BYTES)


def fill_of(array: Array | Operation) -> np.generic:
    """The fill value as numpy has it."""
    dtype, fill = (
        (array["dtype"], array["fill"]) if isinstance(array, dict) else (array.dtype, array.fill)
    )
    found: np.generic = np.dtype(dtype).type(np.nan if fill == "NaN" else fill)
    return found


def values_of(value: Any, dtype: str, shape: Place, fill: np.generic) -> np.ndarray:
    """The values of a region: the fill value, one number, or what a seed gives."""
    kind, number = value
    if kind == "fill":
        return np.full(shape, fill, dtype)
    if kind == "constant":
        return np.full(shape, number, dtype)
    drawn = np.random.default_rng(number).integers(0, 2 if dtype == "bool" else 100, shape)
    return np.asarray(drawn).astype(dtype)


def chunk_bytes(operation: Operation, place: Place, dtype: str, shape: Place) -> bytes:
    """The bytes of a chunk that is written encoded, without compression."""
    seed = operation["seed"] + sum(place)
    return values_of(["random", seed], dtype, shape, np.dtype(dtype).type(0)).tobytes()


@dataclass
class Group:
    """A group, and what the newest operations did to it."""

    attributes: dict[str, Any] = field(default_factory=dict)
    node_id: int | None = None

    def again(self) -> Group:
        """The same, as somebody finds it who begins."""
        return replace(self, attributes=dict(self.attributes))


@dataclass
class Array:
    """An array, and what the newest operations did to it."""

    shape: Place
    chunks: Place
    dtype: str
    fill: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    data: dict[Place, np.ndarray] = field(default_factory=dict)
    """Whole chunks; none is ever altered."""
    node_id: int | None = None
    touched: set[Place] = field(default_factory=set)
    kept: Place | None = None
    """So many chunks along each dimension were never cut off."""

    def again(self) -> Array:
        """The same, as somebody finds it who begins."""
        return replace(
            self,
            attributes=dict(self.attributes),
            data=dict(self.data),
            touched=set(),
            kept=None,
        )

    @property
    def counts(self) -> Place:
        """Chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def values(self) -> np.ndarray:
        """What a reader sees."""
        shape = tuple(n * c for n, c in zip(self.counts, self.chunks, strict=True))
        found = np.full(shape, fill_of(self), self.dtype)
        for place, chunk in self.data.items():
            found[
                tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, self.chunks, strict=True))
            ] = chunk
        return found[tuple(map(slice, self.shape))]

    def write(self, region: list[list[int]], value: Any) -> None:
        """Write a box, as Zarr does: chunk by chunk, and none that holds the fill value alone."""
        fill = fill_of(self)
        values = values_of(value, self.dtype, tuple(b - a for a, b in region), fill)
        spans = [range(a // c, -(-b // c)) for (a, b), c in zip(region, self.chunks, strict=True)]
        for place in itertools.product(*spans):
            starts = [i * c for i, c in zip(place, self.chunks, strict=True)]
            low = [max(a, s) for (a, _), s in zip(region, starts, strict=True)]
            high = [min(b, s + c) for (_, b), s, c in zip(region, starts, self.chunks, strict=True)]
            ends = [min(s + c, n) for s, c, n in zip(starts, self.chunks, self.shape, strict=True)]
            old = None if (low, high) == (starts, ends) else self.data.get(place)
            chunk = np.full(self.chunks, fill, self.dtype) if old is None else old.copy()
            inside = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, starts, strict=True))
            chunk[inside] = values[
                tuple(slice(a - r, b - r) for a, b, (r, _) in zip(low, high, region, strict=True))
            ]
            same = (chunk == fill) | (
                np.isnan(chunk) & np.isnan(fill) if chunk.dtype.kind == "f" else False
            )
            self.put(place, None if np.all(same) else chunk)

    def put(self, place: Place, chunk: np.ndarray | None) -> None:
        """Have a chunk, or none."""
        self.touched.add(place)
        if chunk is None:
            self.data.pop(place, None)
        else:
            self.data[place] = chunk

    def cut(self, counts: Place) -> None:
        """Lose all chunks outside of a smaller grid."""
        self.data = {p: c for p, c in self.data.items() if within(p, counts)}
        self.touched = {p for p in self.touched if within(p, counts)}
        self.kept = tuple(map(min, self.kept or counts, counts))


def within(place: Place, counts: Place) -> bool:
    """Whether a chunk lies within a grid."""
    return all(i < n for i, n in zip(place, counts, strict=True))


@dataclass
class Tree:
    """All nodes by path."""

    nodes: dict[str, Array | Group] = field(default_factory=dict)
    source: bytes = b""

    def again(self) -> Tree:
        """The same, as a session finds it that begins."""
        return Tree({path: node.again() for path, node in self.nodes.items()}, self.source)

    def array(self, path: str) -> Array:
        """An array."""
        found = self.nodes[path]
        assert isinstance(found, Array), path
        return found

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """All arrays."""
        for path, node in self.nodes.items():
            if isinstance(node, Array):
                yield path, node

    def do(self, operations: Iterable[Operation]) -> None:
        """Do what a commit says that it did."""
        for operation in operations:
            getattr(self, "_" + operation["op"])(operation)

    def _create_group(self, op: Operation) -> None:
        self.nodes[op["path"]] = Group()

    def _create_array(self, op: Operation) -> None:
        self.nodes[op["path"]] = Array(
            tuple(op["shape"]), tuple(op["shards"] or op["chunks"]), op["dtype"], op["fill"]
        )

    def _write(self, op: Operation) -> None:
        self.array(op["path"]).write(op["region"], op["value"])

    def _resize(self, op: Operation) -> None:
        array = self.array(op["path"])
        before, array.shape = array.counts, tuple(op["shape"])
        if any(a < b for a, b in zip(array.counts, before, strict=True)):
            array.cut(array.counts)

    def _attributes(self, op: Operation) -> None:
        self.nodes[op["path"]].attributes.update(op["set"])

    def _delete(self, op: Operation) -> None:
        ids = {node_id for _, node_id in op["nodes"] if node_id is not None}
        paths = {path for path, node_id in op["nodes"] if node_id is None}
        for path, node in list(self.nodes.items()):
            if node.node_id in ids or (node.node_id is None and path in paths):
                del self.nodes[path]

    def _move(self, op: Operation) -> None:
        old, new = op["path"], op["to"]
        for path in [p for p in self.nodes if p == old or p.startswith(old + "/")]:
            self.nodes[new + path[len(old) :]] = self.nodes.pop(path)

    def _refer(self, op: Operation) -> None:
        array = self.array(op["path"])
        size = int(np.prod(array.chunks)) * np.dtype(array.dtype).itemsize
        for place, offset in op["chunks"]:
            data = self.source[offset : offset + size]
            array.put(tuple(place), np.frombuffer(data, array.dtype).reshape(array.chunks))

    def _encoded(self, op: Operation) -> None:
        array = self.array(op["path"])
        for place in map(tuple, op["chunks"]):
            data = chunk_bytes(op, place, array.dtype, array.chunks)
            array.put(place, np.frombuffer(data, array.dtype).reshape(array.chunks))

    def _clear(self, op: Operation) -> None:
        array = self.array(op["path"])
        if array.shape:
            array.cut((0,) * len(array.shape))
        else:
            array.put((), None)

    def _forks(self, op: Operation) -> None:
        forks = [self.again() for _ in op["parts"]]
        self.do(op["between"])
        for fork, operations in zip(forks, op["parts"], strict=True):
            fork.do(operations)
            for path, array in fork.arrays():
                for place in array.touched:
                    self.array(path).put(place, array.data.get(place))


def replayed(parent: Tree, operations: Iterable[Operation]) -> Tree:
    """What a snapshot shows whose commit did these operations on its parent."""
    tree = parent.again()
    tree.do(operations)
    return tree
