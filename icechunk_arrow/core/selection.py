"""Where along an axis a condition holds: exactly, as ranges of positions and of chunks.

Owns the meaning of a term for each kind of values. Ranges are n × 2 arrays of ``start`` and ``stop``, rising and
without touching one another; an axis without values is its positions themselves, however long it is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.core.grid import Axis
    from icechunk_arrow.core.predicates import Literal, Term

    Ranges = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["chunk_ranges", "covered", "edges_of", "matches", "positions_in", "select"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FRACTION = re.compile(r"[.,](\d+)")
_BEGINNINGS = ("", "-01", "-01-01")
_SAYS = {
    "number": "numbers: compare it with a number",
    "time": "times: compare it with a text such as '2024-01-01' or '2024-01-01 12:00:00'",
    "text": "texts: compare it with a 'text'",
    "bool": "true and false: compare it with one of them, by =, <> or in",
}


class _Span(Struct, frozen=True):
    """Values from ``low`` to ``high``; None is without a bound."""

    low: Any = None
    high: Any = None
    low_open: bool = False
    high_open: bool = False


def matches(terms: Sequence[Term], values: npt.NDArray[Any]) -> Mask:
    """Tell for each value whether all terms hold; the terms are about the one column that has the values."""
    plain, valid, kind = _prepared(terms, values)
    mask = valid.copy()
    for term in terms:
        mask &= _mask(plain, _spans(term, kind, plain.dtype))
    return mask


def select(terms: Sequence[Term], values: npt.NDArray[Any] | int) -> Ranges:
    """Find the positions of an axis at which all terms hold; values, or how many positions there are."""
    if isinstance(values, int):
        whole = np.array([[0, values]] if values else np.empty((0, 2)), np.int64)
        for term in terms:
            spans = _spans(term, "number", np.dtype(np.int64))
            whole = _intersected(whole, _united(_index_range(span, values) for span in spans))
        return whole
    if not terms:
        return select((), len(values))
    plain, valid, kind = _prepared(terms, values)
    rising = bool(valid.all()) and bool((plain[1:] >= plain[:-1]).all())
    falling = not rising and bool(valid.all()) and bool((plain[1:] <= plain[:-1]).all())
    if not (rising or falling) or (
        kind == "number" and plain.dtype.kind == "f" and _ends_in_nan(plain)
    ):
        return _runs(matches(terms, values))
    ordered = plain[::-1] if falling else plain
    ranges = select((), len(values))
    for term in terms:
        spans = _spans(term, kind, plain.dtype)
        ranges = _intersected(ranges, _united(_sorted_range(span, ordered) for span in spans))
    if falling:
        ranges = (len(values) - ranges[::-1, ::-1]).astype(np.int64)
    return ranges


def _ends_in_nan(values: npt.NDArray[Any]) -> bool:
    return len(values) > 0 and bool(np.isnan(values[0]) or np.isnan(values[-1]))


def chunk_ranges(ranges: Ranges, axis: Axis) -> Ranges:
    """Turn ranges of positions into the ranges of chunks that they touch."""
    if not len(ranges):
        return ranges
    first, last = _chunks_of(axis, ranges[:, 0]), _chunks_of(axis, ranges[:, 1] - 1)
    return _merged(np.stack([first, last + 1], axis=1))


def _runs_of(axis: Axis) -> tuple[npt.NDArray[np.int64], ...]:
    """Give of each run of equal chunks their edge, where it begins, and the number of its first chunk."""
    edges = np.array([edge for edge, _ in axis.runs], np.int64)
    counts = np.array([count for _, count in axis.runs[:-1]], np.int64)
    starts = np.concatenate([[0], np.cumsum(edges[:-1] * counts)]).astype(np.int64)
    indices = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return edges, starts, indices


def _chunks_of(axis: Axis, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Say of many positions which chunk holds each."""
    edges, starts, indices = _runs_of(axis)
    run = np.searchsorted(starts, positions, "right") - 1
    chunks: npt.NDArray[np.int64] = indices[run] + (positions - starts[run]) // edges[run]
    return chunks


