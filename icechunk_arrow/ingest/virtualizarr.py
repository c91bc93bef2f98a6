"""What VirtualiZarr has in memory: arrays whose chunks are columns of paths, offsets, lengths.

Owns knowing such arrays by what they have, without importing that library. The columns are in the memory of the
caller, and go from there into manifests in pieces.
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
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.source import FILES_NOW, Hierarchy, index_of_rows, references_batch
from icechunk_arrow.ingest.target import join_paths
from icechunk_arrow.storage.source_files import local_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PIECE_ROWS = 1 << 20
_INLINED = "__inlined__"
"""What stands in place of a path where VirtualiZarr has the bytes of a chunk."""


def is_virtual(source: Any) -> bool:
    """Whether something is a dataset of xarray, or a mapping of manifest arrays."""
    if hasattr(source, "data_vars") and hasattr(source, "variables"):
        return True
    return isinstance(source, Mapping) and bool(source) and all(map(_is_array, source.values()))


def _is_array(value: Any) -> bool:
    return hasattr(value, "manifest") and hasattr(value, "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualDataset:
    """A dataset of VirtualiZarr, or a mapping of its arrays: a ``Source``."""

    hierarchy: Hierarchy
    columns: Mapping[str, tuple[Any, Any, Any]]
    """Of each array the paths, offsets and lengths, in the shape of its grid."""
    loaded: list[Any]
    """Variables that have values, which are none of the arrays here."""
    rows: Mapping[str, int]
    """By path in the columns: the row of the file in ``files``."""
    files: pa.Table
    """As ``FILES_NOW``: each file once."""

    @classmethod
    def of(
        cls, source: Any, group: str, ask: Callable[[Sequence[str]], pa.Table] | None
    ) -> VirtualDataset:
        """Take a dataset.

        Parameters
        ----------
        source
            A dataset, or a mapping of paths to arrays.
        group
            Where it comes to stand, for messages.
        ask
            Gives for locations what their files are now, as ``FILES_NOW``.
        """
        shared: dict[str, Any] = {}
        documents: dict[str, dict[str, Any]] = {}
        manifests: dict[str, Any] = {}
        loaded: list[Any] = []
        if isinstance(source, Mapping) and not hasattr(source, "data_vars"):
            for name, array in source.items():
                path = "/" + name.strip("/")
                documents[path], manifests[path] = _document(array, None, None), array.manifest
        else:
            shared = _plain(source.attrs, group)
            names = [str(name) for name in source.coords if name not in source.dims]
            if names:
                shared["coordinates"] = " ".join(names)
            for name, variable in source.variables.items():
                if not _is_array(variable.data):
                    loaded.append(name)
                    continue
                path = f"/{name}"
                attributes = _plain(variable.attrs, join_paths(group, path))
                documents[path] = _document(variable.data, variable.dims, attributes)
                manifests[path] = variable.data.manifest
        columns = {
            path: _columns_of(manifest, join_paths(group, path))
            for path, manifest in manifests.items()
        }
        for inner, (names, _, _) in columns.items():
            if (names == _INLINED).any():
                path = join_paths(group, inner)
                raise InvalidInputError(
                    f"some chunks of {path!r} stand in its manifest itself, which has no place to refer to; let "
                    f"VirtualiZarr load the variable (loadable_variables), and its values are written",
                    path=path,
                )
        rows, files = _files_of([paths for paths, _, _ in columns.values()], ask)
        return cls(
            hierarchy=Hierarchy(groups={"/": shared}, arrays=documents),
            columns=columns,
            loaded=loaded,
            rows=rows,
            files=files,
        )

    def chunk_count(self, path: str) -> int:
        """Count the references of an array."""
        return int((self.columns[path][0] != "").sum())

    def parts(self, path: str) -> list[None]:  # noqa: ARG002 -- of any array
        """Name the only part."""
        return [None]

    def references(self, path: str, part: None = None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Give the chunks of an array, in pieces."""
        shape = self.columns[path][0].shape
        flat = [column.reshape(-1) for column in self.columns[path]]
        for start in range(0, len(flat[0]), _PIECE_ROWS):
            names, offset, length = (column[start : start + _PIECE_ROWS] for column in flat)
            rows = np.flatnonzero(names != "")
            codes = from_values([self.rows[name] for name in names[rows].tolist()], pa.int64())
            location, etag, moment = (
                self.files[name].take(codes).combine_chunks()
                for name in ("location", "etag", "last_modified")
            )
            yield references_batch(
                index_of_rows(rows + start, shape),
                location,
                from_numpy(offset[rows], pa.int64()),
                from_numpy(length[rows], pa.int64()),
                etag=etag,
                last_modified=moment,
            )


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
        plain: dict[str, Any] = json.loads(json.dumps(dict(attributes), default=of_numpy))
    except TypeError as error:
        raise InvalidInputError(f"an attribute of {path!r} is not one that JSON has") from error
    return plain


def _columns_of(manifest: Any, path: str) -> tuple[Any, Any, Any]:
    """Take the three columns of a manifest, each in the shape of the grid.

    VirtualiZarr does not give them by a public name, and by a public one only a dictionary of chunks.
    """
    try:
        return manifest._paths, manifest._offsets, manifest._lengths  # noqa: SLF001
    except AttributeError as error:
        raise InvalidInputError(
            f"the manifest of {path!r} has no columns of paths, offsets and lengths as VirtualiZarr 2 has them"
        ) from error


def _files_of(
    columns: Sequence[Any], ask: Callable[[Sequence[str]], pa.Table] | None
) -> tuple[dict[str, int], pa.Table]:
    """Find the files of some columns of paths, and ask each once what it is now."""
    names = sorted({name for paths in columns for name in set(paths.ravel().tolist())} - {""})
    locations = [_literal(name) for name in names]
    distinct = list(dict.fromkeys(locations))
    if ask is not None and distinct:
        files = ask(distinct)
    else:
        blank = [pa.nulls(len(distinct), field.type) for field in FILES_NOW][1:]
        files = pa.Table.from_arrays([from_values(distinct, pa.string()), *blank], schema=FILES_NOW)
    rows = {location: row for row, location in enumerate(files["location"].to_pylist())}
    return dict(zip(names, (rows[each] for each in locations), strict=True)), files.combine_chunks()


def _literal(location: str) -> str:
    """Give a local file its name as it is: VirtualiZarr percent-encodes paths, and its parsers do not.

    Which of both this is only the disk can tell.
    """
    path = local_file(location)
    if path is None or "%" not in path or os.path.exists(path):  # noqa: PTH110 -- a string
        return location
    plain = unquote(path)
    return f"file://{plain}" if os.path.exists(plain) else location  # noqa: PTH110
