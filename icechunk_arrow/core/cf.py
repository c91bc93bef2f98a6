"""The CF conventions: attributes that decide which values stored numbers stand for, the values, and times.

Owns the one list of such attributes, and decoding as xarray decodes: missing values, signs, scale and offset.

Times are numbers with units such as ``hours since 1900-01-01``. Which units and calendars name moments exactly
stands here once, and how numbers that count in one unit are counted in another. Calendars of models, which have
days that there never were, are not among them, nor are months and years, which have no fixed length.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

__all__ = [
    "DECIDING",
    "PACKING",
    "Shift",
    "TimeUnits",
    "decode_times",
    "decode_values",
    "decoded_dtype",
    "find_time_units",
    "missing_values",
    "packed_by",
    "shift_between",
    "to_microseconds",
]

_NANOSECONDS = {
    1: ("nanosecond", "nanoseconds", "nsec", "nsecs", "ns"),
    1_000: ("microsecond", "microseconds", "microsec", "microsecs", "us"),
    1_000_000: ("millisecond", "milliseconds", "millisec", "millisecs", "msec", "msecs", "ms"),
    1_000_000_000: ("second", "seconds", "sec", "secs", "s"),
    60_000_000_000: ("minute", "minutes", "min", "mins"),
    3_600_000_000_000: ("hour", "hours", "hr", "hrs", "h"),
    86_400_000_000_000: ("day", "days", "d"),
    604_800_000_000_000: ("week", "weeks"),
}
_UNITS = {name: length for length, names in _NANOSECONDS.items() for name in names}
_SINCE = re.compile(
    r"\s*(?P<unit>[a-z]+)\s+since\s+"
    r"(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:(?:t|\s+|\s*t\s*)(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})"
    r"(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?:z|utc|gmt|(?P<sign>[+-])(?P<zone_hour>\d{1,2})(?::?(?P<zone_minute>\d{2}))?)?\s*",
    re.IGNORECASE | re.ASCII,
)
_MIXED = {None, "standard", "gregorian"}
_PROLEPTIC = "proleptic_gregorian"
_REFORM = (1582, 10, 15)
_LAST_JULIAN = (1582, 10, 4)
_EPOCH_DAY = 2_440_588
"""The Julian day number of 1970-01-01."""
_DAY = 86_400_000_000
_MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FLOAT_SECONDS = 1e-3
"""So much may rounding move a time that is a float: 32 bits hold the seconds of a day to 4 ms, of a year to 2 s."""
PACKING = frozenset(
    {
        "_FillValue",
        "_Unsigned",
        "add_offset",
        "missing_value",
        "scale_factor",
        "valid_max",
        "valid_min",
        "valid_range",
    }
)
"""What becomes superfluous where decoded values are stored: they say how numbers were packed into a type."""
DECIDING = PACKING | {"_Encoding", "calendar", "dtype", "units"}
"""Attributes without which, or with others of which, stored numbers mean other values."""


class TimeUnits(Struct, frozen=True, kw_only=True):
    """How numbers count time."""

    nanoseconds: int
    """The length of one."""
    zero: int
    """The moment of number 0, in microseconds since 1970, UTC."""
    is_exact: bool = True
    """Whether that is the moment that is said; False where it is said more finely."""


class Shift(Struct, frozen=True, kw_only=True):
    """How numbers that count in one unit are counted in another: ``(number × multiplier + addend) ÷ divisor``."""

    multiplier: int
    addend: int
    divisor: int
    seconds: float
    """What one is before the division."""

    def apply(self, values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Convert values; None where integers would not stay whole, or floats be off by a millisecond."""
        if values.dtype.kind == "f":
            exact = values.astype(np.float64) * self.multiplier + self.addend
            with np.errstate(over="ignore", invalid="ignore"):
                converted = (exact / self.divisor).astype(values.dtype)
                off = np.abs(converted.astype(np.float64) * self.divisor - exact) * self.seconds
            return None if (off > _FLOAT_SECONDS).any() else converted
        most = int(max(abs(int(values.max())), abs(int(values.min())))) if values.size else 0
        if most * self.multiplier + abs(self.addend) >= 2**63:
            return None
        raw = values.astype(np.int64) * self.multiplier + self.addend
        quotient, rest = np.divmod(raw, self.divisor)
        if rest.any():
            return None
        narrow = quotient.astype(values.dtype)
        return narrow if (narrow == quotient).all() else None


