"""Conditions: what they say, what they refuse, and where along an axis they hold."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.grid import Axis
from icechunk_arrow.core.predicates import Predicate, Term, parse_predicate
from icechunk_arrow.core.selection import (
    chunk_ranges,
    covered,
    edges_of,
    matches,
    positions_in,
    select,
)
from icechunk_arrow.errors import InvalidInputError

SIGNS = ("=", "<>", "<", "<=", ">", ">=")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DTYPES = ("i1", "u1", "i4", ">i2", "u8", "i8", "f2", "f4", "f8", "bool", "M8[us]", "U", "T")


def term(column: str, operator: str, *values: Any) -> Term:
    return Term(column=column, operator=operator, values=values)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("x = 1", [term("x", "=", Decimal(1))]),
        ("x==-1.5e3", [term("x", "=", Decimal("-1.5e3"))]),
        ("x<.5", [term("x", "<", Decimal("0.5"))]),
        ("3 <= x AND x != 4", [term("x", ">=", Decimal(3)), term("x", "<>", Decimal(4))]),
        ("x>-5and y<+2", None),
        (
            "lat Between -10 and 20 and `a b`` c` = 'it''s'",
            [
                term("lat", ">=", Decimal(-10)),
                term("lat", "<=", Decimal(20)),
                term("a b` c", "=", "it's"),
            ],
        ),
        ('"and" in (1, 2,3)', [term("and", "in", Decimal(1), Decimal(2), Decimal(3))]),
        ("(ok = true) and (größe <> false)", [term("ok", "=", True), term("größe", "<>", False)]),
        ("true = ok", [term("ok", "=", True)]),
        ("time >= '2024-01-01' and\n\ttime < '2025'", None),
    ],
)
def test_conditions_are_read(text: str, terms: list[Term] | None) -> None:
    """Names, quotes, literals and signs come out as terms; a term written down is read as itself."""
    if terms is None and "and y" in text:
        with pytest.raises(InvalidInputError, match="5and"):
            parse_predicate(text)
        return
    found = parse_predicate(text)

    assert terms is None or found == Predicate(terms=tuple(terms))
    assert parse_predicate(str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("text", "token", "position", "advice"),
    [
        ("", "", 0, "the name of a dimension"),
        ("x", "", 1, "between or in"),
        ("x = ", "", 4, "a number"),
        ("x = 1 or y = 2", "or", 6, "use in"),
        ("not x = 1", "not", 0, "the name of a dimension"),
        ("x is null", "is", 2, "a comparison"),
        ("x = null", "null", 4, "nothing compares with null"),
        ("x = y", "y", 4, "a number"),
        ("x + 1 = 2", "+", 2, "a comparison"),
        ("abs(x) = 1", "(", 3, "no functions"),
        ("1 = abs(x)", "(", 7, "no functions"),
        ("x = 1; drop table t", ";", 5, "'and'"),
        ("x = 1 -- and", "-", 6, "'and'"),
        ("x in ()", ")", 6, "a number"),
        ("x in 1", "1", 5, "'(' and a list"),
        ("x in (1", "", 7, "',' or ')'"),
        ("x between 1 or 2", "or", 12, "'and' and the upper bound"),
        ("(x = 1", "", 6, "'and' or ')'"),
        ("x = 'open", "'open", 4, "a quote is not closed"),
        ("x = 1e999999999", "1e999999999", 4, "1e308"),
        ("x = 1e-9999999999999999999999", "1e-9999999999999999999999", 4, "1e308"),
        ("x like 'a%'", "like", 2, "a comparison"),
        ("1 < x < 2", "<", 6, "'and'"),
        ("x = 1 y = 2", "y", 6, "'and'"),
        ("(" * 200 + "x = 1" + ")" * 200, "(", 100, "fewer brackets"),
    ],
)
def test_what_the_language_has_not_is_refused(
    text: str, token: str, position: int, advice: str
) -> None:
    """The error names the token, where it stands, and what may stand there."""
    with pytest.raises(InvalidInputError) as refused:
        parse_predicate(text)

    assert (refused.value.token, refused.value.position) == (token, position)  # type: ignore[attr-defined]
    assert advice in str(refused.value)
    assert f"at {position + 1}" in str(refused.value)


@given(st.text("xy=<>!'\"`()., 0123456789eE+-\nandorin", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but our own error comes out of a text, and what is read can be written."""
    try:
        found = parse_predicate(text)
    except InvalidInputError as refused:
        if not 0 <= refused.position <= len(text):  # type: ignore[attr-defined]
            pytest.fail(str(refused))
        return
    assert parse_predicate(str(found)) == found


