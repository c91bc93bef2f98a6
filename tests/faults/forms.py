"""Ways to put one file of a victim into another form, sealed rightly.

Owns rewriting by columns, which Arrow writes, and by sheets, which have any columns in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow import Repository
from icechunk_arrow.formats.layout import FileKind
from tests.faults.bombs import old, write
from tests.fuzzing.sheets import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.faults.hostile import Victim

__all__ = [
    "Columns",
    "alter_sheet",
    "columns_of",
    "look_up",
    "overwrite",
    "with_log",
    "with_manifest",
]

Columns = dict[str, pa.Array]


def columns_of(table: pa.Table) -> Columns:
    return {name: table[name].combine_chunks() for name in table.column_names}


def with_manifest(victim: Victim, alter: Callable[[Columns], Mapping[str, pa.Array]]) -> None:
    """Put the manifest's columns in another form."""
    _altered(victim, FileKind.MANIFEST, victim.manifest, alter, write_statistics=True)


def with_log(victim: Victim, alter: Callable[[Columns], Mapping[str, pa.Array]]) -> None:
    """Put the columns of the commit's log in another form."""
    _altered(victim, FileKind.TRANSACTION, victim.snapshot_id, alter)


def _altered(
    victim: Victim,
    kind: FileKind,
    name: str,
    alter: Callable[[Columns], Mapping[str, pa.Array]],
    **words: Any,
) -> None:
    table, facts = old(victim, kind, name)
    write(victim, kind, name, alter(columns_of(table)), facts, use_dictionary=False, **words)


def look_up(victim: Victim, path: str, index: int) -> object:
    session = Repository.open(victim.root).readonly_session("main")
    return session.find_chunk(session.get_array(path), (index,))


def overwrite(victim: Victim) -> None:
    """Commit another chunk over one of the manifest, which is written anew without it."""
    session = Repository.open(victim.root).writable_session("main")
    session.write_chunk("/b", (0,), b"new")
    session.commit("over the old")


def alter_sheet(victim: Victim, key: str, alter: Callable[[Sheet], object]) -> None:
    """Put a file into another form."""
    sheet = Sheet.of((victim.root / key).read_bytes(), key[2:-8], ())
    alter(sheet)
    victim.write(key, sheet.write())
