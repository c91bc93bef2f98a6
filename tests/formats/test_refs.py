"""Branch entries and tags: exact bytes, round trip, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from icechunk_arrow.errors import CorruptFileError, UnsupportedFormatError
from icechunk_arrow.formats import refs
from icechunk_arrow.formats.refs import RefEntry
from tests.formats.kinds import ID
from tests.formats.strategies import ref_entries

KEY = "refs/branch.main/ZZZZZZZZ.json"
OTHER = "5R1J2Y5Q8Z5Y2B3C4D5G"


@given(ref_entries)
def test_round_trip(entry: RefEntry) -> None:
    """``decode(encode(x)) == x``, the same bytes each time."""
    data = refs.encode(entry)

    assert refs.decode(data, KEY) == entry
    assert refs.encode(entry) == data


def test_a_commit_writes_the_snapshot_and_nothing_else() -> None:
    """The documented entry: one key."""
    assert json.loads(refs.encode(RefEntry(snapshot=ID))) == {"snapshot": ID}
    assert len(refs.encode(RefEntry(snapshot=ID))) < 40


def test_the_documented_example_is_read() -> None:
    """The specification's own example, white space or not."""
    for text in (
        '{"snapshot":"VY76P925PRY57WFEK410"}',
        '\n{ "snapshot" : "VY76P925PRY57WFEK410" }',
    ):
        assert refs.decode(text.encode(), KEY) == RefEntry(snapshot=ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"x"',
        "{}",
        "[" * 100_000,
        '{"snapshot":null}',
        '{"snapshot":"x"}',
        f'{{"snapshot":"{ID.lower()}"}}',
        f'{{"snapshot":"{ID}x"}}',
        f'{{"snapshot":["{ID}"]}}',
        f'{{"snapshot":"{ID}","snapshot":"{OTHER}"}}',
        f'{{"snapshot":"{ID}","write_id":5}}',
        f'{{"snapshot":"{ID}","deleted":1}}',
        f'{{"snapshot":"{ID}","deleted":"true"}}',
        f'{{"snapshot":"{ID}"}}{{}}',
        f'{{"snapshot":"{ID}","info":1}}',
        f'{{"snapshot":"{ID}","write_id":"{OTHER}"}}',
        f'{{"snapshot":"{ID}","key":"{KEY}"}}',
        f'{{"snapshot":"{ID}","deleted":true}}',
        f'{{"snapshot":"{ID}","write_id":"{OTHER}","key":"refs/branch.x/ZZZZZZZZ.json"}}',
        f'{{"snapshot":"{ID}","write_id":"x","key":"{KEY}"}}',
    ],
)
def test_damage_is_an_error_that_names_the_file(text: str) -> None:
    """Nothing but an entry is taken for one."""
    with pytest.raises(CorruptFileError, match=r"ZZZZZZZZ\.json"):
        refs.decode(text.encode(), KEY)


def test_bytes_that_are_no_text_are_damage() -> None:
    """UTF-8 and no other encoding."""
    for data in (b"\xff\xfe", f'{{"snapshot":"{ID}"}}'.encode("utf-16")):
        with pytest.raises(CorruptFileError, match="UTF-8"):
            refs.decode(data, KEY)


def test_unknown_members_are_refused_as_newer() -> None:
    """A member that this version does not know could change what the entry means."""
    for member, word in (({"frozen": True}, "'frozen'"), ({"catalog": "stars"}, "'stars'")):
        data = json.dumps({"snapshot": ID, **member}).encode()
        with pytest.raises(UnsupportedFormatError, match=word):
            refs.decode(data, KEY)


def test_info_is_passed_over() -> None:
    """The one member that may say anything."""
    data = json.dumps({"snapshot": ID, "info": {"host": "a", "snapshot": OTHER}}).encode()

    assert refs.decode(data, KEY) == RefEntry(snapshot=ID)


def test_no_flipped_bit_leads_to_another_snapshot_unnoticed() -> None:
    """Of single bit flips in an entry, those that still parse name a snapshot that does not exist."""
    data = refs.encode(RefEntry(snapshot=ID, write_id=OTHER, key=KEY, deleted=True))
    for place in range(8 * len(data)):
        broken = bytearray(data)
        broken[place // 8] ^= 1 << place % 8
        try:
            found = refs.decode(bytes(broken), KEY)
        except (CorruptFileError, UnsupportedFormatError):
            continue
        assert found.deleted
        assert (found.snapshot != ID) != (found.write_id != OTHER)
