"""State files: round trip, the documented keys, checksum, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from icechunk_arrow.core.snapshot import SnapshotInfo
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.formats import state as state_format
from icechunk_arrow.formats.state import State
from tests.formats.kinds import ID
from tests.formats.strategies import states

OTHER = "5R1J2Y5Q8Z5Y2B3C4D5G"
STATE = State(
    id=ID,
    generation=3,
    store_root="s3://bucket/data",
    write_id=OTHER,
    snapshots=(
        SnapshotInfo(
            id=ID,
            parent_id=None,
            written_at=datetime(2026, 11, 18, 12, tzinfo=UTC),
            message="one",
        ),
        SnapshotInfo(
            id=OTHER,
            parent_id=ID,
            written_at=datetime(2026, 11, 18, 13, tzinfo=UTC),
            message="two",
            metadata={"author": "Ann"},
        ),
    ),
    branches={"main": OTHER},
    tags={"main": ID},
    withdrawn_tags={"v1": ID},
)


@settings(max_examples=50)
@given(states())
def test_round_trip(state: State) -> None:
    """``decode(encode(x)) == x``, the same bytes each time."""
    data = state_format.encode(state)

    assert state_format.decode(data, "state.json") == state
    assert state_format.encode(state) == data


def test_the_documented_members() -> None:
    """Hyphenated keys, types of references, bare names; a branch and a tag may share a name."""
    found = json.loads(state_format.encode(STATE))
    found.pop("crc32c")

    assert found == {
        "id": ID,
        "generation": 3,
        "store_root": "s3://bucket/data",
        "write-id": OTHER,
        "snapshots": [
            {
                "snapshot-id": ID,
                "timestamp-ms": 1795003200000,
                "structure-file": f"{ID}.parquet",
                "properties": {"message": "one", "metadata": {}},
            },
            {
                "snapshot-id": OTHER,
                "parent-snapshot-id": ID,
                "timestamp-ms": 1795006800000,
                "structure-file": f"{OTHER}.parquet",
                "properties": {"message": "two", "metadata": {"author": "Ann"}},
            },
        ],
        "refs": {
            "branch.main": {"name": "main", "snapshot-id": OTHER, "type": "branch"},
            "tag.main": {"name": "main", "snapshot-id": ID, "type": "tag"},
            "tag.v1": {"name": "v1", "snapshot-id": ID, "type": "tag", "deleted": True},
        },
    }


def test_the_checksum_is_as_specified() -> None:
    """CRC-32C of the file's bytes, with the digits of its last member read as zeros."""
    state = replace(STATE, tags={'crc32c": "00000000"}': ID})
    data = state_format.encode(state)
    digits = json.loads(data)["crc32c"].encode()

    assert data.endswith(b'"crc32c": "' + digits + b'"\n}')
    blank = data[: -len(digits) - 3] + b"00000000" + data[-3:]
    assert digits == f"{google_crc32c.value(blank):08x}".encode()
    assert state_format.decode(data, "state.json") == state


def summed(text: str) -> bytes:
    """A text, with the checksum in the place of ``{sum}``."""
    digits = f"{google_crc32c.value(text.replace('{sum}', '00000000').encode()):08x}"
    return text.replace("{sum}", digits).encode()


LEAST = (
    f'"id": "{ID}", "generation": 0, "snapshots": [{{"snapshot-id": "{ID}", "timestamp-ms": 0, "structure-file": '
    f'"{ID}.parquet"}}], "refs": {{"branch.main": {{"name": "main", "type": "branch", "snapshot-id": "{ID}"}}}}'
)


def test_any_spelling_has_a_checksum() -> None:
    """Other writers space, order and escape as they like: the sum is of what they wrote."""
    for text in (
        f'{{{LEAST},"crc32c":"{{sum}}"}}',
        f' {{\r\n {LEAST} , "no\\u0065": 1.50E+1, "\u00e4":[], "crc32c" :\t"{{sum}}" }} \n',
    ):
        assert state_format.decode(summed(text), "state.json").id == ID
        with pytest.raises(CorruptFileError, match=r"state\.json"):
            state_format.decode(summed(text).replace(b" ", b"  ", 1), "state.json")


MISPLACED = {
    "not last": f'{{"crc32c": "{{sum}}", {LEAST}}}',
    "twice": f'{{"crc32c": "{{sum}}", {LEAST}, "crc32c": "{{sum}}"}}',
    "another member twice": f'{{"generation": 0, {LEAST}, "crc32c": "{{sum}}"}}',
    "escaped": f'{{{LEAST}, "crc32\\u0063": "{{sum}}"}}',
    "upper case": f'{{{LEAST}, "crc32c": "ABCDEF01"}}',
    "null": f'{{{LEAST}, "crc32c": null}}',
}


