"""What VirtualiZarr has in memory, in a repository: arrays whose chunks are columns of paths, offsets, lengths.

Owns knowing such arrays by what they have, without importing that library. The columns are in the memory of whoever
calls, and go from there into manifests in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy
from icechunk_arrow.core.documents import encode_document
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.nodes import join_paths, make_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.session import Session

__all__ = ["is_virtual", "stage_manifests"]

_PIECE_ROWS = 1 << 20
_SCHEMA = pa.schema(
    [
        ("index", pa.list_(pa.int64())),
        ("location", pa.string()),
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
    ]
)


def is_virtual(source: Any) -> bool:
    """Whether something is a dataset of xarray, or a mapping of manifest arrays."""
    if hasattr(source, "data_vars") and hasattr(source, "variables"):
        return True
    return isinstance(source, Mapping) and bool(source) and all(map(_is_array, source.values()))


def _is_array(value: Any) -> bool:
    return hasattr(value, "manifest") and hasattr(value, "metadata")


def stage_manifests(
    session: Session, source: Any, group: str, *, overwrite: bool
) -> dict[str, Any]:
    """Make arrays and stage their references; variables of a dataset that have values are written by xarray."""
    groups: dict[str, dict[str, Any]] = {group: {}}
    documents: dict[str, dict[str, Any]] = {}
    manifests: dict[str, Any] = {}
    loaded: list[Any] = []
    if isinstance(source, Mapping) and not hasattr(source, "data_vars"):
        for name, array in source.items():
            path = join_paths(group, name)
            documents[path], manifests[path] = _document(array, None, None), array.manifest
    else:
        groups[group] = _plain(source.attrs, group)
        names = [str(name) for name in source.coords if name not in source.dims]
        if names:
            groups[group]["coordinates"] = " ".join(names)
        for name, variable in source.variables.items():
            if not _is_array(variable.data):
                loaded.append(name)
                continue
            path = join_paths(group, str(name))
            attributes = _plain(variable.attrs, path)
            documents[path] = _document(variable.data, variable.dims, attributes)
            manifests[path] = variable.data.manifest
    make_nodes(session, groups, documents, overwrite=overwrite)
    count = 0
    for path, manifest in manifests.items():
        columns = _columns_of(manifest, path)
        rows = pa.RecordBatchReader.from_batches(_SCHEMA, _batches(columns))
        session.set_references(path, rows)
        count += int((columns[0] != "").sum())
    if loaded:
        values = source[loaded].drop_attrs(deep=False)
        values.to_zarr(session.store, group=group, mode="a", consolidated=False, zarr_format=3)
        if groups[group]:  # xarray has written its own
            document = {"zarr_format": 3, "node_type": "group", "attributes": groups[group]}
            session.set_document(group, encode_document(document))
    paths = [*documents, *(join_paths(group, str(name)) for name in loaded)]
    return {"arrays": paths, "chunks": count}


def _document(
    array: Any, dims: tuple[Any, ...] | None, attributes: dict[str, Any] | None
) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(array.metadata.to_dict()))
    if dims is not None:
        document["dimension_names"] = [str(name) for name in dims]
    if attributes is not None:
        document["attributes"] = document.get("attributes", {}) | attributes
    return document


def _plain(attributes: Mapping[Any, Any], path: str) -> dict[str, Any]:
    """Say attributes in JSON."""

    def of_numpy(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError

    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(attributes), default=of_numpy))
    except TypeError as error:
        raise InvalidInputError(f"an attribute of {path!r} is not one that JSON has") from error
    return found


def _columns_of(manifest: Any, path: str) -> tuple[Any, Any, Any]:
    """Take the three columns of a manifest, each in the shape of the grid.

    VirtualiZarr gives them to nobody by a public name, and by a public one only a dictionary of chunks.
    """
    try:
        return manifest._paths, manifest._offsets, manifest._lengths  # noqa: SLF001
    except AttributeError as error:
        raise InvalidInputError(
            f"the manifest of {path!r} has no columns of paths, offsets and lengths as VirtualiZarr 2 has them"
        ) from error


def _batches(columns: tuple[Any, Any, Any]) -> Iterator[pa.RecordBatch]:
    paths, offsets, lengths = columns
    shape = paths.shape
    flat = [column.reshape(-1) for column in (paths, offsets, lengths)]
    for start in range(0, len(flat[0]), _PIECE_ROWS):
        path, offset, length = (column[start : start + _PIECE_ROWS] for column in flat)
        rows = np.flatnonzero(path != "")
        places = np.unravel_index(rows + start, shape) if shape else ()
        index = np.stack(places, axis=1) if places else np.zeros((len(rows), 0), np.int64)
        ends = from_numpy(np.arange(len(rows) + 1) * index.shape[1], pa.int32())
        yield pa.RecordBatch.from_arrays(
            [
                pa.ListArray.from_arrays(ends, from_numpy(index.ravel(), pa.int64())),
                pa.array(path[rows].tolist(), pa.string()),
                from_numpy(offset[rows], pa.uint64()),
                from_numpy(length[rows], pa.uint64()),
            ],
            schema=_SCHEMA,
        )
