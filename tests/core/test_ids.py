"""Ids and sequence names: Crockford base 32, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.ids import (
    MAX_SEQUENCE,
    check_id,
    decode_id,
    encode_id,
    is_id,
    sequence_name,
    sequence_number,
)
from icechunk_arrow.errors import InvalidInputError

twelve_bytes = st.binary(min_size=12, max_size=12)
sequences = st.integers(0, MAX_SEQUENCE)


@given(twelve_bytes)
def test_ids_round_trip(data: bytes) -> None:
    """Twelve bytes, twenty characters, twelve bytes."""
    text = encode_id(data)

    assert len(text) == 20
    assert is_id(text)
    assert check_id(text) is text
    assert decode_id(text) == data


@given(twelve_bytes, twelve_bytes)
def test_ids_sort_like_their_bytes(one: bytes, other: bytes) -> None:
    """The alphabet is in the order of ASCII."""
    assert (one < other) == (encode_id(one) < encode_id(other))


def test_ids_at_both_ends() -> None:
    """Known values: all bits clear, all set, and one bit in each end."""
    assert encode_id(bytes(12)) == "00000000000000000000"
    assert encode_id(b"\xff" * 12) == "ZZZZZZZZZZZZZZZZZZZG"
    assert encode_id(b"\x80" + bytes(11)) == "G0000000000000000000"
    assert encode_id(bytes(11) + b"\x01") == "0000000000000000000G"
    assert is_id("VY76P925PRY57WFEK410")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "VY76P925PRY57WFEK41",
        "VY76P925PRY57WFEK4100",
        "VY76P925PRY57WFEK411",
        "vy76p925pry57wfek410",
        "VY76P925PRY57WFEKI10",
        "VY76P925PRY57WFEKL10",
        "VY76P925PRY57WFEKO10",
        "VY76P925PRY57WFEKU10",
        "VY76P925PRY57WFEK410\n",
        "../6P925PRY57WFEK410",
        "VY76P925PRY57WFEK41\u0660",
        None,
        5,
        b"VY76P925PRY57WFEK410",
    ],
)
def test_what_is_no_id(text: object) -> None:
    """One spelling per id: no lower case, no letters that look alike, no spare bits, nothing else."""
    assert not is_id(text)
    if isinstance(text, str):
        with pytest.raises(InvalidInputError, match="is not a snapshot id: expected 20 characters"):
            check_id(text, "snapshot id")
        with pytest.raises(InvalidInputError):
            decode_id(text)


@given(sequences)
def test_sequence_names_round_trip(number: int) -> None:
    """A name of eight characters says its number."""
    name = sequence_name(number)

    assert len(name) == 8
    assert sequence_number(name) == number


@given(sequences, sequences)
def test_the_newest_entry_sorts_first(one: int, other: int) -> None:
    """Names fall as numbers rise, so one sorted listing with limit 1 finds the newest."""
    assert (one < other) == (sequence_name(one) > sequence_name(other))


def test_documented_sequence_names() -> None:
    """The names that the specifications print."""
    assert sequence_name(0) == "ZZZZZZZZ"
    assert sequence_name(1) == "ZZZZZZZY"
    assert sequence_name(100) == "ZZZZZZWV"
    assert sequence_name(MAX_SEQUENCE) == "00000000"


@pytest.mark.parametrize("name", ["", "ZZZZZZZ", "ZZZZZZZZZ", "zzzzzzzz", "ZZZZZZZU", "ZZZZZZZZ\n"])
def test_what_is_no_sequence_name(name: str) -> None:
    """Other names in a branch's folder are passed over."""
    assert sequence_number(name) is None


def test_numbers_that_no_entry_has() -> None:
    """There is nothing before the first entry and nothing after the last."""
    for number in (-1, MAX_SEQUENCE + 1):
        with pytest.raises(AssertionError):
            sequence_name(number)
