"""What DuckDB reads of a repository through a file system of ours; and tables as Arrow, by a DuckDB of its own.

Owns the names under which DuckDB finds manifests and small tables, and what is made when it opens one. DuckDB
chooses the ranges that it reads, and gets no byte that was not checked (``SealedFiles``): a range becomes whole
row groups, each of which the seal has a checksum for, and a file's end is checked when the file is first read.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icechunk_arrow.core.checksums import crc32c
from icechunk_arrow.core.columns import empty_table
from icechunk_arrow.core.manifest_columns import TABLES_FORM, schema_of
from icechunk_arrow.duckdb.definitions import (
    SnapshotSource,
    coordinate_macros,
    names_in,
    schema_statements,
)
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.context import new_id
from icechunk_arrow.errors import CorruptFileError, InvalidInputError
from icechunk_arrow.formats import envelope, manifest
from icechunk_arrow.formats.budget import Budget
from icechunk_arrow.formats.layout import FileKind, file_id, key_of
from icechunk_arrow.storage.table_files import FileGroup, TableFiles
from icechunk_arrow.tables.metadata import metadata_table
from icechunk_arrow.tables.queries import change_query, root_uri
from icechunk_arrow.tables.schemas import CHANGES, CHUNK_TABLES, METADATA_TABLES
from icechunk_arrow.tables.selection import find_named
from icechunk_arrow.tables.sql import DUCKDB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.storage.port import Storage
    from icechunk_arrow.tables.scans import Scan


__all__ = [
    "CheckedSource",
    "SealedFiles",
    "change_table",
    "checked_files",
    "chunk_table",
    "private_schema",
]

_TAIL_BYTES = 1 << 16
_FAR_TAIL_BYTES = 1 << 18
"""What is fetched of a file's end at first: the footer; where requests are slow all of 65,536 chunks."""
_READ_AHEAD_BYTES = 1 << 20
"""From a fast place so much is read at once where a query reads on: each read has a price of its own."""
_CACHE_BYTES = 1 << 26
_BEGIN = b"PAR1"
_SCHEMA = "main"
_CHANGES, _MANIFESTS = "changes", "manifests-"
_EVERY_COLUMN = schema_of(TABLES_FORM)
"""Whatever a view asks of a manifest; each type becomes the view's own."""
_PARQUET_ROWS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """A file whose end is right."""

    bounds: npt.NDArray[np.int64]
    """Where row groups begin, and behind them where the last one ends."""
    crcs: npt.NDArray[np.uint32]
    end: bytes
    """The seal and the footer, which are behind everything else."""
    sealed: envelope.Sealed

    @property
    def size_bytes(self) -> int:
        return (
            5 * len(self.end) + 28 * len(self.crcs) + 500
        )  # a footer that was parsed takes the fourfold


