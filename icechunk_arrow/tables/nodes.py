"""The tables that a structure file is enough for: nodes, the edges of unequal chunks, and the live manifests.

Of a node there is what its ``zarr.json`` says. Columns go over as columns; only documents that the structure file's
columns cannot hold are looked at one by one. Manifests, and what each has of each array, are not opened, and
nothing is looped over them: there may be a hundred thousand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.chunks import DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL
from icechunk_arrow.core.columns import (
    distinct,
    from_numpy,
    from_values,
    indices,
    one_array,
    to_numpy,
    validity,
)
from icechunk_arrow.core.grid import item_size_of
from icechunk_arrow.core.json_values import encode_json
from icechunk_arrow.core.packing import PlainShape, choose_sets
from icechunk_arrow.core.placement import limit_of, set_for_size
from icechunk_arrow.core.snapshot import AttributesRef
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats.layout import FileKind, file_id, key_of
from icechunk_arrow.formats.structure import sound_array
from icechunk_arrow.tables.columns import (
    int64,
    lengths_of,
    lists_of,
    products,
    repeated,
    scattered,
    table_of,
)
from icechunk_arrow.tables.schemas import EXTENT, GRID_RUNS, INVENTORY, METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icechunk_arrow.core.grid import Axis
    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.files import Files

__all__ = ["grid_chunk_counts", "grid_run_table", "inventory_table", "manifest_table", "node_table"]

_LARGEST = 2**63 - 1
_REGULAR = "regular"


def node_table(files: Files, snapshot: Snapshot) -> pa.Table:
    """Make the table of all nodes of a snapshot; attributes that stand in other files are read."""
    table = snapshot.table
    count = table.num_rows
    paths = table["path"].to_pylist()
    metadata = one_array(table["array_metadata"])
    rows = np.flatnonzero(validity(metadata))
    arrays = metadata.take(indices(rows))
    documents = _Arrays(snapshot, arrays, to_numpy(table["id"])[rows])
    split = [path.rpartition("/") for path in paths]
    parents = [
        None if path == "/" else above or "/"
        for path, (above, _, _) in zip(paths, split, strict=True)
    ]
    of_arrays = (
        int64(arrays.field("shape")),
        int64(arrays.field("chunk_grid").field("configuration").field("chunk_shape")),
        arrays.field("chunk_grid").field("name"),
        documents.data_types(),
        documents.codecs(),
        documents.fill_values(),
        documents.dimension_names(),
    )
    grid, logical = (scattered(each, rows, count) for each in documents.counts())
    columns = [
        one_array(table["path"]),
        from_values([name for _, _, name in split], pa.string()),
        from_values(parents, pa.string()),
        one_array(table["type"]),
        int64(one_array(table["id"])),
        *(scattered(each, rows, count) for each in of_arrays),
        _attributes(files, snapshot),
        grid,
        logical,
        repeated(snapshot.id, count),
    ]
    return table_of(METADATA_TABLES["nodes"], columns)


def grid_chunk_counts(snapshot: Snapshot) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Count the chunks of all arrays' grids, in the order of their rows; and tell which counts fit 64 bits."""
    metadata = one_array(snapshot.table["array_metadata"])
    rows = np.flatnonzero(validity(metadata))
    ids = snapshot.rows.ids[rows]
    return _Arrays(snapshot, metadata.take(indices(rows)), ids).grid_chunk_counts()