def find_time_units(units: object, calendar: object) -> TimeUnits | None:
    """Read the attributes ``units`` and ``calendar``; None where they are not of times that were."""
    name = calendar.lower() if isinstance(calendar, str) else calendar
    if not isinstance(units, str) or not (name == _PROLEPTIC or name in _MIXED):
        return None
    match = _SINCE.fullmatch(units)
    if match is None or match["unit"].lower() not in _UNITS:
        return None
    date = (int(match["year"]), int(match["month"]), int(match["day"]))
    day = _day_number(date, mixed=name != _PROLEPTIC)
    clock = [int(match[each] or 0) for each in ("hour", "minute")]
    second = Decimal(match["second"] or 0)
    if day is None or clock[0] > 24 or clock[1] > 59 or second >= 60:
        return None
    zero = (day - _EPOCH_DAY) * _DAY + (clock[0] * 60 + clock[1]) * 60_000_000
    micros = second * 1_000_000
    zero += int(micros)
    if match["sign"]:
        minutes = int(match["zone_hour"]) * 60 + int(match["zone_minute"] or 0)
        zero -= (-minutes if match["sign"] == "-" else minutes) * 60_000_000
    return TimeUnits(
        nanoseconds=_UNITS[match["unit"].lower()], zero=zero, is_exact=micros == int(micros)
    )


def shift_between(units: object, wanted: object, calendar: object) -> Shift | None:
    """Say how values counted in ``units`` become those counted in ``wanted``; None if they cannot."""
    own, other = (find_time_units(each, calendar or None) for each in (units, wanted))
    if own is None or other is None or not (own.is_exact and other.is_exact):
        return None
    apart = (own.zero - other.zero) * 1000
    step = math.gcd(own.nanoseconds, other.nanoseconds, apart)  # numbers stay as small as they can
    return Shift(
        multiplier=own.nanoseconds // step,
        addend=apart // step,
        divisor=other.nanoseconds // step,
        seconds=step / 1e9,
    )


def _day_number(date: tuple[int, int, int], *, mixed: bool) -> int | None:
    """Give the Julian day number of a date; None for a day that there is not."""
    year, month, day = date
    julian = mixed and date < _REFORM
    leap = year % 4 == 0 and (julian or year % 100 != 0 or year % 400 == 0)
    if year < 1 or not 1 <= month <= 12 or (julian and date > _LAST_JULIAN):
        return None
    if not 1 <= day <= _MONTH_LENGTHS[month - 1] + (leap and month == 2):
        return None
    early = (14 - month) // 12
    years, months = year + 4800 - early, month + 12 * early - 3
    number = day + (153 * months + 2) // 5 + 365 * years + years // 4
    return number - 32083 if julian else number - years // 100 + years // 400 - 32045