class SealedFiles:
    """Files of one storage, by their keys; for many threads."""

    def __init__(self, storage: Storage, cache_bytes: int = _CACHE_BYTES) -> None:
        self._storage = storage
        self._fast = storage.capabilities.fast
        self._cache = ByteCache(cache_bytes)
        """Row groups by key and number, and what is known of a file by its key."""

    def read(self, key: str, size_bytes: int, start: int, length: int) -> bytes:
        """Give a range of a file that has so many bytes; what no checksum covers is given as zeros."""
        stop = min(start + length, size_bytes)
        opened = self._open(key, size_bytes)
        ends_at = size_bytes - len(opened.end)
        if start >= ends_at:
            return opened.end[start - ends_at : stop - ends_at]
        bounds = opened.bounds
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop, side="left")) - 1
        groups = range(max(first, 0), min(last, len(bounds) - 2) + 1)
        if len(groups) == 1 and bounds[groups[0]] <= start and stop <= bounds[groups[0] + 1]:
            begin = int(bounds[groups[0]])
            return self._groups(key, opened, groups)[0][start - begin : stop - begin]
        content = bytearray(stop - start)
        pieces = [(0, _BEGIN), (ends_at, opened.end)]
        pieces += zip(
            bounds[groups.start :].tolist(), self._groups(key, opened, groups), strict=False
        )
        for begin, data in pieces:
            low, high = max(begin, start), min(begin + len(data), stop)
            if low < high:
                content[low - start : high - start] = memoryview(data)[low - begin : high - begin]
        return bytes(content)

    def _open(self, key: str, size_bytes: int) -> _Opened:
        """Check the end of a file, once; row groups that come along are kept."""
        opened: _Opened = self._cache.get(key, lambda: self._read_end(key, size_bytes))
        return opened

    def _read_end(self, key: str, size_bytes: int) -> tuple[_Opened, int]:
        tail = self._tail(key, size_bytes, _TAIL_BYTES if self._fast else _FAR_TAIL_BYTES)
        needs = envelope.seal_needs(tail, size_bytes, key)
        for _ in range(2):  # the length of the footer, then the number of row groups
            if needs > len(tail):
                Budget(key).check(needs)
                tail = self._tail(key, size_bytes, needs)
                needs = envelope.seal_needs(tail, size_bytes, key)
        folder, _, name = key.partition("/")
        sealed = envelope.open_seal(tail, size_bytes, FileKind(folder), file_id(name))
        if sealed.key.startswith(FileKind.MANIFEST.value):
            manifest.check_form(sealed)  # an engine would say what is wrong, and not of which file
            sealed.check_columns(range(sealed.row_group_count))  # or be of no use from then on
        opened = _Opened(
            bounds=np.append(len(_BEGIN), sealed.row_group_ends.astype(np.int64)),
            crcs=sealed.row_group_crcs.copy(),
            end=tail[len(tail) - needs :],
            sealed=sealed,
        )
        whole = int(np.searchsorted(opened.bounds, size_bytes - len(tail)))
        if whole < len(opened.crcs):
            at = int(opened.bounds[whole]) - (size_bytes - len(tail))
            self._checked(key, opened, range(whole, len(opened.crcs)), tail[at:])
        return opened, opened.size_bytes

    def _tail(self, key: str, size_bytes: int, length: int) -> bytes:
        wanted = min(length, size_bytes)
        tail = self._storage.get_range(key, size_bytes - wanted, wanted)
        if len(tail) != wanted:
            raise _cut(key)
        return tail

    def _groups(self, key: str, opened: _Opened, groups: range) -> list[bytes]:
        """Give row groups, checked: those that are not held with one read."""
        cached = ((group, self._cache.find((key, group))) for group in groups)
        held: dict[int, bytes] = {group: data for group, data in cached if data is not None}
        missing = [group for group in groups if group not in held]
        if missing:
            first, last = missing[0], missing[-1]
            start, stop = int(opened.bounds[first]), int(opened.bounds[last + 1])
            if self._fast:
                last += int(
                    np.searchsorted(opened.bounds[last + 2 :], start + _READ_AHEAD_BYTES, "right")
                )
                stop = int(opened.bounds[last + 1])
            data = self._storage.get_range(key, start, stop - start)
            if len(data) != stop - start:
                raise _cut(key)
            held |= self._checked(key, opened, range(first, last + 1), data)
        return [held[group] for group in groups]

    def _checked(self, key: str, opened: _Opened, groups: range, data: bytes) -> dict[int, bytes]:
        """Check row groups that stand one after the other, and keep them."""
        base = int(opened.bounds[groups[0]])
        view = memoryview(data)
        checked = {}
        for group in groups:
            start, stop = opened.bounds[group : group + 2].tolist()
            part = view[start - base : stop - base]
            if crc32c(part) != int(opened.crcs[group]):
                raise CorruptFileError(
                    f"{key} is damaged: the bytes of row group {group} do not match their checksum. "
                    f"Restore the file from a copy, or attach an earlier snapshot.",
                    key=key,
                )
            envelope.check_pages(opened.sealed, group, part)
            checked[group] = self._keep((key, group), bytes(part))
        return checked

    def _keep(self, name: tuple[str, int], data: bytes) -> bytes:
        self._cache.get(name, lambda: (data, len(data) + 200))
        return data


def _cut(key: str) -> CorruptFileError:
    return CorruptFileError(
        f"{key} is cut: it has fewer bytes than its snapshot says. Restore the file from a copy, or attach "
        f"an earlier snapshot.",
        key=key,
    )


def checked_files(storage: Storage) -> TableFiles:
    """Make a file system for one storage that gives out nothing unchecked, with a protocol that no other has."""
    return TableFiles(storage, f"icechunk-{new_id().lower()}", SealedFiles(storage).read)


