"""Keys and paths: every Zarr key is read as zarr wrote it, and nothing else is a key."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.chunk_key_encodings import parse_chunk_key_encoding

from icechunk_arrow.core.coords import MAX_INDEX
from icechunk_arrow.core.keys import (
    ChunkKeys,
    check_node_path,
    chunk_keys_of,
    key_of,
    path_of_prefix,
    split_key,
)
from icechunk_arrow.errors import InvalidInputError
from tests.core.zarr_documents import plain

ENCODINGS = [(name, separator) for name in ("default", "v2") for separator in "/."]
encodings = st.sampled_from(ENCODINGS)
coords = st.lists(st.integers(0, 11) | st.integers(0, MAX_INDEX), max_size=5).map(tuple)


@given(encodings, coords)
def test_names_come_back_and_are_those_of_zarr(
    encoding: tuple[str, str], coord: tuple[int, ...]
) -> None:
    """Encode and decode are inverse, and zarr makes the same name."""
    name, separator = encoding
    keys = ChunkKeys(name=name, separator=separator, ndim=len(coord))
    relative = keys.encode(coord)
    assert keys.decode(relative) == coord
    options: Any = {"name": name, "configuration": {"separator": separator}}
    assert relative == parse_chunk_key_encoding(options).encode_chunk_key(coord)


@given(encodings, st.integers(0, 3), st.text("c./0123459 +-_\n٣\0zarrjson", max_size=9))
def test_only_canonical_names_are_read(encoding: tuple[str, str], ndim: int, relative: str) -> None:
    """Whatever is read would be written the same, so two names never mean one chunk."""
    name, separator = encoding
    keys = ChunkKeys(name=name, separator=separator, ndim=ndim)
    coord = keys.decode(relative)
    if coord is not None:
        assert len(coord) == ndim
        assert keys.encode(coord) == relative


@pytest.mark.parametrize(
    "relative",
    [
        *("", "c", "c/", "c/0", "c/0/", "c/0/1/2", "/c/0/1", "c//1", "c/0/1/", "C/0/1", "c.0.1"),
        *("c/00/1", "c/01/1", "c/+1/1", "c/-1/1", "c/ 1/1", "c/1/1 ", "c/1/1\n", "c/1_0/1"),
        *(
            "c/٣/1",
            "c/1٣/1",
            "c/²/1",
            "c/0x1/1",
            "c/1.0/1",
            "c/1e3/1",
            "0/1",
            "0.1",
            "zarr.json",
            "c/0/1\0",
        ),
        "c/0/" + "9" * 20,
        "c/0/" + "9" * 10_000,
    ],
)
def test_other_names_are_no_chunks(relative: str) -> None:
    """Signs, spaces, leading zeros, foreign digits, endless numbers: absent, never an exception."""
    assert ChunkKeys(name="default", separator="/", ndim=2).decode(relative) is None


def test_scalars_have_one_name() -> None:
    """The chunk of a scalar is `c`, and `0` in the encoding of Zarr v2."""
    for separator in "/.":
        default = ChunkKeys(name="default", separator=separator, ndim=0)
        assert (default.encode(()), default.decode("c")) == ("c", ())
        assert default.decode("c/0") is None
        old = ChunkKeys(name="v2", separator=separator, ndim=0)
        assert (old.encode(()), old.decode("0")) == ("0", ())
        assert old.decode("1") is None
        assert old.decode("") is None


@given(encodings, st.integers(0, 4), st.data())
def test_many_names_are_each_of_them(
    encoding: tuple[str, str], ndim: int, data: st.DataObject
) -> None:
    """Naming a whole column of chunks gives the same names as one by one."""
    name, separator = encoding
    row = st.lists(st.integers(0, MAX_INDEX), min_size=ndim, max_size=ndim)
    rows = data.draw(st.lists(row, max_size=6))
    keys = ChunkKeys(name=name, separator=separator, ndim=ndim)
    many = keys.encode_many(np.array(rows, dtype=np.uint64).reshape(len(rows), ndim))
    assert many == [keys.encode(tuple(row)) for row in rows]


def test_names_of_an_array_are_a_value() -> None:
    """They compare, hash and pickle, because read-only sessions travel."""
    keys = ChunkKeys(name="v2", separator=".", ndim=2)
    copy = pickle.loads(pickle.dumps(keys))
    assert copy == keys
    assert hash(copy) == hash(keys)
    assert copy.decode("3.4") == (3, 4)
    assert keys != ChunkKeys(name="v2", separator="/", ndim=2)


@pytest.mark.parametrize(
    ("encoding", "relative"),
    [
        ("default", "c/1/2"),
        ("v2", "1.2"),
        ({"name": "default"}, "c/1/2"),
        ({"name": "v2"}, "1.2"),
        ({"name": "default", "configuration": {}}, "c/1/2"),
        ({"name": "v2", "configuration": {}}, "1.2"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.2"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/2"),
        ({"name": "v2", "must_understand": True}, "1.2"),
    ],
)
def test_encodings_of_documents(encoding: object, relative: str) -> None:
    """Bare names, absent and given separators mean what the Zarr specification says."""
    keys = chunk_keys_of(plain(chunk_key_encoding=encoding))
    assert keys.encode((1, 2)) == relative
    assert keys.decode(relative) == (1, 2)


@pytest.mark.parametrize(
    ("encoding", "fact"),
    [
        (None, "must be a name, or an object"),
        ({}, "must be a name, or an object"),
        ({"name": 1}, "must be a name, or an object"),
        ({"name": "v2", "configuration": None}, "must be a name, or an object"),
        ("fanout", "'fanout' is not known here"),
        ({"name": "fanout", "configuration": {"max_children": 9}}, "'fanout' is not known here"),
        ({"name": "v2", "separator": "/"}, "stands beside the name"),
        ({"name": "v2", "configuration": {"separator": "-"}}, "separator must be .* not '-'"),
        ({"name": "v2", "configuration": {"separator": None}}, "separator must be .* not None"),
        ({"name": "v2", "configuration": {"separator": ["/"]}}, "separator must be"),
        ({"name": "v2", "configuration": {"base": 36}}, r"\['base'\].* nothing known"),
    ],
)
def test_encodings_that_hide_chunks_are_refused(encoding: object, fact: str) -> None:
    """An array whose chunk keys are not known cannot be taken."""
    with pytest.raises(InvalidInputError, match=fact) as caught:
        chunk_keys_of(plain(chunk_key_encoding=encoding))
    assert str(caught.value).startswith("chunk_key_encoding")


@pytest.mark.parametrize(
    "path", ["/", "/a", "/a/b", "/...", "/_a", "/a__", "/ä/😀", "/c", "/c/0", "/a b", "/Zarr.json"]
)
def test_paths_where_a_node_may_stand(path: str) -> None:
    """Anything that zarr itself can name, Unicode included."""
    assert check_node_path(path) == path
    assert path_of_prefix(path[1:]) == path


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("", "must begin with '/'"),
        ("a", "must begin with '/'"),
        ("//", "a name is empty"),
        ("/a/", "a name is empty"),
        ("/a//b", "a name is empty"),
        ("/.", "step between folders"),
        ("/a/../b", "step between folders"),
        ("/zarr.json", "every node's document"),
        ("/a/zarr.json/b", "every node's document"),
        ("/a\0", "NUL"),
        ("/\ud800", "surrogate"),
    ],
)
def test_paths_where_no_node_may_stand(path: str, fact: str) -> None:
    """The error names the path, the fault and what would be right."""
    with pytest.raises(InvalidInputError, match=fact) as caught:
        check_node_path(path)
    assert repr(path) in str(caught.value)
    assert caught.value.path == path  # type: ignore[attr-defined]


@pytest.mark.parametrize("prefix", ["/", "/a", "a/", "a//b", "..", "a/./b"])
def test_prefixes_that_are_no_paths(prefix: str) -> None:
    """A key that begins with a slash or doubles one is no key."""
    with pytest.raises(InvalidInputError, match="node path"):
        path_of_prefix(prefix)


ARRAYS = {"/temp", "/g/temp", "/g/c", "/c", "/g/h/0", "/c2/c/c"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("zarr.json", ("/", "zarr.json")),
        ("g/zarr.json", ("/g", "zarr.json")),
        ("new/deep/zarr.json", ("/new/deep", "zarr.json")),
        ("temp/c/0/1", ("/temp", "c/0/1")),
        ("g/temp/c/0/1", ("/g/temp", "c/0/1")),
        ("g/temp/c", ("/g/temp", "c")),
        ("g/temp/0.1", ("/g/temp", "0.1")),
        ("g/temp/0/1", ("/g/temp", "0/1")),
        ("g/temp/foo", ("/g/temp", "foo")),
        ("g/c/c/0", ("/g/c", "c/0")),
        ("c/c/0", ("/c", "c/0")),
        ("c/0", ("/c", "0")),
        ("g/h/0/c/0", ("/g/h/0", "c/0")),
        ("g/h/0/0/0", ("/g/h/0", "0/0")),
        ("c2/c/c/c/0", ("/c2/c/c", "c/0")),
        ("g", None),
        ("g/foo", None),
        ("", None),
        ("foo", None),
        ("/temp/c/0", None),
        ("other/c/0/1", None),
        ("g//temp/c/0", None),
    ],
)
def test_keys_belong_to_the_array_in_front(key: str, expected: tuple[str, str] | None) -> None:
    """Groups and arrays called `c` or `0` do not confuse."""
    assert split_key(key, ARRAYS.__contains__) == expected


@pytest.mark.parametrize("relative", ["c", "c/0", "c/0/1", "0", "0.1", "0/1", "foo", "x/c/0", ""])
def test_keys_of_an_array_at_the_root(relative: str) -> None:
    """A root array takes every key but documents."""
    assert split_key(relative, {"/"}.__contains__) == ("/", relative)


names = st.sampled_from(["a", "c", "0", "b.0", "ä"])
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.sets(paths, max_size=6), st.lists(names, min_size=1, max_size=5).map("/".join))
def test_keys_are_split_as_the_long_way_round_would(found: set[str], key: str) -> None:
    """Trying the likely places first gives the first prefix that is an array."""
    arrays = {path for path in found if not any(path.startswith(other + "/") for other in found)}
    parts = key.split("/")
    expected = next(
        (
            ("/" + "/".join(parts[:end]), "/".join(parts[end:]))
            for end in range(1, len(parts))
            if "/" + "/".join(parts[:end]) in arrays
        ),
        None,
    )
    assert split_key(key, arrays.__contains__) == expected


@given(paths | st.just("/"), encodings, coords)
def test_keys_are_made_and_split(
    path: str, encoding: tuple[str, str], coord: tuple[int, ...]
) -> None:
    """The key of a chunk leads back to its array and coordinates."""
    keys = ChunkKeys(name=encoding[0], separator=encoding[1], ndim=len(coord))
    key = key_of(path, keys.encode(coord))
    split = split_key(key, {path}.__contains__)
    assert split is not None
    assert split[0] == path
    assert keys.decode(split[1]) == coord
    assert split_key(key_of(path, "zarr.json"), {path}.__contains__) == (path, "zarr.json")