def edges_of(axis: Axis, chunks: npt.NDArray[np.int64]) -> Ranges:
    """Say of many chunks from where to where each goes, cut off at the axis' end."""
    edges, starts, indices = _runs_of(axis)
    run = np.searchsorted(indices, chunks, "right") - 1
    origins = starts[run] + (chunks - indices[run]) * edges[run]
    return np.stack([origins, np.minimum(origins + edges[run], axis.extent)], axis=1)


def covered(ranges: Ranges, start: int, stop: int) -> Ranges:
    """Cut ranges to those parts that lie between two positions."""
    first = int(np.searchsorted(ranges[:, 1], start, "right"))
    last = int(np.searchsorted(ranges[:, 0], stop, "left"))
    return np.clip(ranges[first:last], start, stop)


def positions_in(ranges: Ranges) -> npt.NDArray[np.int64]:
    """List all positions of ranges."""
    lengths = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    positions: npt.NDArray[np.int64] = np.arange(total) + np.repeat(
        ranges[:, 0] - (ends - lengths), lengths
    )
    return positions


# -- values


def _prepared(
    terms: Sequence[Term], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], Mask, str]:
    """Give values in a form that compares, which of them are there, and what kind they are of."""
    everything = np.ones(len(values), np.bool_)
    kind = values.dtype.kind
    if kind == "b":
        return values.astype(np.int64), everything, "bool"
    if kind in "iu":
        return values.astype(values.dtype.newbyteorder("="), copy=False), everything, "number"
    if kind == "f":
        return values.astype(np.float64), everything, "number"
    if kind == "M":
        assert values.dtype == np.dtype("M8[us]"), "times are microseconds here"
        return values.view(np.int64), ~np.isnat(values), "time"
    if kind in "UT":
        return values, everything, "text"
    names = ", ".join(dict.fromkeys(term.column for term in terms))
    raise InvalidInputError(
        f"no condition can be put on {names}: its values are of type {values.dtype}, which has no order here"
    )


def _spans(term: Term, kind: str, dtype: np.dtype[Any]) -> list[_Span]:
    """Say which values a term lets through."""
    values = [_value(term, each, kind) for each in term.values]
    if kind == "text":
        return _ordered_spans(term.operator, values)
    if dtype.kind == "f":
        return _ordered_spans(term.operator, [float(each) for each in values])
    info = np.iinfo(dtype)
    spans = [
        span
        for value in values
        for span in _integer_spans(term.operator, Decimal(value))
        if (span.low is None or span.low <= info.max)
        and (span.high is None or span.high >= info.min)
    ]
    return [
        _Span(
            None if span.low is None or span.low <= info.min else span.low,
            None if span.high is None or span.high >= info.max else span.high,
        )
        for span in spans
    ]


def _value(term: Term, value: Literal, kind: str) -> Any:
    """Turn a literal into a value of the column's kind."""
    if kind == "bool" and isinstance(value, bool) and term.operator in {"=", "<>", "in"}:
        return int(value)
    if kind == "number" and isinstance(value, Decimal):
        return value
    if kind == "text" and isinstance(value, str):
        return value
    if kind == "time" and isinstance(value, str):
        return _microseconds(term, value)
    raise InvalidInputError(
        f"{term}: {term.column} has {_SAYS[kind]}", column=term.column, literal=value
    )


