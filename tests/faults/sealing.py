"""Sealing altered files again, from the specification alone: for tests of sound but strange files.

Owns a second implementation of the block before the footer; must not use the package's own.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["altered_footer", "sealed"]

_FIXED = struct.Struct("<8s20sII")
_DIGEST_BYTES = 32
_ENTRY_BYTES = 12


def altered_footer(data: bytes, alter: Callable[[bytes], bytes]) -> bytes:
    """Change a file's Parquet footer, and make its lengths and its digest right again."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    seal_at = len(data) - 8 - length - _DIGEST_BYTES - _FIXED.size
    magic, name, count, _ = _FIXED.unpack_from(data, seal_at)
    entries_at = seal_at - _ENTRY_BYTES * count
    entries = data[entries_at:seal_at]
    changed = alter(footer)
    ending = changed + len(changed).to_bytes(4, "little") + b"PAR1"
    fixed = _FIXED.pack(magic, name, count, len(changed))
    digest = hashlib.sha256(entries + fixed + ending).digest()
    return data[:entries_at] + entries + fixed + digest + ending


def sealed(parquet: bytes, identifier: str, ends: list[int]) -> bytes:
    """Put the seal into a Parquet file whose row groups end there."""
    length = int.from_bytes(parquet[-8:-4], "little")
    at = len(parquet) - 8 - length
    starts = [4, *ends]
    entries = b"".join(
        struct.pack("<QI", end, google_crc32c.value(parquet[start:end]))
        for start, end in zip(starts, ends, strict=False)
    )
    fixed = _FIXED.pack(b"ICASEAL\x01", identifier.encode(), len(ends), length)
    digest = hashlib.sha256(entries + fixed + parquet[at:]).digest()
    return parquet[:at] + entries + fixed + digest + parquet[at:]
