"""One example and one strategy of every Parquet file kind, for the tests that all kinds must pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from icechunk_arrow.core.documents import same_json
from icechunk_arrow.core.inventory import NO_INVENTORY
from icechunk_arrow.formats import attributes, manifest, structure, transaction
from tests.formats import strategies

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis import strategies as st

    from icechunk_arrow.formats.layout import FileKind

ID = "VY76P925PRY57WFEK410"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind is written, read and compared."""

    kind: FileKind
    number: int
    """The file type in byte 25 of the identification."""
    word: str
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], tuple[bytes, str]]
    """Give the bytes and the id of the file."""
    decode: Callable[[bytes, str], Any]
    same: Callable[[Any, Any], bool]


def _same_snapshot(value: Any, found: Any) -> bool:
    """Facts, packed numbers, and every node with its document, attributes and inventories."""
    snapshot, nodes = value
    return (
        found.facts == snapshot.facts
        and found.manifest_sizes == snapshot.manifest_sizes
        and found.table.equals(snapshot.table)
        and [node.path for node in found.nodes()] == sorted(n.path for n in nodes)
        and all(_same_node(node, found.find_node_by_id(node.id)) for node in nodes)
    )


def _same_node(node: Any, found: Any) -> bool:
    def bare(each: Any) -> Any:
        return replace(each, inventories=NO_INVENTORY, extension=None)

    return (
        bare(node) == bare(found)
        and same_json(node.extension, found.extension)
        and list(node.inventories) == list(found.inventories)
    )


KINDS = (
    Kind(
        kind=structure.KIND,
        number=1,
        word="snapshot",
        values=strategies.snapshots(),
        encode=lambda value: (structure.encode(value[0]), value[0].id),
        decode=structure.decode,
        same=_same_snapshot,
    ),
    Kind(
        kind=manifest.KIND,
        number=2,
        word="manifest",
        values=strategies.chunk_tables(),
        encode=lambda table: (manifest.encode(table, ID), ID),
        decode=manifest.decode,
        same=lambda table, found: found.equals(table) and found.schema.equals(table.schema),
    ),
    Kind(
        kind=attributes.KIND,
        number=3,
        word="attributes",
        values=strategies.attribute_rows,
        encode=lambda rows: (attributes.encode(rows, ID), ID),
        decode=attributes.decode,
        same=lambda rows, found: (
            [tuple(row.values()) for row in found.to_pylist()] == rows
            and all(
                attributes.row_of(found, row, node_id, ID) == data
                for row, (node_id, data) in enumerate(rows)
            )
        ),
    ),
    Kind(
        kind=transaction.KIND,
        number=4,
        word="transaction-log",
        values=strategies.logs(),
        encode=lambda log: (transaction.encode(log), log.facts.id),
        decode=transaction.decode,
        same=lambda log, found: found == replace(log, facts=None),
    ),
)