def _microseconds(term: Term, text: str) -> int:
    """Read a time as microseconds since 1970."""
    moment = None
    for beginning in _BEGINNINGS:
        try:
            moment = datetime.fromisoformat(text.strip() + beginning)
            break
        except ValueError:
            if not re.fullmatch(r"\d{4}(-\d\d)?", text.strip()):
                break
    fraction = _FRACTION.search(text)
    if moment is None or (fraction and len(fraction[1].rstrip("0")) > 6):
        raise InvalidInputError(
            f"{term}: {text!r} is no time; write it as 2024-01-31, 2024-01-31 12:00:00 or "
            f"2024-01-31T12:00:00+01:00, with at most six digits behind the seconds",
            column=term.column,
            literal=text,
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _ordered_spans(operator: str, values: list[Any]) -> list[_Span]:
    match operator:
        case "<":
            return [_Span(None, values[0], high_open=True)]
        case "<=":
            return [_Span(None, values[0])]
        case ">":
            return [_Span(values[0], None, low_open=True)]
        case ">=":
            return [_Span(values[0], None)]
        case "<>":
            return [_Span(None, values[0], high_open=True), _Span(values[0], None, low_open=True)]
    return [_Span(value, value) for value in sorted(set(values))]


def _integer_spans(operator: str, value: Decimal) -> list[_Span]:
    """Bounds between whole numbers become the next ones inside."""
    floor, ceiling = (int(value.to_integral_value(each)) for each in (ROUND_FLOOR, ROUND_CEILING))
    match operator:
        case "<":
            return [_Span(None, ceiling - 1)]
        case "<=":
            return [_Span(None, floor)]
        case ">":
            return [_Span(floor + 1, None)]
        case ">=":
            return [_Span(ceiling, None)]
        case "<>":
            return [_Span(None, ceiling - 1), _Span(floor + 1, None)]
    return [_Span(floor, floor)] if floor == ceiling else []


def _mask(values: npt.NDArray[Any], spans: list[_Span]) -> Mask:
    mask = np.zeros(len(values), np.bool_)
    points = [span.low for span in spans if span.low is not None and span.low == span.high]
    if len(points) == len(spans) > 3:
        if values.dtype.kind in "UT":
            known = set(points)
            return np.fromiter((each in known for each in values.tolist()), np.bool_, len(values))
        return np.isin(values, np.array(points, values.dtype))
    for span in spans:
        inside = np.ones(len(values), np.bool_)
        if span.low is not None:
            inside &= values > span.low if span.low_open else values >= span.low
        if span.high is not None:
            inside &= values < span.high if span.high_open else values <= span.high
        elif values.dtype.kind == "f":
            inside |= np.isnan(values)
        mask |= inside
    return mask


# -- ranges


def _index_range(span: _Span, count: int) -> tuple[int, int]:
    low = 0 if span.low is None else max(span.low, 0)
    high = count if span.high is None else min(span.high + 1, count)
    return low, high


def _sorted_range(span: _Span, values: npt.NDArray[Any]) -> tuple[int, int]:
    low, high = 0, len(values)
    if span.low is not None:
        low = int(
            np.searchsorted(values, _like(values, span.low), "right" if span.low_open else "left")
        )
    if span.high is not None:
        high = int(
            np.searchsorted(values, _like(values, span.high), "left" if span.high_open else "right")
        )
    return low, high


def _like(values: npt.NDArray[Any], value: Any) -> Any:
    """Keep a number in the type of those that it is looked for among: others are all converted."""
    return values.dtype.type(value) if values.dtype.kind in "iuf" else value


def _united(ranges: Any) -> Ranges:
    pairs = sorted((low, high) for low, high in ranges if low < high)
    return _merged(np.array(pairs, np.int64).reshape(-1, 2))


def _merged(ranges: Ranges) -> Ranges:
    """Join rising ranges that overlap or touch."""
    if len(ranges) < 2:
        return ranges
    reach = np.maximum.accumulate(ranges[:, 1])
    apart = np.concatenate([[True], ranges[1:, 0] > reach[:-1]])
    firsts = np.flatnonzero(apart)
    lasts = np.concatenate([firsts[1:] - 1, [len(ranges) - 1]])
    return np.stack([ranges[firsts, 0], reach[lasts]], axis=1)


def _intersected(one: Ranges, other: Ranges) -> Ranges:
    """Keep what lies in both: every range of one is cut by those of the other that it meets."""
    first = np.searchsorted(other[:, 1], one[:, 0], "right")
    last = np.searchsorted(other[:, 0], one[:, 1], "left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(one)), counts)
    ends = np.cumsum(counts)
    theirs = np.arange(len(mine)) + np.repeat(first - (ends - counts), counts)
    return np.stack(
        [
            np.maximum(one[mine, 0], other[theirs, 0]),
            np.minimum(one[mine, 1], other[theirs, 1]),
        ],
        axis=1,
    )


def _runs(mask: Mask) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64)
