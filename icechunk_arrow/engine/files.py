"""Whole files as values: what stands between formats and storage.

Owns which bytes of a file are fetched, and the cache; decides nothing about their meaning. Where a structure file
is missing, the ledger is asked what became of the snapshot.

Specification: schemas/README.md#ledger
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from icechunk_arrow.core.chunks import STATISTICS
from icechunk_arrow.core.columns import to_numpy
from icechunk_arrow.engine.cache import Windows
from icechunk_arrow.engine.manifest_file import ManifestFile, RowGroup, rows_not_of, wrong_file
from icechunk_arrow.engine.sequences import FileSequence
from icechunk_arrow.errors import (
    CorruptFileError,
    ForeignSnapshotError,
    ObjectNotFoundError,
    RetiredSnapshotError,
    SnapshotNotFoundError,
)
from icechunk_arrow.formats import attributes, envelope, manifest, structure, transaction
from icechunk_arrow.formats import ledger as ledger_format
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES, Budget
from icechunk_arrow.formats.layout import LEDGER_FOLDER, FileKind, key_of, ledger_key
from icechunk_arrow.formats.refs import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from icechunk_arrow.core.log import TransactionLog
    from icechunk_arrow.core.snapshot import AttributesRef, Snapshot, SnapshotFacts
    from icechunk_arrow.engine.cache import ByteCache
    from icechunk_arrow.formats.envelope import Sealed
    from icechunk_arrow.formats.ledger import Ledger
    from icechunk_arrow.storage.port import Storage

__all__ = ["Files", "find_ledger"]

A = TypeVar("A")
TAIL_BYTES = 1 << 16
"""What is fetched of a file's end at first: all of a small file, the footer of a large one."""
SLOW_TAIL_BYTES = 1 << 18
"""The same where requests are slow: all of a manifest of 65,536 chunks, for a fifth of a request's wait."""
_HELD_BYTES = 64 << 10
_MOST_BYTES = (1 << 63) - 1
"""No file has more."""
_AT_ONCE = 32
"""So many footers are asked for at a time where requests are slow."""
SCAN_BYTES = 1 << 22
"""What is held at once of a manifest that is read from end to end."""


def find_ledger(
    storage: Storage, repository: str | None, limit_bytes: int = DECODE_LIMIT_BYTES
) -> Ledger | None:
    """Read what the newest entry of the ledger says; None where there is no ledger."""
    entries = FileSequence(storage=storage, folder=LEDGER_FOLDER, key_of=ledger_key)
    number = entries.newest(seen=None, hint=lambda: None)
    if number is None:
        return None
    key = ledger_key(number)
    entry = ledger_format.decode_entry(storage.get(key, limit_bytes=MOST_BYTES), key)
    log = key_of(FileKind.TRANSACTION, entry.log)
    try:
        data = storage.get(log, limit_bytes=limit_bytes)
    except ObjectNotFoundError as error:
        raise CorruptFileError(
            f"{log} is missing, although {key} refers to it. Restore it from a copy.", key=log
        ) from error
    ledger = ledger_format.decode(data, entry.log, limit_bytes)
    if repository is not None and ledger.repository != repository:
        raise CorruptFileError(f"{log} is the ledger of another repository", key=log)
    return ledger


