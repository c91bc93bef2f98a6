"""Reading the ledger: what became of snapshots that are not there any more.

Specification: schemas/README.md#ledger

It is asked only where a structure file is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.engine.sequences import FileSequence
from icechunk_arrow.errors import CorruptFileError, ObjectNotFoundError
from icechunk_arrow.formats import ledger as ledger_format
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.layout import LEDGER_FOLDER, FileKind, key_of, ledger_key
from icechunk_arrow.formats.refs import MOST_BYTES

if TYPE_CHECKING:
    from icechunk_arrow.formats.ledger import Ledger
    from icechunk_arrow.storage.port import Storage

__all__ = ["find_ledger"]


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
    found = ledger_format.decode(data, entry.log)
    if repository is not None and found.repository != repository:
        raise CorruptFileError(f"{log} is the ledger of another repository", key=log)
    return found
