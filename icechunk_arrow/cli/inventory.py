"""Commands that say what there is: history, branches, tags, nodes, and what changed."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.text import Text
from rich.tree import Tree

from icechunk_arrow.cli.consoles import harmless, working
from icechunk_arrow.cli.options import (
    AsOf,
    Branch,
    Format,
    FormatOption,
    Output,
    SnapshotId,
    StorageOptions,
    Tag,
    Url,
    open_repository,
    selected,
)
from icechunk_arrow.cli.output import cell, emit, print_on
from icechunk_arrow.errors import NodeNotFoundError

__all__ = ["branches", "diff", "log", "ls", "tags", "tree"]

_LISTED = ["path", "type", "shape", "chunk_shape", "data_type", "dimension_names", "logical_bytes"]
_LOG = pa.schema(
    [
        ("snapshot", pa.string()),
        ("parent", pa.string()),
        ("written_at", pa.timestamp("us", "UTC")),
        ("message", pa.string()),
    ]
)


def log(
    url: Url,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Show so many snapshots at most.")
    ] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """List a snapshot and all before it, newest first."""
    with working(f"reading the history of {url}"):
        repository = open_repository(url, storage_option)
        start = repository.readonly_session(**selected(branch, tag, snapshot, as_of)).snapshot_id
        found = islice(repository.ancestry(snapshot_id=start), limit)
        rows = [(each.id, each.parent_id, each.written_at, each.message) for each in found]
    columns = [[row[place] for row in rows] for place in range(len(_LOG))]
    emit(pa.table(dict(zip(_LOG.names, columns, strict=True)), schema=_LOG), form, output)


def branches(
    url: Url,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """List the branches as they stand now."""
    _emit_refs("branch", ["name", "snapshot", "sequence"], url, form, output, storage_option)


def tags(
    url: Url,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """List the tags as they stand now."""
    _emit_refs("tag", ["name", "snapshot"], url, form, output, storage_option)


def _emit_refs(
    kind: str,
    columns: list[str],
    url: str,
    form: Format,
    output: Any,
    storage_option: list[str] | None,
) -> None:
    with working(f"reading {url}"):
        found = open_repository(url, storage_option).tables("refs")
    rows = found.filter(pc.equal(found["type"], kind)).select(columns).sort_by("name")
    emit(rows, form, output)


def ls(
    url: Url,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A group or array.")] = "/",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List what is in groups below, too.")
    ] = False,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """List the arrays and groups in a group, or one array."""
    with working(f"reading {url}"):
        repository = open_repository(url, storage_option)
        nodes = repository.tables("nodes", **selected(branch, tag, snapshot, as_of))
    place = _existing(nodes, path)
    types = dict(zip(nodes["path"].to_pylist(), nodes["type"].to_pylist(), strict=True))
    if types[place] == "array":
        mask = pc.equal(nodes["path"], place)
    elif recursive:
        mask = pc.starts_with(nodes["path"], place.rstrip("/") + "/")
        mask = pc.and_(mask, pc.not_equal(nodes["path"], place))
    else:
        mask = pc.fill_null(pc.equal(nodes["parent"], place), fill_value=False)
    emit(nodes.filter(mask).select(_LISTED).sort_by("path"), form, output)


def _existing(nodes: pa.Table, path: str) -> str:
    """Give the path of a node as the tables have it."""
    place = "/" + path.strip("/")
    if place not in nodes["path"].to_pylist():
        raise NodeNotFoundError(
            f"there is no array or group {place!r}; `icechunk-arrow ls -r` lists all", path=place
        )
    return place


def tree(
    url: Url,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Begin at this group.")] = "/",
    depth: Annotated[int | None, typer.Option(min=0, help="Go down so far at most.")] = None,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    storage_option: StorageOptions = None,
) -> None:
    """Draw the groups and arrays."""
    with working(f"reading {url}"):
        repository = open_repository(url, storage_option)
        nodes = repository.tables("nodes", **selected(branch, tag, snapshot, as_of))
    top = _existing(nodes, path)
    drawn: dict[str, Tree] = {}
    start = 0 if top == "/" else top.count("/")
    for node in nodes.sort_by("path").to_pylist():
        place, above = node["path"], drawn.get(node["parent"] or "")
        if place == top:
            drawn[place] = Tree(_label(node, place))
        elif above is not None and (depth is None or place.count("/") - start <= depth):
            drawn[place] = above.add(_label(node, node["name"]))
    sys.stdout.flush()
    print_on(sys.stdout.buffer, drawn[top])


def _label(node: dict[str, Any], name: str) -> Text:
    text = Text(harmless(name), style="bold" if node["type"] == "group" else "")
    if node["type"] == "array":
        shape = " × ".join(map(str, node["shape"])) or "scalar"
        text.append(f"  {shape}  {harmless(cell(node['data_type']))}", style="dim not bold")
    return text


def diff(
    url: Url,
    since: Annotated[
        str | None,
        typer.Argument(
            metavar="SINCE", help="A snapshot, branch or tag; the parent if none is named."
        ),
    ] = None,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="A row for each chunk, instead of counts.")
    ] = False,
    branch: Branch = None,
    tag: Tag = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """Say what changed up to a snapshot, since another one.

    Nodes that were created, deleted, moved or altered, and how many chunks were added, removed or replaced.
    """
    with working(f"comparing snapshots of {url}"):
        repository = open_repository(url, storage_option)
        which = selected(branch, tag, snapshot, as_of)
        found = repository.tables("changes", since=since, **which)
    if not chunks:
        keys = ["path", "change", "node_type", "from_path"]
        found = found.group_by(keys).aggregate([([], "count_all")])
        found = found.rename_columns([*keys, "count"])
    emit(found.sort_by([("path", "ascending"), ("change", "ascending")]), form, output)
