"""Units of time of the CF conventions, as far as values counted in one are to be counted in another.

Owns parsing of ``hours since 2000-01-01 06:00``. Calendars whose years are not ours are compared, not converted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Shift", "shift_between"]

_UNITS = re.compile(
    r"\s*(?P<unit>[a-z]+)\s+since\s+(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T\s]\s*(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<rest>\d{1,9}))?)?)?)?"
    r"\s*(?:Z|UTC|GMT|[+-]00:?00)?\s*",
    re.IGNORECASE,
)
_SECONDS = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_SHORT = {"d": "day", "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second"}
_GREGORIAN = {"standard", "gregorian", "proleptic_gregorian", ""}
_FIRST_GREGORIAN_YEAR = 1583
_FLOAT_SECONDS = 1e-3
"""So much may rounding move a time that is a float: 32 bits hold the seconds of a day to 4 ms, of a year to 2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What is to be done to values: ``(value × multiplier + addend) ÷ divisor``, in seconds before the division."""

    multiplier: int
    addend: int
    divisor: int

    def apply(self, values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Convert values; None where integers would not stay whole, or floats be off by a millisecond."""
        if values.dtype.kind == "f":
            exact = values.astype(np.float64) * self.multiplier + self.addend
            with np.errstate(over="ignore", invalid="ignore"):
                found = (exact / self.divisor).astype(values.dtype)
                off = np.abs(found.astype(np.float64) * self.divisor - exact)
            return None if (off > _FLOAT_SECONDS).any() else found
        most = int(max(abs(int(values.max())), abs(int(values.min())))) if values.size else 0
        if most * self.multiplier + abs(self.addend) >= 2**63:
            return None
        raw = values.astype(np.int64) * self.multiplier + self.addend
        quotient, rest = np.divmod(raw, self.divisor)
        if rest.any():
            return None
        narrow = quotient.astype(values.dtype)
        return narrow if (narrow == quotient).all() else None


def shift_between(units: str, wanted: str, calendar: str) -> Shift | None:
    """Say how values counted in ``units`` become those counted in ``wanted``; None if they cannot."""
    own, other = _parse(units), _parse(wanted)
    if own is None or other is None or calendar.lower() not in _GREGORIAN:
        return None
    (seconds, start), (wanted_seconds, wanted_start) = own, other
    apart = int((start - wanted_start) / np.timedelta64(1, "s"))
    return Shift(multiplier=seconds, addend=apart, divisor=wanted_seconds)


def _parse(units: str) -> tuple[int, np.datetime64] | None:
    """Take apart a unit: its seconds and its beginning."""
    match = _UNITS.fullmatch(units)
    if match is None or int(match["rest"] or 0):
        return None
    name = match["unit"].lower()
    name = _SHORT.get(name, name.removesuffix("s") if len(name) > 1 else name)
    name = _SHORT.get(name, name)
    year, month, day = (int(match[part]) for part in ("year", "month", "day"))
    if name not in _SECONDS or year < _FIRST_GREGORIAN_YEAR:
        return None
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    try:
        start = np.datetime64(
            f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", "s"
        )
    except ValueError as error:
        raise InvalidInputError(f"the units {units!r} begin at a time that there is not") from error
    return _SECONDS[name], start