class CheckedSource(SnapshotSource):
    """One snapshot in such a file system.

    ``owners`` says whose manifests are read, for messages, and how many bytes each has: the snapshot's if it is not
    given.
    """

    def __init__(
        self,
        files: TableFiles,
        context: Context,
        snapshot: Snapshot,
        names: Mapping[str, str],
        owners: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.root = root_uri(context.storage.url)
        self.names = names
        self.snapshot = snapshot
        self.folder = files.add_generation(self._content)
        self.statements = []
        self._files = files
        self._context = context
        self._owners = owners or _owner(snapshot)
        self._groups: dict[Scan, str] = {}
        self._tables: dict[str, bytes] = {}

    def files(self, scan: Scan, *, named: bool) -> str:  # noqa: ARG002 -- names of files come anyway
        """Name the group of files."""
        name = self._groups.get(scan)
        if name is None:
            owners = (each for each in self._owners.items() if scan.manifests[0] in each[1])
            owner, sizes = next(owners)
            keys = {key_of(FileKind.MANIFEST, each): sizes[each] for each in scan.manifests}
            group = FileGroup(sizes=keys, owner=owner)
            number = len(self._groups)
            name = self._files.add_group(self.folder, f"{_MANIFESTS}{number}", group)
            self._groups[scan] = name
        return f"read_parquet({DUCKDB.text(name)}, hive_partitioning = false)"

    def table(self, name: str, rows: pa.Table) -> str:
        """Make a file of the rows."""
        self._tables[name] = _parquet(rows)
        return self._made(name)

    def held(self, name: str, rows: pa.Table) -> str:
        """Fill a table from a file of the rows."""
        relation = self.names[name]
        self.statements.append(
            f"CREATE OR REPLACE TABLE {relation} AS FROM {self.table(name, rows)}"
        )
        return relation

    def metadata(self, name: str) -> str:
        """Read a file that is made when it is opened."""
        return f"SELECT {_listed(METADATA_TABLES[name])} FROM {self._made(name)}"

    def changes(self) -> str:
        """Read a file that is made when it is opened; its name says of which snapshots."""
        between = "coalesce(hex(earlier::VARCHAR) || '/' || hex(later::VARCHAR), '')"
        return f"SELECT {_listed(CHANGES)} FROM {self._made(_CHANGES + '/', f' || {between}')}"

    def _made(self, name: str, more: str = "") -> str:
        return f"read_parquet({DUCKDB.text(self.folder + name)}{more}, hive_partitioning = false)"

    def _content(self, name: str, describing: bool) -> bytes:
        """Make a file: of rows, or where only its columns are asked for without."""
        if name in self._tables:
            return self._tables[name]
        if describing:
            return _without_rows(name)
        kind, _, between = name.partition("/")
        if kind != _CHANGES:
            return _parquet(metadata_table(self._context, name, self.snapshot.id))
        if not between:
            return _parquet(empty_table(CHANGES))
        before, after = (
            find_named(self._context, bytes.fromhex(each).decode()) for each in between.split("/")
        )
        return _parquet(change_table(self._context, before, after))


def _owner(*snapshots: Snapshot) -> dict[str, Mapping[str, int]]:
    return {f"the snapshot {each.id}": each.manifest_sizes for each in snapshots}


def _listed(schema: pa.Schema) -> str:
    return ", ".join(map(DUCKDB.identifier, schema.names))


@cache
def _without_rows(name: str) -> bytes:
    if name.startswith(_MANIFESTS):
        return _parquet(empty_table(_EVERY_COLUMN))
    return _parquet(empty_table(CHANGES if name.startswith(_CHANGES) else METADATA_TABLES[name]))


def _parquet(table: pa.Table) -> bytes:
    """Write a table that is read soon and thrown away: little effort on being small."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="lz4") as writer:
        for start in range(0, max(table.num_rows, 1), _PARQUET_ROWS):
            writer.write_table(table.slice(start, _PARQUET_ROWS))
    data: bytes = sink.getvalue().to_pybytes()
    return data


# -- a DuckDB of its own


@contextmanager
def _connected(files: TableFiles) -> Iterator[Any]:
    """Give a connection to a DuckDB of its own; what its reads meet is raised as it is, not as a text."""
    try:
        import duckdb  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise InvalidInputError(
            "this table is SQL over chunk manifests and needs DuckDB: pip install 'icechunk-arrow[duckdb]'"
        ) from error
    with duckdb.connect() as con:
        con.register_filesystem(files)
        try:
            yield con
        except duckdb.Error as error:
            if files.failure is not None:
                raise files.failure from error
            raise
        finally:
            con.unregister_filesystem(files.protocol)


@contextmanager
def private_schema(
    context: Context, snapshot_id: str, *, files: TableFiles | None = None
) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Give a connection to a DuckDB of its own with the tables of a snapshot, and what these are called."""
    files = files or checked_files(context.storage)
    names = names_in(_SCHEMA)
    source = CheckedSource(files, context, context.files.read_snapshot(snapshot_id), names)
    statements = schema_statements(_SCHEMA, {"": source}, united=False)
    with _connected(files) as con:
        with files.describing():
            con.execute(";\n".join(statements))
        yield con, names


def chunk_table(context: Context, name: str, snapshot_id: str) -> pa.Table:
    """Make one of ``schemas.CHUNK_TABLES``: the view that ``attach`` makes, asked for all its rows."""
    with private_schema(context, snapshot_id) as (con, names):
        return _rows(con, f"SELECT * FROM {names[name]}", CHUNK_TABLES[name])


def change_table(context: Context, before_id: str, after_id: str) -> pa.Table:
    """Make the table of what changed from one snapshot to another, whatever lies between them."""
    before, after = (context.files.read_snapshot(each) for each in (before_id, after_id))
    files = checked_files(context.storage)
    source = CheckedSource(files, context, after, names_in(_SCHEMA), _owner(before, after))
    query = change_query(source, context.files, before, after)
    with _connected(files) as con:
        con.execute(";\n".join(coordinate_macros(_SCHEMA)))
        return _rows(con, query, CHANGES)


def _rows(con: Any, query: str, schema: pa.Schema) -> pa.Table:
    """Run a query and give its rows in the types of a schema."""
    table = con.sql(query).to_arrow_table()
    return table.select(schema.names).cast(schema)