class Files:
    """Typed reads of a repository's files, through a cache."""

    def __init__(
        self,
        storage: Storage,
        cache: ByteCache,
        decode_limit_bytes: int = DECODE_LIMIT_BYTES,
        repository: str | None = None,
    ) -> None:
        self.storage = storage
        self.cache = cache
        self.repository = repository
        """The repository whose files these are; None where every one is meant."""
        self.decode_limit_bytes = decode_limit_bytes
        self._windows = Windows(storage)
        self._tail_bytes = TAIL_BYTES if storage.capabilities.fast else SLOW_TAIL_BYTES
        self._recent: tuple[str, int, int, RowGroup | None] = ("", 0, 0, None)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Read a range of a chunk file, fewer bytes where it ends; of nothing without a request."""
        if start + length > _MOST_BYTES:
            return b""
        try:
            return self._windows.read(key, start, length) if length else b""
        except ObjectNotFoundError as error:
            raise CorruptFileError(
                f"the chunk file {key} is missing, although a manifest refers to it. Restore it from a copy, "
                f"or open an earlier snapshot.",
                key=key,
            ) from error

    def read_snapshot(self, identifier: str) -> Snapshot:
        """Read a whole structure file."""

        def load() -> tuple[Snapshot, int]:
            data = self._whole_by_tail(FileKind.STRUCTURE, identifier)
            snapshot = structure.decode(data, identifier, self.decode_limit_bytes)
            self._check_owner(snapshot.facts)
            return snapshot, 2000 + max(3 * len(data), snapshot.size_bytes)

        found: Snapshot = self._known_to_ledger(
            identifier, lambda: self.cache.get(("s", identifier), load), self.read_snapshot
        )
        return found

    def _check_owner(self, facts: SnapshotFacts) -> None:
        """Refuse a snapshot of another repository."""
        if self.repository is not None and facts.repository != self.repository:
            raise ForeignSnapshotError(
                f"the snapshot {facts.id} at {self.storage.url} belongs to the repository "
                f"{facts.repository}, and not to {self.repository}, which was opened",
                snapshot=facts.id,
            )

    def _known_to_ledger(
        self, identifier: str, read: Callable[[], A], instead: Callable[[str], A]
    ) -> A:
        """Read a structure file; one that is missing may have been retired or rewritten on purpose."""
        try:
            return read()
        except ForeignSnapshotError:
            raise
        except SnapshotNotFoundError:
            ledger = find_ledger(self.storage, self.repository, self.decode_limit_bytes)
            if ledger is None:
                raise
            if identifier in ledger.rewritten:
                return instead(ledger.rewritten[identifier])
            if identifier in ledger.retired:
                raise RetiredSnapshotError(
                    f"the snapshot {identifier} was retired: the ledger of {ledger.written_at} says so. Open "
                    f"a branch, a tag or a later snapshot",
                    snapshot=identifier,
                    parent_id=ledger.retired[identifier],
                ) from None
            raise

    def hold_snapshot(self, snapshot: Snapshot, size_bytes: int) -> None:
        """Keep a snapshot that was just written, in a file of this size, for the session that reads it next."""
        self.cache.get(("s", snapshot.id), lambda: (snapshot, 3 * size_bytes + 2000))

    def read_facts(self, identifier: str) -> SnapshotFacts:
        """Read a snapshot's facts, from the end of its structure file."""

        def load() -> tuple[SnapshotFacts, int]:
            sealed, _ = self._open(FileKind.STRUCTURE, identifier)
            facts = structure.decode_facts(sealed)
            self._check_owner(facts)
            return facts, 6000

        held: Snapshot | None = self.cache.find(("s", identifier))
        if held is not None:
            return held.facts
        found: SnapshotFacts = self._known_to_ledger(
            identifier, lambda: self.cache.get(("f", identifier), load), self.read_facts
        )
        return found

    def read_log(self, identifier: str) -> TransactionLog:
        """Read what the commit of a snapshot did."""

        def load() -> tuple[TransactionLog, int]:
            data = self._whole_by_tail(FileKind.TRANSACTION, identifier)
            decoded = transaction.decode(data, identifier, self.decode_limit_bytes)
            return decoded, 20 * len(data)

        log: TransactionLog = self.cache.get(("t", identifier), load)
        return log

    def read_attributes(self, reference: AttributesRef, node_id: int) -> bytes:
        """Read one node's attributes."""

        def load() -> tuple[pa.Table, int]:
            data = self._whole_by_tail(FileKind.ATTRIBUTES, reference.identifier)
            decoded = attributes.decode(data, reference.identifier, self.decode_limit_bytes)
            return decoded, 2000 + decoded.nbytes

        table = self.cache.get(("a", reference.identifier), load)
        return attributes.row_of(table, reference.row, node_id, reference.identifier)

    def read_manifest(self, identifier: str, *, coded: bool = False) -> pa.Table:
        """Read all rows of a manifest; ``coded`` with files as codes, where they are.

        They are not kept; but those of a small manifest that was just written are at hand.
        """
        held: pa.Table | None = self.cache.find(("w", identifier))
        if held is not None and (coded or not pa.types.is_dictionary(held["chunk_file"].type)):
            return held
        key = key_of(FileKind.MANIFEST, identifier)
        try:
            data = self.storage.get(key, limit_bytes=self.decode_limit_bytes)
        except ObjectNotFoundError as error:
            raise _missing(key, FileKind.MANIFEST, identifier) from error
        return manifest.decode(data, identifier, self.decode_limit_bytes, coded=coded)

    def hold_rows(self, identifier: str, rows: pa.Table) -> None:
        """Keep the rows of a small manifest that is written: the next commit may well put its own beside them."""
        size_bytes = rows.nbytes
        if (
            size_bytes <= _HELD_BYTES and STATISTICS.name not in rows.column_names
        ):  # a file may keep fewer
            self.cache.get(("w", identifier), lambda: (rows, size_bytes + 2000))

    def open_manifest(self, identifier: str) -> ManifestFile:
        """Read a manifest's footer."""

        def load() -> tuple[ManifestFile, int]:
            opened = self._open_manifest(identifier, self._tail_bytes)
            return opened, opened.size_bytes

        opened: ManifestFile = self.cache.get(("i", identifier), load)
        return opened

    def check_ends(self, sizes: Mapping[str, int]) -> None:
        """Check the footers of manifests, given with their bytes, for a reader that will read these past us.

        Those that were checked before are not looked at again.
        """
        ask = partial(self._check_end, sizes)
        if self.storage.capabilities.fast or len(sizes) < 2:
            for identifier in sizes:
                ask(identifier)
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(sizes))) as pool:
            for _ in pool.map(ask, sizes):
                pass

    def _check_end(self, sizes: Mapping[str, int], identifier: str) -> None:
        def load() -> tuple[int, int]:
            sealed, _ = self._open(FileKind.MANIFEST, identifier)
            return sealed.size_bytes, 200

        size_bytes: int = self.cache.get(("e", identifier), load)
        if size_bytes != sizes[identifier]:
            key = key_of(FileKind.MANIFEST, identifier)
            raise wrong_file(
                key, f"it has {size_bytes} bytes, where {sizes[identifier]} are recorded"
            )

    def holds_manifest(self, identifier: str) -> bool:
        """Whether all rows of a manifest are in the cache."""
        opened: ManifestFile | None = self.cache.find(("i", identifier))
        return opened is not None and all(
            self.cache.find(("g", identifier, group)) is not None
            for group in range(opened.sealed.row_group_count)
        )

    def _open_manifest(self, identifier: str, tail_bytes: int) -> ManifestFile:
        return ManifestFile(*self._open(FileKind.MANIFEST, identifier, tail_bytes))

    def read_rows(self, identifier: str, group: int) -> RowGroup:
        """Read one row group of a manifest."""

        def load() -> tuple[RowGroup, int]:
            opened = self.open_manifest(identifier)
            data = bytes(self._group_bytes(opened, group, group))
            rows = RowGroup(opened, group, data)
            return rows, rows.size_bytes

        rows: RowGroup = self.cache.get(("g", identifier, group), load)
        return rows

    def rows_at(self, identifier: str, row: int) -> tuple[RowGroup, int]:
        """Read the row group that a row of a manifest stands in; give the row's number within it."""
        name, start, stop, recent = self._recent
        if recent is not None and name == identifier and start <= row < stop:
            return recent, row - start
        opened = self.open_manifest(identifier)
        group = opened.group_of(row)
        rows = self.read_rows(identifier, group)
        start, stop = opened.group_starts[group : group + 2]
        self._recent = (identifier, start, stop, rows)
        return rows, row - start

    def _group_bytes(self, opened: ManifestFile, first: int, last: int) -> bytes | memoryview:
        start, stop = opened.sealed.byte_range(first, last)
        held = opened.find_bytes(start, stop)
        if held is not None:
            return held
        return self.storage.get_range(opened.sealed.key, start, stop - start)

    def scan_rows(
        self,
        identifier: str,
        array_id: int,
        first: int,
        last: int,
        *,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Read an array's rows, ``first`` to ``last`` (exclusive), past the cache, by row groups.

        A few megabytes are held at a time. Of ``columns``, which count ``array_id`` in, others are not decoded.
        """
        opened: ManifestFile | None = self.cache.find(("i", identifier))
        if opened is None:
            opened = self._open_manifest(identifier, SCAN_BYTES)
        sealed = opened.sealed
        group, final = opened.group_of(first), opened.group_of(last - 1)
        while group <= final:
            start, stop = sealed.byte_range(group, group)
            until = group
            while until < final and sealed.byte_range(group, until + 1)[1] - start <= SCAN_BYTES:
                until += 1
            data = memoryview(self._group_bytes(opened, group, until))
            for each in range(group, until + 1):
                begin, stop = sealed.byte_range(each, each)
                table = _decoded(sealed, each, data[begin - start : stop - start], columns)
                base = opened.group_starts[each]
                low, high = max(first - base, 0), min(last - base, table.num_rows)
                part = table.slice(low, high - low)
                if (to_numpy(part["array_id"]) != array_id).any():
                    raise opened.wrong(rows_not_of(array_id))
                yield part
            group = until + 1

    def _tail(self, kind: FileKind, identifier: str, length: int) -> tuple[bytes, int]:
        key = key_of(kind, identifier)
        try:
            return self.storage.get_tail(key, length)
        except ObjectNotFoundError as error:
            raise _missing(key, kind, identifier) from error

    def _open(
        self, kind: FileKind, identifier: str, tail_bytes: int = TAIL_BYTES
    ) -> tuple[Sealed, bytes]:
        """Check a file's end; give what came along too."""
        tail, size_bytes = self._tail(kind, identifier, tail_bytes)
        needs = envelope.seal_needs(tail, size_bytes, key_of(kind, identifier))
        budget = Budget(key_of(kind, identifier), self.decode_limit_bytes)
        if needs > len(tail):
            budget.check(needs)
            tail, size_bytes = self._tail(kind, identifier, needs)
            needs = envelope.seal_needs(tail, size_bytes, key_of(kind, identifier))
            if needs > len(tail):
                budget.check(needs)
                tail, size_bytes = self._tail(kind, identifier, needs)
        sealed = envelope.open_seal(tail, size_bytes, kind, identifier, self.decode_limit_bytes)
        return sealed, tail

    def _whole_by_tail(self, kind: FileKind, identifier: str) -> bytes:
        """Fetch a whole file, with one request where it is small."""
        tail, size_bytes = self._tail(kind, identifier, self._tail_bytes)
        if len(tail) == size_bytes:
            return tail
        key = key_of(kind, identifier)
        Budget(key, self.decode_limit_bytes).check(size_bytes)
        return self.storage.get_range(key, 0, size_bytes - len(tail)) + tail


def _decoded(
    sealed: Sealed, group: int, data: bytes | memoryview, columns: Sequence[str] | None
) -> pa.Table:
    if columns is None:
        return manifest.decode_rows(sealed, [group], bytes(data))
    table = envelope.read_row_groups(sealed, [group], data, columns=columns)
    for name in columns:
        field = manifest.SCHEMA.field(name)
        if name not in table.column_names or table.schema.field(name).type != field.type:
            raise wrong_file(sealed.key, f"it has no right column {name!r}")
        if table[name].null_count and not field.nullable:
            raise wrong_file(sealed.key, f"it has a row without {name!r}")
    return table


def _missing(key: str, kind: FileKind, identifier: str) -> Exception:
    if kind is FileKind.STRUCTURE:
        return SnapshotNotFoundError(
            f"there is no snapshot {identifier}: {key} does not exist. It may have been expired, or "
            f"belong to another repository.",
            snapshot=identifier,
        )
    return CorruptFileError(
        f"the {kind.label} {key} is missing, although a snapshot refers to it. Restore it from a copy, "
        f"or open an earlier snapshot.",
        key=key,
    )