# -- where terms hold


def axis_values(draw: st.DrawFn, dtype: str) -> np.ndarray[Any, Any]:
    small = st.integers(-3, 3)
    match np.dtype(dtype).kind:
        case "b":
            items: st.SearchStrategy[Any] = st.booleans()
        case "i":
            info = np.iinfo(dtype)
            items = small | st.sampled_from([info.min, info.max])
        case "u":
            items = st.integers(0, 5) | st.just(int(np.iinfo(dtype).max))
        case "f":
            width = 8 * np.dtype(dtype).itemsize
            items = small.map(float) | st.floats(width=width)  # type: ignore[arg-type]
        case "M":
            items = st.integers(-3, 3).map(lambda day: day * 86_400_000_000) | st.just(-(2**63))
        case _:
            items = st.text("aßb ", max_size=2)
    found = draw(st.lists(items, max_size=8))
    array = np.array(found, "i8" if dtype.startswith("M8") else dtype if found else "i8")
    array = array.view("M8[us]") if dtype.startswith("M8") else array.astype(dtype)
    order = draw(st.sampled_from(["as it is", "rising", "falling"]))
    if order != "as it is":
        array = np.sort(array)
    return array[::-1] if order == "falling" else array


def literals(dtype: str) -> st.SearchStrategy[Any]:
    match np.dtype(dtype).kind:
        case "b":
            return st.booleans()
        case "M":
            days = st.integers(-3, 3)
            return days.map(lambda day: (EPOCH + timedelta(days=day)).isoformat(" "))
        case "U" | "T":
            return st.text("aßb '", max_size=2)
    numbers = st.sampled_from(["-2.5", "-1", "0", "1e0", "2.0", "300", "-1e30", "65504", "1e-400"])
    info = [np.iinfo(dtype).max, np.iinfo(dtype).min] if np.dtype(dtype).kind in "iu" else [7]
    return numbers.map(Decimal) | st.sampled_from(info).map(Decimal)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Term], np.ndarray[Any, Any]]:
    dtype = draw(st.sampled_from(DTYPES))
    values = axis_values(draw, dtype)
    signs = ("=", "<>") if dtype == "bool" else SIGNS
    terms = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            terms.append(term("x", draw(st.sampled_from(signs)), draw(literals(dtype))))
        else:
            many = draw(st.lists(literals(dtype), min_size=1, max_size=6))
            terms.append(term("x", "in", *many))
    return terms, values


def naive(value: Any, each: Term) -> bool:
    """What one term says of one value, in Python's own exact numbers, with NaN above all of them."""
    others: list[Any] = list(each.values)
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return False
        value = int(value.astype("i8"))
        others = [(datetime.fromisoformat(o) - EPOCH) // timedelta(microseconds=1) for o in others]
    elif isinstance(value, np.floating):
        if np.isnan(value):
            return each.operator in {"<>", ">", ">="}
        value, others = float(value), [float(o) for o in others]
    elif isinstance(value, np.integer):
        value, others = Fraction(int(value)), [Fraction(o) for o in others]
    elif isinstance(value, np.bool_):
        value = bool(value)
    other = others[0]
    match each.operator:
        case "=":
            return bool(value == other)
        case "<>":
            return bool(value != other)
        case "<":
            return bool(value < other)
        case "<=":
            return bool(value <= other)
        case ">":
            return bool(value > other)
        case ">=":
            return bool(value >= other)
    return value in others


@given(questions())
def test_terms_hold_where_they_do_one_by_one(
    question: tuple[list[Term], np.ndarray[Any, Any]],
) -> None:
    """Masks and ranges say what looking at each value by itself says, whatever the order and type."""
    terms, values = question
    expected = [all(naive(value, each) for each in terms) for value in values]

    assert matches(terms, values).tolist() == expected
    ranges = select(terms, values)
    assert positions_in(ranges).tolist() == np.flatnonzero(expected).tolist()
    assert (ranges[:, 0] < ranges[:, 1]).all()
    assert (ranges[1:, 0] > ranges[:-1, 1]).all()


@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(st.sampled_from(SIGNS), st.sampled_from(["-1", "0", "2.5", "4", "11", "1e30"])),
        max_size=3,
    ),
)
def test_an_axis_without_values_is_its_positions(length: int, asked: list[tuple[str, str]]) -> None:
    """Numbers of positions are selected as if they stood in an array."""
    terms = [term("x", sign, Decimal(value)) for sign, value in asked]

    assert select(terms, length).tolist() == select(terms, np.arange(length)).tolist()


