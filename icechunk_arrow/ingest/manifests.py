"""What VirtualiZarr has in memory, in a repository: arrays whose chunks are columns of paths, offsets, lengths.

Owns knowing such arrays by what they have, without importing that library. The columns are in the memory of whoever
calls, and go from there into manifests in pieces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from icechunk_arrow.core.columns import from_numpy, from_values
from icechunk_arrow.core.documents import encode_document
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.nodes import join_paths, make_nodes
from icechunk_arrow.storage.source_files import local_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from icechunk_arrow.session import Session

__all__ = ["is_virtual", "stage_manifests"]

_PIECE_ROWS = 1 << 20
_INLINED = "__inlined__"
"""What stands in place of a path where VirtualiZarr has the bytes of a chunk."""
_SCHEMA = pa.schema(
    [
        ("index", pa.list_(pa.int64())),
        ("location", pa.string()),
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
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
    session: Session,
    source: Any,
    group: str,
    *,
    overwrite: bool,
    ask: Callable[[Sequence[str]], pa.Table] | None,
) -> dict[str, Any]:
    """Make arrays and stage their references; variables of a dataset that have values are written by xarray.

    ``ask`` gives for locations what their files are now, as ``SOURCE_FACTS``, which references record.
    """
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
    columns_of = {path: _columns_of(manifest, path) for path, manifest in manifests.items()}
    for path, (names, _, _) in columns_of.items():
        if (names == _INLINED).any():
            raise InvalidInputError(
                f"some chunks of {path!r} stand in its manifest itself, which has no place to refer to; let "
                f"VirtualiZarr load the variable (loadable_variables), and its values are written",
                path=path,
            )
    files = _Files.of((columns[0] for columns in columns_of.values()), ask)
    make_nodes(session, groups, documents, overwrite=overwrite)
    count = 0
    for path, columns in columns_of.items():
        rows = pa.RecordBatchReader.from_batches(_SCHEMA, _batches(columns, files))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The files of some manifests, each once."""

    numbers: Mapping[str, int]
    """By the location in the manifests: which of the others it is."""
    facts: pa.Table
    """``location``, ``etag``, ``last_modified``."""

    @classmethod
    def of(cls, columns: Iterable[Any], ask: Callable[[Sequence[str]], pa.Table] | None) -> _Files:
        """Find the files, and ask what they are now."""
        names = sorted({name for paths in columns for name in set(paths.ravel().tolist())} - {""})
        locations = [_literal(name) for name in names]
        distinct = list(dict.fromkeys(locations))
        numbers = {location: number for number, location in enumerate(distinct)}
        if ask is not None and distinct:
            facts = ask(distinct)
            order = from_values(facts["location"].to_pylist(), pa.string())
            places = {location: row for row, location in enumerate(order.to_pylist())}
            facts = facts.take(from_values([places[each] for each in distinct], pa.int64()))
        else:
            facts = pa.Table.from_arrays(
                [
                    from_values(distinct, pa.string()),
                    pa.nulls(len(distinct), pa.string()),
                    pa.nulls(len(distinct), pa.timestamp("us", "UTC")),
                ],
                names=["location", "etag", "last_modified"],
            )
        found = dict(zip(names, (numbers[each] for each in locations), strict=True))
        return cls(numbers=found, facts=facts.combine_chunks())

    def columns(self, names: Any) -> dict[str, pa.Array]:
        """Give location, ETag and time of the files of some chunks."""
        codes = from_values([self.numbers[name] for name in names.tolist()], pa.int64())
        return {
            name: self.facts[name].take(codes).combine_chunks()
            for name in ("location", "etag", "last_modified")
        }


def _literal(location: str) -> str:
    """Give a local file its name as it is: VirtualiZarr percent-encodes paths, and its parsers do not.

    Which of both this is only the disk can tell.
    """
    path = local_file(location)
    if path is None or "%" not in path or os.path.exists(path):  # noqa: PTH110 -- a string
        return location
    plain = unquote(path)
    return f"file://{plain}" if os.path.exists(plain) else location  # noqa: PTH110


def _batches(columns: tuple[Any, Any, Any], files: _Files) -> Iterator[pa.RecordBatch]:
    paths, offsets, lengths = columns
    shape = paths.shape
    flat = [column.reshape(-1) for column in (paths, offsets, lengths)]
    for start in range(0, len(flat[0]), _PIECE_ROWS):
        path, offset, length = (column[start : start + _PIECE_ROWS] for column in flat)
        rows = np.flatnonzero(path != "")
        places = np.unravel_index(rows + start, shape) if shape else ()
        index = np.stack(places, axis=1) if places else np.zeros((len(rows), 0), np.int64)
        ends = from_numpy(np.arange(len(rows) + 1) * index.shape[1], pa.int32())
        said = files.columns(path[rows])
        yield pa.RecordBatch.from_arrays(
            [
                pa.ListArray.from_arrays(ends, from_numpy(index.ravel(), pa.int64())),
                said["location"],
                from_numpy(offset[rows], pa.uint64()),
                from_numpy(length[rows], pa.uint64()),
                said["etag"],
                said["last_modified"],
            ],
            schema=_SCHEMA,
        )
