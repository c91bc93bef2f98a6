"""What one file may take in memory while it is decoded: a limit of the caller that opens it, never of the file."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from icechunk_arrow.core.json_values import json_bytes
from icechunk_arrow.errors import OversizedFileError

__all__ = ["DECODE_LIMIT_BYTES", "Budget"]

DECODE_LIMIT_BYTES = 384 << 20
"""So much one file may take, unless the caller that opens it says otherwise: four million references do."""
_LARGEST_VALUE = 200
"""No byte of JSON takes more."""


class Budget(NamedTuple):
    """What the file of a key may take."""

    key: str
    limit_bytes: int = DECODE_LIMIT_BYTES

    def check(self, size_bytes: int) -> None:
        """Refuse what would take more."""
        if size_bytes > self.limit_bytes:
            self.refuse(size_bytes)

    def check_json(self, data: bytes) -> None:
        """Refuse JSON whose values would take more."""
        if _LARGEST_VALUE * len(data) > self.limit_bytes:
            self.check(json_bytes(data))

    def refuse(self, size_bytes: int) -> NoReturn:
        """Say that a file would take too much."""
        raise OversizedFileError.of(
            self.key, f"may take {size_bytes} bytes of memory", self.limit_bytes
        )