class _Arrays:
    """The metadata of all arrays as columns, and the patches of some documents."""

    def __init__(self, snapshot: Snapshot, arrays: pa.Array, ids: npt.NDArray[np.uint32]) -> None:
        self._snapshot = snapshot
        self._arrays = arrays
        places = {node_id: place for place, node_id in enumerate(ids.tolist())}
        self._patches = {
            places[node_id]: patch["set"]
            for node_id, patch in snapshot.extensions.items()
            if node_id in places
        }
        self._ids = ids

    def _patched(self, values: pa.Array, member: str) -> pa.Array:
        """Put what patches say of a member, as JSON, over a column."""
        patched = {row: patch[member] for row, patch in self._patches.items() if member in patch}
        if not patched:
            return values
        listed = values.to_pylist()
        for row, value in patched.items():
            listed[row] = encode_json(value).decode()
        return from_values(listed, pa.string())

    def data_types(self) -> pa.Array:
        return self._patched(self._arrays.field("data_type"), "data_type")

    def fill_values(self) -> pa.Array:
        return self._patched(self._texts(self._arrays.field("fill_value")), "fill_value")

    def _texts(self, column: pa.Array) -> pa.Array:
        return _texts(column, key_of(FileKind.STRUCTURE, self._snapshot.id))

    def dimension_names(self) -> pa.Array:
        column = self._arrays.field("dimension_names")
        patched = {row: patch for row, patch in self._patches.items() if "dimension_names" in patch}
        if not patched:
            return column
        listed = column.to_pylist()
        for row, patch in patched.items():
            names = patch["dimension_names"]
            listed[row] = (
                None if names is None else [name if name is None else str(name) for name in names]
            )
        return from_values(listed, pa.list_(pa.string()))

    def codecs(self) -> pa.Array:
        """Write each array's codecs as JSON; the same codec is encoded once."""
        lists = self._arrays.field("codecs")
        items = lists.flatten()
        names = items.field("name").dictionary_encode()
        configurations = self._texts(items.field("configuration")).dictionary_encode(
            null_encoding="encode"
        )
        kinds = to_numpy(names.indices).astype(np.int64) * len(configurations.dictionary)
        kinds += to_numpy(configurations.indices)
        unique = distinct(kinds)
        codes = np.searchsorted(unique, kinds)
        known_names, known = names.dictionary.to_pylist(), configurations.dictionary.to_pylist()
        texts = [
            _codec_json(known_names[kind // len(known)], known[kind % len(known)])
            for kind in unique.tolist()
        ]
        each = from_values(texts, pa.string()).take(indices(codes))
        left, comma, right, nothing = (
            from_values([text], pa.string())[0] for text in ("[", ",", "]", "")
        )
        joined = pc.binary_join(lists_of(each, lengths_of(lists)), comma)
        return self._patched(pc.binary_join_element_wise(left, joined, right, nothing), "codecs")

    def grid_chunk_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Count chunks by arithmetic where grids are regular, else one by one."""
        grid = self._arrays.field("chunk_grid")
        shape, edges = self._arrays.field("shape"), grid.field("configuration").field("chunk_shape")
        ranks = to_numpy(pc.list_value_length(shape)).astype(np.int64)
        plain = to_numpy(pc.equal(grid.field("name"), from_values([_REGULAR], pa.string())[0]))
        plain = plain & (ranks == to_numpy(pc.list_value_length(edges)))
        for row, patch in self._patches.items():
            plain[row] &= not patch.keys() & {"chunk_grid", "shape"}
        lengths, sizes = (_of(each, plain) for each in (shape, edges))
        plain[np.flatnonzero(plain)[_owners(ranks[plain])[sizes == 0]]] = False
        lengths, sizes = (_of(each, plain) for each in (shape, edges))
        counts = np.zeros(len(ranks), np.int64)
        fits = np.zeros(len(ranks), np.bool_)
        counts[plain], fits[plain] = products(
            -(-lengths.astype(np.int64) // sizes.astype(np.int64)), ranks[plain]
        )
        for row in np.flatnonzero(~plain).tolist():
            node = self._snapshot.find_node_by_id(int(self._ids[row]))
            assert node is not None
            with sound_array(node.path, self._snapshot.id):
                total = node.grid.chunk_count
            fits[row] = total <= _LARGEST
            counts[row] = total if fits[row] else 0
        return counts, fits

    def counts(self) -> tuple[pa.Array, pa.Array]:
        """Give chunks of the grid and logical bytes; null where they do not fit or are not known."""
        chunks, chunks_fit = self.grid_chunk_counts()
        shape = self._arrays.field("shape")
        ranks = to_numpy(pc.list_value_length(shape)).astype(np.int64)
        items = self._item_sizes()
        flat = np.insert(
            to_numpy(shape.flatten()), np.cumsum(ranks), np.maximum(items, 0).astype(np.uint64)
        )
        logical, fit = products(flat, ranks + 1)
        return (
            from_numpy(chunks, pa.int64(), chunks_fit),
            from_numpy(logical, pa.int64(), fit & (items >= 0)),
        )

    def _item_sizes(self) -> npt.NDArray[np.int64]:
        coded = self._arrays.field("data_type").dictionary_encode()
        sizes = [item_size_of(name) for name in coded.dictionary.to_pylist()]
        known = np.array([-1 if size is None else size for size in sizes], np.int64)
        items = known[to_numpy(coded.indices)] if len(known) else np.empty(0, np.int64)
        for row, patch in self._patches.items():
            if "data_type" in patch:
                size = item_size_of(patch["data_type"])
                items[row] = -1 if size is None else size
        return items


def _of(lists: pa.Array, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    return to_numpy(lists.take(indices(np.flatnonzero(chosen))).flatten())


def _owners(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(len(lengths)), lengths)


def _codec_json(name: str, configuration: str | None) -> str:
    named = f'"name":{json.dumps(name, ensure_ascii=False)}'
    return (
        f"{{{named}}}" if configuration is None else f'{{{named},"configuration":{configuration}}}'
    )


def _attributes(files: Files, snapshot: Snapshot) -> pa.Array:
    """Give attributes as JSON, from wherever they stand."""
    inline = _texts(
        one_array(snapshot.table["inline_attrs"]), key_of(FileKind.STRUCTURE, snapshot.id)
    )
    references = one_array(snapshot.table["attrs_reference"])
    far = np.flatnonzero(validity(references))
    if not len(far):
        return inline
    texts = inline.to_pylist()
    some = references.take(indices(far))
    names, places = some.field("attrs_file").to_pylist(), some.field("row").to_pylist()
    ids = snapshot.rows.ids[far].tolist()
    for row, name, place, node_id in zip(far.tolist(), names, places, ids, strict=True):
        with sound_array(snapshot.paths[row], snapshot.id):
            reference = AttributesRef(identifier=file_id(name), row=place)
        data = files.read_attributes(reference, node_id)
        (text,) = _texts(
            from_values([data], pa.binary()), key_of(FileKind.ATTRIBUTES, reference.identifier)
        )
        texts[row] = text.as_py()
    return from_values(texts, pa.string())


def _texts(column: pa.Array, key: str) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptFileError(f"{key} holds text that is none: {error}", key=key) from error


def grid_run_table(snapshot: Snapshot) -> pa.Table:
    """Put the edges of all grids that are not regular into a table, as runs of equal ones."""
    metadata = one_array(snapshot.table["array_metadata"])
    names = metadata.field("chunk_grid").field("name")
    regular = from_values([_REGULAR], pa.string())[0]
    unequal = validity(metadata) & to_numpy(pc.not_equal(names, regular))
    ids = snapshot.rows.ids[unequal].tolist()
    runs = []
    for node_id in ids:
        node = snapshot.find_node_by_id(node_id)
        assert node is not None
        with sound_array(node.path, snapshot.id):
            axes = node.grid.axes
        runs.append(
            [
                [
                    {"position": position, "chunk": chunk, "edge": edge}
                    for position, chunk, edge in _edge_runs(axis)
                ]
                for axis in axes
            ]
        )
    columns = [from_values(ids, pa.int64()), from_values(runs, GRID_RUNS.field("runs").type)]
    return pa.Table.from_arrays(columns, schema=GRID_RUNS)


def _edge_runs(axis: Axis) -> Iterator[tuple[int, int, int]]:
    """Give for each run of equal edges where it begins, the number of its first chunk, and the edge."""
    position = chunk = 0
    for edge, count in axis.runs:
        yield position, chunk, edge
        if count is not None:
            position, chunk = position + edge * count, chunk + count


def inventory_table(snapshot: Snapshot, folder: str = "") -> pa.Table:
    """Make the table of what each manifest has of each array; ``file`` is a manifest's key below a folder."""
    entries = snapshot.entries
    files = [f"{folder}{key_of(FileKind.MANIFEST, name)}" for name in entries.manifests]
    codes = indices(entries.codes)
    columns = [
        _paths(snapshot, entries.owners),
        from_numpy(snapshot.rows.ids[entries.owners], pa.int64()),
        from_numpy(entries.ranks, pa.int64()),
        from_values(entries.manifests, pa.string()).take(codes),
        from_values(files, pa.string()).take(codes),
        _signed(entries.row_counts),
        from_numpy(entries.stored_bytes, pa.int64(), entries.stored_bytes <= np.uint64(_LARGEST)),
        *(lists_of(each, entries.ranks) for each in _bounds(entries.pairs)),
    ]
    return table_of(INVENTORY, columns)


def _paths(snapshot: Snapshot, owners: npt.NDArray[np.int64]) -> pa.Array:
    return one_array(snapshot.table["path"]).take(indices(owners))


def _signed(numbers: npt.NDArray[np.uint64]) -> pa.Array:
    """Bring numbers to 64 bits with a sign, or fail."""
    return int64(from_numpy(numbers, pa.uint64()))


def _bounds(pairs: npt.NDArray[np.uint64]) -> list[pa.Array]:
    """Give where extents start and where they stop, dimension by dimension."""
    return [_signed(pairs[:, which]) for which in (0, 1)]


def manifest_table(snapshot: Snapshot, settings: ManifestSettings) -> pa.Table:
    """Make the table of the live manifests."""
    entries = snapshot.entries
    count = len(entries.manifests)
    row_counts = to_numpy(_signed(entries.row_counts))
    per_manifest = np.bincount(entries.codes, minlength=count)
    rows = _sums(entries.codes, row_counts, count)
    sets, limits = _sets(snapshot, row_counts, settings)
    sizes = [snapshot.manifest_sizes[name] for name in entries.manifests]
    kind = METADATA_TABLES["manifests"].field("arrays").type
    structs = pa.Array.from_buffers(
        kind.value_type, len(entries), [None], children=_of_arrays(snapshot)
    )
    columns = [
        from_values(entries.manifests, pa.string()),
        from_numpy(np.array(sizes, np.int64), pa.int64()),
        from_numpy(rows, pa.int64()),
        from_numpy(per_manifest.astype(np.int64), pa.int64()),
        lists_of(structs, per_manifest),
        sets,
        from_numpy(rows / np.maximum(limits, 1), pa.float64()),
        repeated(snapshot.id, count),
    ]
    return table_of(METADATA_TABLES["manifests"], columns)


def _of_arrays(snapshot: Snapshot) -> list[pa.Array]:
    """What manifests have of arrays, manifest by manifest, in the order of their rows."""
    entries = snapshot.entries
    order = np.lexsort([entries.rows, entries.codes])
    owners, flags = entries.owners[order], entries.flags[order]
    ranges = pa.Array.from_buffers(
        EXTENT.value_type, len(entries.pairs), [None], children=_bounds(entries.pairs)
    )
    marks = [
        from_numpy((flags & bit) != 0, pa.bool_())
        for bit in (DENSE, HAS_INLINE, HAS_NATIVE, HAS_VIRTUAL)
    ]
    return [
        _paths(snapshot, owners),
        from_numpy(snapshot.rows.ids[owners], pa.int64()),
        _signed(entries.rows[order]),
        _signed(entries.row_counts[order]),
        lists_of(ranges, entries.ranks).take(indices(order)),
        *marks,
    ]


def _sums(
    codes: npt.NDArray[np.int64], values: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, codes, values)
    return sums


def _sets(
    snapshot: Snapshot, row_counts: npt.NDArray[np.int64], settings: ManifestSettings
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Tell the set of each manifest, null where arrays of several sets share it, and the most rows it may have."""
    entries = snapshot.entries
    arrays = distinct(entries.owners)
    totals = _sums(np.searchsorted(arrays, entries.owners), row_counts, len(arrays))
    names = [each.name for each in settings.sets]
    number_of = {name: number for number, name in enumerate(names)}
    most = np.array([limit_of(each) for each in settings.sets], np.int64)
    chosen = np.empty(len(arrays), np.int64)
    grid_counts, fit = (
        each[_array_places(snapshot)[arrays]] for each in grid_chunk_counts(snapshot)
    )
    shapes = [
        PlainShape(path=path, chunk_counts=(grid,), dimension_names=None, chunk_count=total)
        for path, grid, total in zip(
            _paths(snapshot, arrays).to_pylist(),
            np.where(fit, grid_counts, _LARGEST).tolist(),
            totals.tolist(),
            strict=True,
        )
    ]
    for place, meant in enumerate(choose_sets(settings, shapes)):
        home = set_for_size(settings, meant, shapes[place].chunk_count)
        chosen[place] = number_of[home.name]
    of_entry = chosen[np.searchsorted(arrays, entries.owners)]
    count = len(entries.manifests)
    low, high = np.full(count, len(names)), np.full(count, -1)
    limits = np.zeros(count, np.int64)
    np.minimum.at(low, entries.codes, of_entry)
    np.maximum.at(high, entries.codes, of_entry)
    np.maximum.at(limits, entries.codes, most[of_entry] if len(of_entry) else np.empty(0, np.int64))
    texts = from_values(names, pa.string())
    return texts.take(from_numpy(np.where(low == high, low, 0), pa.int64(), low == high)), limits


def _array_places(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """Give for each node that is an array its place among the arrays."""
    return np.cumsum(validity(one_array(snapshot.table["array_metadata"]))) - 1
