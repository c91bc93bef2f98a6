"""JSON values survive exactly, and are compared exactly."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.json_values import (
    decode_json,
    encode_json,
    is_finite,
    kind_of,
    parse_json,
    same_json,
    without_surrogates,
)
from icechunk_arrow.errors import InvalidInputError
from tests.core.strategies import json_values


@given(json_values)
def test_bytes_are_utf8_and_give_the_value_back(value: object) -> None:
    """Every JSON value survives as UTF-8 bytes: NaN, -0.0, big integers, halves of pairs."""
    data = encode_json(value)
    data.decode("utf-8")
    assert same_json(decode_json(data), value)
    assert same_json(parse_json(data), value)


@given(json_values)
def test_what_other_programs_write_is_the_same_value(value: object) -> None:
    """Escapes and white space do not matter."""
    assert same_json(parse_json(json.dumps(value, indent=3).encode()), value)


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    """The bytes are valid UTF-8 although the string is not valid Unicode."""
    assert encode_json(["a\ud800", "😀"]) == b'["a\\ud800","' + "😀".encode() + b'"]'
    assert without_surrogates("a\udfff😀") == "a\ufffd😀"


_DIFFERENT = [1, 1.0, True, "1", 0, 0.0, -0.0, False, None, math.nan, math.inf, -math.inf, [], {}]


@pytest.mark.parametrize("one", range(len(_DIFFERENT)))
@pytest.mark.parametrize("other", range(len(_DIFFERENT)))
def test_sameness_is_strict(one: int, other: int) -> None:
    """Values that Python takes for equal are told apart, and NaN is itself."""
    assert same_json([_DIFFERENT[one]], [_DIFFERENT[other]]) is (one == other)


def test_order_of_members_does_not_matter() -> None:
    """An object is a set of members; a list is a sequence."""
    assert same_json({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1})
    assert not same_json([1, 2], [2, 1])


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b'{"a": 1, "b": {"c": 1, "d": 2, "c": 1}}', "'c' comes twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b"[" * 401 + b"]" * 401, "400 levels"),
        (b'{"a":' * 401 + b"1" + b"}" * 401, "400 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "400 levels"),
    ],
)
def test_what_is_not_exactly_one_value_is_refused(data: bytes, fact: str) -> None:
    """Doubtful JSON is an error that says what is wrong, never a guess."""
    with pytest.raises(InvalidInputError, match=fact):
        parse_json(data)


def test_depth_counts_brackets_inside_one_another_only() -> None:
    """400 levels pass, and so do many brackets beside one another or inside a string."""
    assert parse_json(b"[" * 400 + b"]" * 400)
    assert len(parse_json(b"[" + b"{}," * 5000 + b"1]")) == 5001
    assert parse_json(b'"' + b"[" * 5000 + b'"') == "[" * 5000


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_our_own_bytes_damaged_are_a_value_error(data: bytes) -> None:
    """A caller who knows the file can say which is damaged."""
    with pytest.raises(ValueError, match=r".+"):
        decode_json(data)


@given(st.lists(st.floats()))
def test_numbers_that_json_lacks_are_found(numbers: list[float]) -> None:
    """A value is finite when each of its numbers is."""
    assert is_finite({"a": [numbers]}) is all(map(math.isfinite, numbers))


def test_kinds_are_named_as_json_names_them() -> None:
    """Messages speak of JSON, not of Python."""
    values: list[object] = [None, True, {}, [], "", 1, 1.5]
    named = [kind_of(value) for value in values]
    assert named == ["null", "true", "an object", "a list", "a string", "a number", "a number"]
