"""Settings are plain YAML: what everybody reads alike is taken, all else is refused, and soon."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow import InvalidInputError
from icechunk_arrow.core.plain_yaml import LONGEST_YAML_BYTES, dump_plain_yaml, load_plain_yaml

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20) + 1, 10**20 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20)
    | st.sampled_from(
        ["yes", "null", "1e3", "0x1F", "59:59", "<<", "~", "-", "2001-01-01", ".inf"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b-c", "1", "yes", "<<x", ""]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_what_is_written_is_read_back(value: Any) -> None:
    """Plain values come back as they were, from our own YAML and from JSON."""
    assert load_plain_yaml(dump_plain_yaml(value)) == value
    assert load_plain_yaml(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a:\n  - x: .*/time\n    y: [0, null]", {"a": [{"x": ".*/time", "y": [0, None]}]}),
        ("b: |\n  text\n", {"b": "text\n"}),
        ("a: 'yes'\nb: \"010\"\nc:\n", {"a": "yes", "b": "010", "c": None}),
        ("'1': -2.5e3\n\"true\": false", {"1": -2500.0, "true": False}),
        ("a: " + "x:" * 200 + "y", {"a": "x:" * 200 + "y"}),
    ],
)  # fmt: skip
def test_what_people_write(text: str, value: Any) -> None:
    """Block and flow style, comments, quotes."""
    assert load_plain_yaml(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "&a [1]",
        "a: &x 1",
        "[&a [x], *a]",
        "a: !!int 5",
        "a: !x y",
        "!!python/object/apply:os.system [x]",
        "a: 1\na: 2",
        '{"a": 1, "a": 1}',
        "<<: {a: 1}",
        "a: {<<: [{b: 1}]}",
        "1: 2",
        "true: 2",
        ": 2",
        "? [1, 2]\n: 3",
        "? {a: 1}\n: 3",
        "--- a\n--- b",
        "%YAML 1.1\n--- a",
        "%TAG ! tag:x,2000:\n--- a",
        "a: yes",
        "a: Off",
        "a: True",
        "a: NULL",
        "a: ~",
        "a: 010",
        "a: 0x1F",
        "a: 1_000",
        "a: 59:59",
        "a: +5",
        "a: 1.",
        "a: .5",
        "a: .inf",
        "a: .NaN",
        "a: 2001-01-01",
        "a: 1e999",
        "a: " + "9" * 30,
        "a: 0." + "3" * 60,
        "a: b: c",
        "[" * 33 + "]" * 33,
        "a: [",
        "\x00",
        b"\xff\xfe\x00",
        b"a: \xff",
    ],
)
def test_what_is_refused(text: str | bytes) -> None:
    """Whatever makes values out of nothing, or is not the same to every reader, is an error."""
    with pytest.raises(InvalidInputError) as caught:
        load_plain_yaml(text)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "#" * LONGEST_YAML_BYTES + "\n",
        "# comment\n" * 5_000_000,
        "[" * (LONGEST_YAML_BYTES - 1),
        "- " * (LONGEST_YAML_BYTES // 2 - 1),
        "a: " + ":".join(["59"] * 80_000),
        "a: [" + ", ".join([":".join(["59"] * 60)] * 1400) + "]",
        "a: " + "9" * (LONGEST_YAML_BYTES - 10),
        "{" + ", ".join(f"k{n}: [[[{{}}]]]" for n in range(11_000)) + "}, x",
        "- *a\n" * 50_000,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_nothing_takes_long(text: str) -> None:
    """The longest and strangest files are refused, or read, within the two seconds of any hostile file."""
    begun = time.process_time()
    try:
        load_plain_yaml(text)
    except InvalidInputError:
        pass
    else:
        assert text.startswith("a: 59:59")  # text, and where a number is wanted it is no number

    assert time.process_time() - begun < 2
