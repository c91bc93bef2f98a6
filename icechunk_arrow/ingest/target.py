"""Where sources come to stand in a repository: paths below groups, and the nodes that are made there.

Owns what happens where something stands already. Knows no format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.documents import encode_document
from icechunk_arrow.core.keys import node_path
from icechunk_arrow.errors import AlreadyExistsError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.engine.branch_session import BranchSession
    from icechunk_arrow.ingest.source import Hierarchy


def join_paths(group: str, path: str) -> str:
    """Put a path below a group."""
    return node_path(path.strip("/"), group)


def placed(sources: Iterable[tuple[str, Hierarchy]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put hierarchies below groups; give attributes of all groups and documents of all arrays, by path.

    An array that two sources have would get the document of one, and chunks of both: it is refused.
    """
    groups: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for group, hierarchy in sources:
        for path, attributes in hierarchy.groups.items():
            to = join_paths(group, path)
            if groups.get(to) and attributes and groups[to] != attributes:
                raise _doubled(to)
            groups[to] = attributes or groups.get(to, {})
        for path, document in hierarchy.arrays.items():
            to = join_paths(group, path)
            if to in arrays:
                raise _doubled(to)
            arrays[to] = document
    return groups, arrays


def _doubled(path: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path!r} would come from two sources; give each a group in which the other has nothing, or leave it out "
        f"of one with a call for each",
        path=path,
    )


def make_nodes(
    session: BranchSession,
    groups: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, Mapping[str, Any]],
    *,
    overwrite: bool,
) -> None:
    """Make groups, with those above them, and arrays; all or nothing.

    Parameters
    ----------
    session
        Where to.
    groups
        Attributes by path.
    arrays
        Documents by path.
    overwrite
        Replace arrays that are there, with all that is in them.
    """
    if overlap := sorted(groups.keys() & arrays.keys()):
        raise InvalidInputError(f"{overlap[0]!r} would be a group and an array")
    wanted = {above for path in (*groups, *arrays) for above in _above(path)} | set(groups)
    for path in sorted(wanted):
        node = session.find_node(path)
        if node is not None and node.is_array:
            raise AlreadyExistsError(
                f"there is an array {path!r} where a group has to be; take another group", path=path
            )
    there = [path for path in arrays if session.find_node(path) is not None]
    if there and not overwrite:
        raise AlreadyExistsError(
            f"there is {there[0]!r} already; take another group, or replace it with overwrite=True",
            path=there[0],
        )
    if there:
        session.delete_nodes(there)
    for path in sorted(wanted):
        attributes = dict(groups.get(path, {}))
        if attributes or session.find_node(path) is None:
            group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            session.set_document(path, encode_document(group))
    for path, document in arrays.items():
        session.set_document(path, encode_document(dict(document)))


def _above(path: str) -> list[str]:
    """Give the paths of all groups above a node, the root first."""
    names = [name for name in path.split("/") if name]
    return (
        ["/", *("/" + "/".join(names[:count]) for count in range(1, len(names)))] if names else []
    )
