"""The commands about arrays and groups: as a list, as a tree."""

from __future__ import annotations

import sys
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from icechunk_arrow.cli.consoles import harmless, working
from icechunk_arrow.cli.output import cell, emit, pick, print_on
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.errors import NodeNotFoundError
from icechunk_arrow.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from rich.text import Text
    from rich.tree import Tree

    from icechunk_arrow.cli.options import RowsTo
    from icechunk_arrow.tables.selection import Which

__all__ = ["ls", "tree"]

_LISTED = ["path", "type", "shape", "chunk_shape", "data_type", "dimension_names", "logical_bytes"]


def ls(
    url: str,
    *,
    path: str,
    recursive: bool,
    which: Which,
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """List the arrays and groups in a group, or one array."""
    with working(f"reading {url}"):
        nodes = Repository.open(url, storage_options).tables("nodes", **which)
    paths, parents = nodes["path"].to_pylist(), nodes["parent"].to_pylist()
    top = _existing(paths, path)
    if nodes["type"][paths.index(top)].as_py() == "array":
        listed = [(top, paths.index(top))]
    elif recursive:
        below = top.rstrip("/") + "/"
        listed = [(p, row) for row, p in enumerate(paths) if p.startswith(below) and p != top]
    else:
        listed = [(paths[row], row) for row, parent in enumerate(parents) if parent == top]
    emit(pick(nodes.select(_LISTED), listed), to)


def _existing(paths: Container[str], path: str) -> str:
    """Give the path of a node as the tables have it."""
    place = node_path(path)
    if place not in paths:
        raise NodeNotFoundError(
            f"there is no array or group {place!r}; `icechunk-arrow ls -r` lists all", path=place
        )
    return place


def tree(
    url: str,
    *,
    path: str,
    depth: int | None,
    which: Which,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Draw the groups and arrays."""
    from rich.tree import Tree  # noqa: PLC0415  (lists do not need it)

    with working(f"reading {url}"):
        nodes = Repository.open(url, storage_options).tables("nodes", **which)
    top = _existing(nodes["path"].to_pylist(), path)
    drawn: dict[str, Tree] = {}
    start = 0 if top == "/" else top.count("/")
    for node in sorted(nodes.to_pylist(), key=itemgetter("path")):
        place, above = node["path"], drawn.get(node["parent"] or "")
        if place == top:
            drawn[place] = Tree(_label(node, place))
        elif above is not None and (depth is None or place.count("/") - start <= depth):
            drawn[place] = above.add(_label(node, node["name"]))
    sys.stdout.flush()
    print_on(sys.stdout.buffer, drawn[top])


def _label(node: dict[str, Any], name: str) -> Text:
    from rich.text import Text  # noqa: PLC0415  (as above)

    text = Text(harmless(name), style="bold" if node["type"] == "group" else "")
    if node["type"] == "array":
        shape = " × ".join(map(str, node["shape"])) or "scalar"
        text.append(f"  {shape}  {harmless(cell(node['data_type']))}", style="dim not bold")
    return text