def decode_times(values: npt.NDArray[Any], units: TimeUnits, name: str) -> npt.NDArray[Any]:
    """Turn numbers into times of microseconds; NaN into none.

    Fractions of a microsecond are rounded off a float, and cut off a whole number of nanoseconds.
    """
    if values.dtype.kind in "iu":
        whole, valid = values, np.ones(values.shape, np.bool_)
        rest = np.zeros(values.shape, np.int64)
    else:
        numbers = values.astype(np.float64)
        valid = np.isfinite(numbers)
        if np.isinf(numbers).any():
            raise _beyond(name)
        filled = np.where(valid, numbers, 0.0)
        whole = np.floor(filled)
        rest = np.rint((filled - whole) * (units.nanoseconds / 1000)).astype(np.int64)
    if valid.any():
        there = whole[valid]
        for edge in (int(there.min()), int(there.max())):
            moment = units.zero + edge * units.nanoseconds // 1000
            if not -(2**63) + 2 * _DAY < moment < 2**63 - 604_800_000_000:
                raise _beyond(name)
    counted = whole.astype(np.int64)
    if units.nanoseconds % 1000:
        moments = counted // (1000 // units.nanoseconds)
    else:
        moments = counted * (units.nanoseconds // 1000)
    moments = moments + rest + units.zero
    times = moments.view("M8[us]") if moments.shape else moments.astype("M8[us]")
    return np.where(valid, times, np.datetime64("NaT", "us"))


def to_microseconds(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Bring times or spans of any unit to microseconds, which are what Spark has; finer parts are cut off."""
    letter = values.dtype.kind
    unit, count = np.datetime_data(values.dtype)
    if unit == "generic" or (letter == "m" and unit in {"Y", "M"}):
        raise InvalidInputError(f"{name} counts time in {unit!r}, which has no fixed length")
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    try:
        micros = native.astype(f"{letter}8[us]")
    except OverflowError as error:
        raise _beyond(name) from error
    # older versions of numpy wrap around in silence
    if (micros.astype(f"{letter}8[{count}{unit}]") != native)[
        ~np.isnat(native)
    ].any() and unit not in {
        "ns",
        "ps",
        "fs",
        "as",
    }:
        raise _beyond(name)
    return micros


def _beyond(name: str) -> InvalidInputError:
    return InvalidInputError(f"{name} has times beyond what 64 bits of microseconds hold")


def packed_by(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> list[str]:
    """Give the attributes by which a number stands for another one."""
    packing = {"scale_factor", "add_offset"} & attributes.keys()
    if _signed(dtype, attributes) != dtype:
        packing.add("_Unsigned")
    return sorted(packing)


def missing_values(attributes: Mapping[str, Any]) -> list[Any]:
    """Give the stored numbers that stand for no value; NaN does so by itself."""
    numbers: list[Any] = []
    for name in ("missing_value", "_FillValue"):
        if name in attributes:
            numbers += [each for each in _numbers(attributes[name]) if each == each]  # noqa: PLR0124
    return numbers


def decoded_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Give the type that numbers of a type have once they are decoded.

    Parameters
    ----------
    dtype
        Of integers or floats.
    attributes
        As the file has them: of what type scale and offset are decides.
    """
    signed = _signed(dtype.newbyteorder("="), attributes)
    if {"scale_factor", "add_offset"} & attributes.keys():
        return _float_dtype(signed, attributes)
    if not missing_values(attributes) or signed.kind not in "iu":
        return signed
    return np.dtype(np.float32 if signed.itemsize <= 2 else np.float64)


def decode_values(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Decode stored numbers as xarray does: no value is NaN, then the scale, then the offset."""
    target = decoded_dtype(values.dtype, attributes)
    stored = values.astype(values.dtype.newbyteorder("="), copy=False)
    signed = _signed(stored.dtype, attributes)
    decoded = stored.astype(signed).astype(target)
    for each in missing_values(attributes):
        # compared as xarray does: in the type that has been decoded to, where whole numbers may be rounded
        decoded[decoded == _in_type(each, stored.dtype, signed)] = np.nan
    for name, apply in (("scale_factor", np.multiply), ("add_offset", np.add)):
        if name in attributes:
            apply(decoded, _number(attributes[name]), out=decoded)
    return decoded


def _signed(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Take ``_Unsigned`` into account, which formats without unsigned types have."""
    attribute = attributes.get("_Unsigned")
    word = attribute.decode() if isinstance(attribute, bytes) else attribute
    if (dtype.kind, word) == ("i", "true"):
        return np.dtype(f"u{dtype.itemsize}")
    if (dtype.kind, word) == ("u", "false"):
        return np.dtype(f"i{dtype.itemsize}")
    return dtype


def _in_type(value: Any, stored: np.dtype[Any], signed: np.dtype[Any]) -> Any:
    """Say a missing value, which is one of the stored type, in the type that is meant."""
    if stored == signed:
        return value
    return np.array(value).astype(stored).astype(signed)[()]


def _float_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    scale, offset = (
        None if name not in attributes else np.asarray(_number(attributes[name])).dtype
        for name in ("scale_factor", "add_offset")
    )
    if scale is not None and scale == offset and scale in (np.float32, np.float64):
        whole = dtype.kind in "iu" and dtype.itemsize == 4
        return np.dtype(np.float64) if whole else scale
    if offset is not None or scale is None or scale.kind != "f":
        return np.dtype(np.float64)
    return scale


def _number(value: Any) -> Any:
    return next(iter(_numbers(value)))


def _numbers(value: Any) -> Iterable[Any]:
    """Give an attribute's numbers, in their type."""
    return np.atleast_1d(np.asarray(value)).ravel()
