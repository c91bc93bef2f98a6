"""How two structure files differ: manifests that one has alone, and nodes that came, went, moved or changed.

Compares columns, and looks at single nodes only where they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values, one_array
from icechunk_arrow.core.json_values import decode_json, same_json
from icechunk_arrow.tables.schemas import NODE_CHANGES, PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow.core.snapshot import Node, Snapshot
    from icechunk_arrow.engine.files import Files

__all__ = ["later_paths", "node_changes", "own_manifests"]

_Row = tuple[int, str, str, str, str | None]


def own_manifests(snapshot: Snapshot, other: Snapshot) -> list[str]:
    """Manifests that one snapshot has and the other has not."""
    return [name for name in snapshot.manifest_sizes if name not in other.manifest_sizes]


def later_paths(snapshot: Snapshot, after: Snapshot) -> pa.Table:
    """Give each node of a snapshot the path that it has in a later one; one that is gone keeps its own."""
    paths = []
    for node_id, row in snapshot.rows_by_id.items():
        later = after.rows_by_id.get(node_id)
        paths.append(snapshot.paths[row] if later is None else after.paths[later])
    ids = from_values(list(snapshot.rows_by_id), pa.int64())
    return pa.Table.from_arrays([ids, from_values(paths, pa.string())], schema=PATHS)


def node_changes(files: Files, before: Snapshot, after: Snapshot) -> pa.Table:
    """Tell what became of nodes, in the order of their ids."""
    rows = [] if before.id == after.id else sorted(_changes(files, before, after))
    columns = [
        from_values([row[place] for row in rows], field.type)
        for place, field in zip((2, 1, 0, 3, 4), NODE_CHANGES, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=NODE_CHANGES)


def _changes(files: Files, before: Snapshot, after: Snapshot) -> Iterator[_Row]:
    """Give id, change, path, type and former path."""
    columns = [_plain_columns(each) for each in (before, after)]
    for node_id in before.rows_by_id.keys() | after.rows_by_id.keys():
        rows = before.rows_by_id.get(node_id), after.rows_by_id.get(node_id)
        if rows[0] is None or rows[1] is None:
            node = (before if rows[1] is None else after).find_node_by_id(node_id)
            assert node is not None
            change = "deleted" if rows[1] is None else "created"
            yield node_id, change, node.path, node.type, None
            continue
        same = all(
            mine[rows[0]] == theirs[rows[1]] for mine, theirs in zip(*columns, strict=True)
        ) and before.extensions.get(node_id) == after.extensions.get(node_id)
        if not same:
            nodes = before.find_node_by_id(node_id), after.find_node_by_id(node_id)
            assert nodes[0] is not None
            assert nodes[1] is not None
            yield from _changes_of(files, nodes[0], nodes[1])


def _plain_columns(snapshot: Snapshot) -> list[list[Any]]:
    names = ("path", "array_metadata", "inline_attrs", "attrs_reference")
    return [one_array(snapshot.table[name]).to_pylist() for name in names]


def _changes_of(files: Files, before: Node, after: Node) -> Iterator[_Row]:
    if before.path != after.path:
        yield after.id, "moved", after.path, after.type, before.path
    if not same_json(before.document(None), after.document(None)):
        yield after.id, "metadata", after.path, after.type, None
    if not same_json(_attributes(files, before), _attributes(files, after)):
        yield after.id, "attributes", after.path, after.type, None


def _attributes(files: Files, node: Node) -> Any:
    data = node.attributes
    if node.attributes_ref is not None:
        data = files.read_attributes(node.attributes_ref, node.id)
    return None if data is None else decode_json(data)