def test_an_axis_without_values_may_be_long() -> None:
    """Nothing is made for every position."""
    terms = parse_predicate("x >= 5 and x <> 2e17 and x < 1e18").terms

    assert select(terms, 2**62).tolist() == [[5, 2 * 10**17], [2 * 10**17 + 1, 10**18]]


@pytest.mark.parametrize(
    ("text", "values", "says"),
    [
        ("x = 'a'", np.arange(3), "compare it with a number"),
        ("x = true", np.arange(3.0), "compare it with a number"),
        ("x = 1", np.array(["a"]), "compare it with a 'text'"),
        ("x < true", np.array([True]), "by =, <> or in"),
        ("x = 5", np.array([0], "M8[us]"), "compare it with a text such as"),
        ("x = 'monday'", np.array([0], "M8[us]"), "is no time"),
        ("x = '2024-01-01 00:00:00.1234567'", np.array([0], "M8[us]"), "at most six digits"),
        ("x = 1", np.array([1j]), "no order"),
        ("x = '1'", np.array([b"1"]), "no order"),
    ],
)
def test_values_of_another_kind_are_refused(
    text: str, values: np.ndarray[Any, Any], says: str
) -> None:
    """Nothing is converted in silence; the error says what to compare with."""
    with pytest.raises(InvalidInputError, match=says):
        select(parse_predicate(text).terms, values)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("x >= '2024'", 3),
        ("x >= '2024-01'", 3),
        ("x = '2024-01-01'", 1),
        ("x = '2024-01-01T01:00:00+01:00'", 1),
        ("x = '2024-01-01 06:00:00.500000000'", 1),
        ("x in ('2024-01-01', '2024-01-02T00:00Z')", 2),
    ],
)
def test_times_are_written_in_many_ways(text: str, count: int) -> None:
    """Without a zone they are in UTC; a year or month is its beginning."""
    values = np.array(["2024-01-01", "2024-01-01T06:00:00.5", "2024-01-02", "NaT"], "M8[us]")

    assert matches(parse_predicate(text).terms, values).sum() == count


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    edges = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    if draw(st.booleans()):
        return Axis(extent=draw(st.integers(0, 30)), runs=((edges[0], None),))
    runs: list[tuple[int, int | None]] = [(edges[0], 1)]
    for edge in edges[1:]:
        last, count = runs[-1]
        assert count is not None
        runs[-1:] = [(last, count + 1)] if edge == last else [(last, count), (edge, 1)]
    return Axis(extent=draw(st.integers(0, sum(edges))), runs=tuple(runs))


@given(axes(), st.data())
def test_chunks_of_ranges_are_those_that_hold_them(axis: Axis, data: st.DataObject) -> None:
    """Each selected position's chunk is read, and no other."""
    mask = data.draw(st.lists(st.booleans(), min_size=axis.extent, max_size=axis.extent))
    values = np.array(mask, np.bool_)
    ranges = select(parse_predicate("x = true").terms, values)
    expected = sorted({axis.chunk_of(place) for place in np.flatnonzero(values).tolist()})

    assert positions_in(chunk_ranges(ranges, axis)).tolist() == expected
    low, high = sorted((data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))))
    inside = [place for place in np.flatnonzero(values).tolist() if low <= place < high]
    assert positions_in(covered(ranges, low, high)).tolist() == inside


@given(axes())
def test_edges_of_chunks(axis: Axis) -> None:
    """Where many chunks lie is what the axis says of each."""
    numbers = np.arange(axis.chunk_count)
    pairs = [axis.origin_and_edge(number) for number in numbers.tolist()]

    assert edges_of(axis, numbers).tolist() == [
        [origin, min(origin + edge, axis.extent)] for origin, edge in pairs
    ]
