"""What a session is compared with: nodes with their documents, and their chunks by key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st

__all__ = [
    "ONE_CHUNK",
    "Model",
    "Node",
    "attributes",
    "documents",
    "full_key",
    "is_below",
    "payloads",
]

ONE_CHUNK: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}


@dataclass
class Node:
    """A node of the model."""

    document: dict[str, Any]
    chunks: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_array(self) -> bool:
        return bool(self.document["node_type"] == "array")

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        grid = self.document["chunk_grid"]["configuration"]
        if "chunk_shape" in grid:
            pairs = zip(self.document["shape"], grid["chunk_shape"], strict=True)
            return tuple(math.ceil(extent / edge) for extent, edge in pairs)
        return tuple(
            next(n for n in range(len(edges) + 1) if sum(edges[:n]) >= extent)
            for extent, edges in zip(self.document["shape"], grid["chunk_shapes"], strict=True)
        )

    @property
    def coords(self) -> list[tuple[int, ...]]:
        """Where chunks can be."""
        found: list[tuple[int, ...]] = [()]
        for count in self.counts:
            found = [(*place, index) for place in found for index in range(count)]
        return found

    def key_of(self, coord: tuple[int, ...]) -> str:
        """The name of a chunk below the array."""
        encoding = self.document["chunk_key_encoding"]
        separator = encoding["configuration"]["separator"]
        if encoding["name"] == "default":
            return str(separator.join(["c", *map(str, coord)]))
        return str(separator.join(map(str, coord)) or "0")

    @property
    def keys(self) -> set[str]:
        """Names that chunks can have."""
        return {self.key_of(coord) for coord in self.coords}

    @property
    def identity(self) -> Any:
        """What has to stay the same for the chunks to keep their meaning."""
        parts = ("data_type", "chunk_grid", "chunk_key_encoding")
        return [self.document[name] for name in parts] if self.is_array else None


Model = dict[str, Node]
attributes = st.sampled_from(
    [{}, {"short": 1}, {"long": "x" * 60}, {"long": "y" * 90, "n": [None]}]
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a group's or an array's document."""
    chosen = draw(attributes)
    if draw(st.integers(0, 2)) == 0:
        return {"zarr_format": 3, "node_type": "group", "attributes": chosen}
    shape = draw(st.lists(st.integers(0, 7), max_size=2))
    if draw(st.integers(0, 3)):
        name, edges = "regular", draw(st.sampled_from([1, 2, 3]))
        configuration: dict[str, Any] = {"chunk_shape": [edges] * len(shape)}
    else:
        name = "rectilinear"
        configuration = {"kind": "inline", "chunk_shapes": [[1, 2, 1, 3, 4]] * len(shape)}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": draw(st.sampled_from(["uint8", "int32"])),
        "chunk_grid": {"name": name, "configuration": configuration},
        "chunk_key_encoding": {
            "name": draw(st.sampled_from(["default", "v2"])),
            "configuration": {"separator": draw(st.sampled_from(["/", "."]))},
        },
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": chosen,
    }


def full_key(path: str, relative: str) -> str:
    return relative if path == "/" else f"{path[1:]}/{relative}"


def is_below(path: str, folder: str) -> bool:
    return path != folder and path.startswith("/" if folder == "/" else folder + "/")


payloads = st.integers(0, 50).flatmap(lambda size: st.binary(min_size=size, max_size=size))
