"""The groups and arrays of a Zarr store, of version 2 or 3, read from its documents.

Owns finding the documents, consolidated or one by one, and what each version says. Chunks are others' business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.documents import check_document
from icechunk_arrow.core.keys import ChunkKeys, chunk_keys_of
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError, NotFoundError
from icechunk_arrow.ingest.zarr_v2 import array_of_v2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["METADATA_NAMES", "Hierarchy", "SourceArray", "hierarchy_of", "read_documents"]

METADATA_NAMES = ("zarr.json", ".zgroup", ".zarray", ".zattrs")
_CONSOLIDATED = ".zmetadata"
_INLINE = "consolidated_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArray:
    """An array of a source."""

    document: dict[str, Any]
    """What it becomes: of Zarr v3."""
    keys: ChunkKeys
    """How its chunks are named in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """What stands in a source, by path."""

    groups: dict[str, dict[str, Any]]
    """Attributes."""
    arrays: dict[str, SourceArray]


def hierarchy_of(documents: Mapping[str, Any], drop: Iterable[str] = ()) -> Hierarchy:
    """Read documents.

    Parameters
    ----------
    documents
        By key, such as ``a/zarr.json`` or ``.zgroup``: parsed, or as JSON.
    drop
        Paths of nodes to leave out, with all below them.
    """
    left_out = tuple("/" + path.strip("/") for path in drop)
    by_path: dict[str, dict[str, Any]] = {}
    for key, document in documents.items():
        above, _, name = key.rpartition("/")
        path = "/" + above
        if name in METADATA_NAMES and not _is_below(path, left_out):
            by_path.setdefault(path, {})[name] = _parsed(key, document)
    if not by_path:
        raise InvalidInputError("there is no document of a Zarr group or array")
    groups: dict[str, dict[str, Any]] = {}
    arrays: dict[str, SourceArray] = {}
    for path, found in sorted(by_path.items()):
        try:
            if (document := found.get("zarr.json")) is not None:
                _take_v3(path, document, groups, arrays)
            elif ".zarray" in found:
                arrays[path] = _array_v2(path, found[".zarray"], found.get(".zattrs", {}))
            elif ".zgroup" in found or path == "/":
                groups[path] = found.get(".zattrs", {})
        except IcechunkArrowError as error:
            raise InvalidInputError(
                f"{path!r} cannot be taken: {error.message}. Leave it out with drop=[{path!r}]",
                path=path,
            ) from error
    return Hierarchy(groups=groups, arrays=arrays)


def _is_below(path: str, left_out: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in left_out)


def _parsed(key: str, document: Any) -> dict[str, Any]:
    if isinstance(document, str | bytes):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise InvalidInputError(f"{key!r} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{key!r} is no JSON object")
    return document


def _take_v3(
    path: str,
    document: dict[str, Any],
    groups: dict[str, dict[str, Any]],
    arrays: dict[str, SourceArray],
) -> None:
    own = {name: value for name, value in document.items() if name != _INLINE}
    check_document(own, path=path)
    if own["node_type"] == "array":
        arrays[path] = SourceArray(document=own, keys=chunk_keys_of(own))
    else:
        groups[path] = own.get("attributes", {})


def _array_v2(path: str, zarray: dict[str, Any], attributes: dict[str, Any]) -> SourceArray:
    document = array_of_v2(zarray, attributes)
    check_document(document, path=path)
    separator = zarray.get("dimension_separator", ".")
    keys = ChunkKeys(name="v2", separator=separator, ndim=len(document["shape"]))
    return SourceArray(document=document, keys=keys)


def read_documents(files: SourceFiles, url: str, *, consolidated: bool | None) -> dict[str, Any]:
    """Read the documents of a store, by key.

    Parameters
    ----------
    files
        Reaches the store.
    url
        Its folder.
    consolidated
        Take the documents that stand together in one place: True, and nothing else; False, never; None, where
        there is such a place.
    """
    root = url.rstrip("/")
    names = ("zarr.json", _CONSOLIDATED, ".zgroup", ".zarray", ".zattrs")
    found = dict(zip(names, files.find_many([f"{root}/{name}" for name in names]), strict=True))
    together = None if consolidated is False else _together(found)
    if together is not None:
        return together
    if consolidated:
        raise InvalidInputError(f"{url} has no consolidated metadata; read it without", url=url)
    del found[_CONSOLIDATED]
    documents = {name: data for name, data in found.items() if data is not None}
    if not documents:
        raise NotFoundError(f"there is no Zarr group or array at {url}", url=url)
    version_3 = "zarr.json" in documents
    wanted = ("zarr.json",) if version_3 else (".zgroup", ".zarray", ".zattrs")
    open_groups = [] if _is_array(documents, "") else [""]
    while open_groups:
        inner = [
            f"{above}{name}/"
            for above in open_groups
            for name in files.folders_in(f"{root}/{above}")
        ]
        keys = [f"{folder}{name}" for folder in inner for name in wanted]
        contents = files.find_many([f"{root}/{key}" for key in keys])
        level = {key: data for key, data in zip(keys, contents, strict=True) if data is not None}
        documents |= level
        nodes = {key.rpartition("/")[0] + "/" for key in level}
        open_groups = [
            folder for folder in inner if folder in nodes and not _is_array(level, folder)
        ]
    return documents


def _is_array(documents: Mapping[str, Any], folder: str) -> bool:
    if f"{folder}.zarray" in documents:
        return True
    document = documents.get(f"{folder}zarr.json")
    return document is not None and _parsed(folder, document).get("node_type") == "array"


def _together(found: Mapping[str, bytes | None]) -> dict[str, Any] | None:
    """Take consolidated metadata, of either version."""
    if (data := found["zarr.json"]) is not None:
        root = _parsed("zarr.json", data)
        inline = root.get(_INLINE)
        if not inline:
            return None
        return {"zarr.json": root} | {
            f"{path}/zarr.json": document for path, document in inline["metadata"].items()
        }
    if (data := found[_CONSOLIDATED]) is not None:
        documents: dict[str, Any] = _parsed(_CONSOLIDATED, data)["metadata"]
        return documents
    return None