@pytest.mark.parametrize("fault", MISPLACED)
def test_a_checksum_that_is_not_in_its_place_is_damage(fault: str) -> None:
    """Two readers must not look at different digits."""
    with pytest.raises(CorruptFileError, match=r"state\.json"):
        state_format.decode(summed(MISPLACED[fault]), "state.json")


def changed(**changes: Any) -> bytes:
    """The example with other members and without a checksum; None removes one."""
    found = {**json.loads(state_format.encode(STATE)), "crc32c": None, **changes}
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def with_snapshot(**changes: Any) -> bytes:
    """The example with another first snapshot."""
    first, second = json.loads(state_format.encode(STATE))["snapshots"]
    return changed(snapshots=[{**first, **changes}, second])


def with_ref(key: str, **changes: Any) -> bytes:
    """The example with another reference."""
    ref = {"name": "b", "snapshot-id": ID, "type": "branch", **changes}
    main = {"name": "main", "snapshot-id": ID, "type": "branch"}
    return changed(refs={"branch.main": main, key: ref})


def test_a_file_without_checksum_is_read() -> None:
    """The checksum is ours; the documented members are enough, and unknown ones are ignored."""
    assert state_format.decode(changed(colour="blue"), "state.json") == STATE
    least = f'{{{LEAST}, "store_root": ""}}'
    found = state_format.decode(least.encode(), "state.json")
    assert (found.branches, found.tags, found.store_root) == ({"main": ID}, {}, None)
    assert state_format.decode(with_snapshot(**{"parent-snapshot-id": None}), "state.json") == STATE


UNSOUND = {
    "empty": b"",
    "no text": b"\xff",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "no id": changed(id=None),
    "id": changed(id="x"),
    "no generation": changed(generation=None),
    "generation": changed(generation=-1),
    "generation is text": changed(generation="3"),
    "generation is true": changed(generation=True),
    "no snapshots": changed(snapshots=None),
    "snapshots": changed(snapshots={"a": 1}),
    "store_root": changed(store_root=5),
    "write-id": changed(**{"write-id": 5}),
    "snapshot id": with_snapshot(**{"snapshot-id": "../x"}),
    "structure file": with_snapshot(**{"structure-file": f"{OTHER}.parquet"}),
    "structure file elsewhere": with_snapshot(**{"structure-file": "../x.parquet"}),
    "parent": with_snapshot(**{"parent-snapshot-id": "x"}),
    "time": with_snapshot(**{"timestamp-ms": "yesterday"}),
    "far future": with_snapshot(**{"timestamp-ms": 10**30}),
    "message": with_snapshot(properties={"message": 5}),
    "metadata": with_snapshot(properties={"metadata": [1]}),
    "no refs": changed(refs=None),
    "no main": changed(refs={}),
    "refs": changed(refs=[1]),
    "ref": changed(refs={"branch.b": 1}),
    "type": with_ref("twig.b", type="twig"),
    "key": with_ref("branch.c"),
    "name": with_ref("branch.a/b", name="a/b"),
    "unlisted": with_ref("branch.b", **{"snapshot-id": "00000000000000000000"}),
    "deleted branch": with_ref("branch.b", deleted=True),
    "deleted": with_ref("tag.b", type="tag", deleted="yes"),
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_damage_is_an_error_that_names_the_file(fault: str) -> None:
    """Nothing but a sound state is taken for one."""
    with pytest.raises(CorruptFileError, match=r"state\.json"):
        state_format.decode(UNSOUND[fault], "state.json")


@settings(max_examples=300)
@given(st.integers(0, 8 * len(state_format.encode(STATE)) - 1))
def test_flipped_bits_are_found_out(place: int) -> None:
    """A single flipped bit is an error, or changes nothing but white space."""
    broken = bytearray(state_format.encode(STATE))
    broken[place // 8] ^= 1 << place % 8
    try:
        found = state_format.decode(bytes(broken), "state.json")
    except CorruptFileError:
        return
    assert found == STATE


def test_the_next_generation() -> None:
    """A replacement counts on and carries an id of its own."""
    following = STATE.next(ID, branches={"main": ID})

    assert (following.generation, following.write_id) == (4, ID)
    assert following.snapshots == STATE.snapshots
