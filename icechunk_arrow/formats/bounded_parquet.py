"""Decoding row groups within a number of bytes that the reader chose, whatever the file says.

First an upper bound is formed from the headers of all pages (``page_walk``). Nearly always that is enough. Where it
is not, the bound is refined by looking into dictionaries, and columns whose values might be long are decoded a few
rows at a time and counted; what remains too much is refused before it is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from icechunk_arrow.formats.page_walk import (
    ColumnCost,
    UnsoundParquetError,
    column_cost,
    count_structs,
    delta_text_bytes,
    longest_entry,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.parquet as pq

    from icechunk_arrow.formats.budget import Budget

__all__ = [
    "FilePart",
    "UnsoundParquetError",
    "check_decoding",
    "check_footer",
    "read_bounded",
]

_MAX_GROUP_ROWS = 1 << 24
_MAX_GROUP_VALUES = 1 << 28
_COMPRESSIONS = ("ZSTD", "UNCOMPRESSED")
_STRUCT_BYTES = 700
_LEAST_STRUCT_BYTES = 3
"""What one structure of a footer takes in memory at most, measured, and in the file at least."""
_FOOTER_SHARE = 4
_PART_SHARE = 8
"""Which part of the limit a footer may take, and how much is decoded at once where values may be long."""
_MOST_PARTS = 4096


class FilePart(NamedTuple):
    """Bytes of a file, and where in it they begin."""

    data: memoryview
    base: int


class _Text(NamedTuple):
    """A leaf of binary values: its number, its column, and its cost."""

    leaf: int
    column: str
    size: int
    longest: int


def check_footer(footer: memoryview, budget: Budget) -> None:
    """Look at a long footer before it is read: three bytes of it can take seven hundred of memory."""
    share = budget.limit_bytes // _FOOTER_SHARE
    if len(footer) // _LEAST_STRUCT_BYTES * _STRUCT_BYTES <= share:
        return
    budget.check(_FOOTER_SHARE * len(footer))
    try:
        count_structs(footer, share // _STRUCT_BYTES)
    except UnsoundParquetError:
        budget.refuse(_FOOTER_SHARE * share)


def read_bounded(
    parquet: pq.ParquetFile,
    groups: Sequence[int],
    source: FilePart,
    *,
    leaves: Sequence[str],
    columns: Sequence[str] | None,
    coded: Sequence[str],
    budget: Budget,
) -> pa.Table:
    """Decode columns of row groups (all, where none are named), of which ``coded`` ones are read as codes.

    ``leaves`` names the column of each leaf, as :class:`~.column_guard.ColumnGuard` does.

    Raises
    ------
    UnsoundParquetError
        Pages and footer contradict each other.
    OversizedFileError
        It would take more than the budget.
    """
    metadata = parquet.metadata
    rows = sum(_row_count(metadata, group) for group in groups)
    names = [name for name in dict.fromkeys(leaves) if columns is None or name in columns]
    total, texts = _bound(metadata, groups, source, leaves, names, coded)
    parts: dict[str, int] = {}
    if total > budget.limit_bytes:
        total, texts = _refined(metadata, groups, source, total, texts, budget)
        parts, total = _in_parts(metadata, rows, total, texts, budget)
    if parts:
        table = _read_with_parts(
            parquet, groups, names, parts, budget._replace(limit_bytes=budget.limit_bytes - total)
        )
    else:
        table = parquet.read_row_groups(
            list(groups), columns=None if columns is None else names, use_threads=False
        )
    if table.num_rows != rows:
        raise UnsoundParquetError(f"it has {table.num_rows} rows where its footer says {rows}")
    return table


def check_decoding(
    metadata: pq.FileMetaData, group: int, source: FilePart, leaves: Sequence[str], budget: Budget
) -> None:
    """Look at the pages of a row group that another decodes, page by page.

    Raises
    ------
    UnsoundParquetError
        Pages and footer contradict each other.
    OversizedFileError
        A page, or a dictionary and its entries, would take more than the budget.
    """
    _row_count(metadata, group)
    for leaf, name in enumerate(leaves):
        budget.check(_cost(metadata, group, leaf, name, source, levels=2).fixed)


def _row_count(metadata: pq.FileMetaData, group: int) -> int:
    """How many rows a row group has, as its footer says: memory is taken on the word of this number."""
    row_group = metadata.row_group(group)
    rows: int = row_group.num_rows
    count = row_group.num_columns
    if count != metadata.num_columns:
        raise UnsoundParquetError(
            f"row group {group} has {count} of {metadata.num_columns} columns"
        )
    if not 0 < rows <= _MAX_GROUP_ROWS:
        raise UnsoundParquetError(f"row group {group} would have {rows} rows")
    return rows


def _bound(
    metadata: pq.FileMetaData,
    groups: Sequence[int],
    source: FilePart,
    leaves: Sequence[str],
    names: Sequence[str],
    coded: Sequence[str],
) -> tuple[int, list[_Text]]:
    """Bound what all leaves take; and of the binary ones each."""
    levels = 2 if len(set(leaves)) < len(leaves) else 1
    chosen = [(leaf, name, name in coded) for leaf, name in enumerate(leaves) if name in names]
    total = 0
    texts: dict[int, _Text] = {}
    for group in groups:
        for leaf, name, is_coded in chosen:
            fixed, size, longest = _cost(
                metadata, group, leaf, name, source, levels=levels, stays_coded=is_coded
            )
            total += fixed + size
            if size:
                before = texts.get(leaf, _Text(leaf, name, 0, 0))
                texts[leaf] = _Text(leaf, name, before.size + size, max(before.longest, longest))
    return total, list(texts.values())


def _cost(
    metadata: pq.FileMetaData,
    group: int,
    leaf: int,
    name: str,
    source: FilePart,
    *,
    levels: int,
    stays_coded: bool = False,
) -> ColumnCost:
    column = metadata.row_group(group).column(leaf)
    if column.compression not in _COMPRESSIONS:
        raise UnsoundParquetError(
            f"column {name!r} is compressed with {column.compression}, where its header says zstd"
        )
    if not 0 < column.num_values <= _MAX_GROUP_VALUES:
        raise UnsoundParquetError(
            f"row group {group} would have {column.num_values} values in {name!r}"
        )
    return column_cost(column, *source, levels=levels, stays_coded=stays_coded)


def _refined(
    metadata: pq.FileMetaData,
    groups: Sequence[int],
    source: FilePart,
    total: int,
    texts: Sequence[_Text],
    budget: Budget,
) -> tuple[int, list[_Text]]:
    """Look closer at columns that may take much, the largest first."""
    after = []
    for text in sorted(texts, key=lambda each: -each.size):
        closer = text
        if total > budget.limit_bytes:
            columns = [metadata.row_group(group).column(text.leaf) for group in groups]
            closer = _looked_at(metadata.schema.column(text.leaf), columns, source, text)
        total += closer.size - text.size
        after.append(closer)
    return total, after


def _looked_at(
    schema: pq.ColumnSchema,
    columns: Sequence[pq.ColumnChunkMetaData],
    source: FilePart,
    text: _Text,
) -> _Text:
    """Count what delta encoded texts share; look into dictionaries, whose entries are shorter than all together."""
    if not schema.max_repetition_level and schema.max_definition_level < 2:
        size = delta_text_bytes(columns, *source, nullable=schema.max_definition_level == 1)
        if size is not None:
            return _Text(text.leaf, text.column, size, text.longest)
    size = longest = 0
    for column in columns:
        entry = longest_entry(column, *source) if column.has_dictionary_page else None
        cost = column_cost(column, *source, levels=0, longest_entry=entry)
        size += cost.texts
        longest = max(longest, cost.longest)
    return _Text(text.leaf, text.column, min(size, text.size), longest)


def _in_parts(
    metadata: pq.FileMetaData,
    rows: int,
    total: int,
    texts: Sequence[_Text],
    budget: Budget,
) -> tuple[dict[str, int], int]:
    """Choose columns to decode so many rows at a time; give what all others take."""
    parts: dict[str, int] = {}
    for text in sorted(texts, key=lambda each: -each.size):
        if total <= budget.limit_bytes // 2 or not text.size:
            break
        schema = metadata.schema.column(text.leaf)
        is_flat = schema.path == text.column and not schema.max_repetition_level
        count = budget.limit_bytes // _PART_SHARE // text.longest
        if is_flat and count and rows <= count * _MOST_PARTS:
            parts[text.column] = count
            total -= text.size
    budget.check(total)
    return parts, total


def _read_with_parts(
    parquet: pq.ParquetFile,
    groups: Sequence[int],
    names: Sequence[str],
    parts: Mapping[str, int],
    budget: Budget,
) -> pa.Table:
    """Decode some columns so many rows at a time, and stop where they are too much; the others whole."""
    columns: dict[str, pa.ChunkedArray] = {}
    size = 0
    for name, count in parts.items():
        batches = []
        for batch in parquet.iter_batches(
            batch_size=count, row_groups=list(groups), columns=[name], use_threads=False
        ):
            size += batch.nbytes
            budget.check(size)
            batches.append(batch.column(0))
        columns[name] = pa.chunked_array([pa.concat_arrays(batches)])
    whole = [name for name in names if name not in parts]
    if whole:
        table = parquet.read_row_groups(list(groups), columns=whole, use_threads=False)
        columns |= dict(zip(table.column_names, table.columns, strict=True))
    return pa.Table.from_pydict({name: columns[name] for name in names})
