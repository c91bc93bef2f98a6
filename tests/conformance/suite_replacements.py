"""What zarr's store suite writes that is no Zarr v3, and by what it is replaced: the table, and its use.

zarr's ``StoreTests`` treat a store as a dictionary: any key takes any bytes. This store holds Zarr v3
hierarchies only. So the source of an affected test is taken from the installed zarr and the fragments
of the table are replaced in it, one for one; everything else of it, every assertion above all, stays
as zarr wrote it, in each version of zarr. A fragment names keys or values and nothing else.
"""

from __future__ import annotations
import __future__

import inspect
import linecache
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import cpu
from zarr.testing import store as suite

from icechunk_arrow.core.documents import encode_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from zarr.abc.store import Store
    from zarr.core.buffer import Buffer

__all__ = ["HOMES", "REPLACED", "REWRITTEN", "array_document", "rewritten"]


def array_document(shape: tuple[int, ...], encoding: str, separator: str) -> bytes:
    """Give the document of an array of single bytes with a chunk for each element."""
    return encode_document(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    )


GROUP_DOCUMENT = {"zarr_format": 3, "node_type": "group", "attributes": {"foo": "bar"}}
GROUP = encode_document(GROUP_DOCUMENT)
ARRAY = array_document((10,), "default", "/")

HOMES: Mapping[str, tuple[str, bytes]] = {
    "c/0": ("c", array_document((10,), "v2", ".")),
    "c/0/0": ("c", array_document((10, 10), "v2", "/")),
    "c/0/1": ("c", array_document((10, 10), "v2", "/")),
    "c/0/2": ("c", array_document((10, 10), "v2", "/")),
    "foo/c/0.0": ("foo/c", array_document((10, 10), "v2", ".")),
    "foo/0/0": ("foo/0", array_document((10,), "v2", ".")),
    **{str(digit): ("", array_document((10,), "v2", "/")) for digit in range(10)},
}
"""Keys of the suite that are chunk keys, once the array to which they belong is there: its path and
document, written before the test. These keys stay as they are."""


def valid(key: str, data: bytes) -> bytes:
    """Give what may stand under a key and tells ``data`` apart: a document for a document's key."""
    if not key.endswith("zarr.json"):
        return data
    attributes = {"instead of": data.hex()}
    return encode_document({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def root_array() -> list[tuple[str, Buffer]]:
    """Give the document of an array at the root, with eleven rows of chunks."""
    return [("zarr.json", cpu.Buffer.from_bytes(array_document((11, 10), "default", "/")))]


async def set_documents_first(store: Store, values: Iterable[tuple[str, Buffer]]) -> None:
    """Set many values as the suite does, the documents before the chunks."""
    pairs = list(values)
    await store._set_many(pair for pair in pairs if pair[0].endswith("zarr.json"))
    await store._set_many(pair for pair in pairs if not pair[0].endswith("zarr.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What is replaced in one test of the suite."""

    why: str
    fragments: Mapping[str, str]
    homes: tuple[str, ...] = ()
    """Chunk keys whose arrays stand before the test begins."""


_NO_KEY = "the key is neither a document's nor a chunk's; a chunk's key stands for it"
_NO_DOCUMENT = "the bytes are no Zarr document; the document of a group stands for them"
_NO_ARRAY = "chunks have an array: its document stands for the bytes, and is set before them"
_CHUNK = '"c/0"'

REPLACED: Mapping[str, Replacement] = {
    "test_with_read_only_store": Replacement(
        why=_NO_DOCUMENT,
        fragments={'"foo"': '"foo/zarr.json"', 'b"bar"': "GROUP"},
    ),
    "test_set": Replacement(
        why=_NO_DOCUMENT,
        fragments={"from_bytes(data)": "from_bytes(valid(key, data))"},
        homes=("c/0", "foo/c/0.0", "foo/0/0"),
    ),
    "test_set_not_open": Replacement(
        why="the key is a chunk's whose array has to be there", fragments={}, homes=("c/0",)
    ),
    "test_set_many": Replacement(
        why=_NO_DOCUMENT,
        fragments={"k.encode()": "valid(k, k.encode())"},
        homes=("c/0", "foo/c/0.0", "foo/0/0"),
    ),
    "test_get_partial_values": Replacement(
        why=_NO_DOCUMENT,
        fragments={'bytes(key, encoding="utf-8")': 'valid(key, bytes(key, encoding="utf-8"))'},
    ),
    "test_getsize_prefix": Replacement(
        why="no array's chunks lie beside `c/`; the folders `c/1/` and `c/10/` of an array stand for "
        "`c/` and `cc/`",
        fragments={
            '["c/0/0", "c/0/1", "c/1/0", "c/1/1"]': '["c/1/0", "c/1/1", "c/1/2", "c/1/3"]',
            '"cc/0"': '"c/10/0"',
            'getsize_prefix("c")': 'getsize_prefix("c/1")',
            "store._set_many(": "set_documents_first(store, root_array() + ",
        },
    ),
    "test_exists": Replacement(why=_NO_DOCUMENT, fragments={'b"bar"': "GROUP"}),
    "test_delete": Replacement(why=_NO_DOCUMENT, fragments={'b"bar"': "GROUP"}),
    "test_delete_dir": Replacement(
        why=f"{_NO_DOCUMENT}; {_NO_ARRAY}", fragments={'b"root"': "GROUP", 'b"bar"': "ARRAY"}
    ),
    "test_is_empty": Replacement(
        why="the key is neither a document's nor a chunk's; a document's key stands for it",
        fragments={'"foo/bar"': '"foo/zarr.json"', 'bytes("something", encoding="utf-8")': "GROUP"},
    ),
    "test_clear": Replacement(
        why="the key is neither a document's nor a chunk's; a document's key stands for it",
        fragments={'"key"': '"zarr.json"', 'bytes("something", encoding="utf-8")': "GROUP"},
    ),
    "test_list": Replacement(
        why=_NO_ARRAY,
        fragments={
            '/zarr.json": data': '/zarr.json": self.buffer_cls.from_bytes(ARRAY)',
            "store._set_many(": "set_documents_first(store, ",
        },
    ),
    "test_list_prefix": Replacement(
        why=_NO_DOCUMENT, fragments={'from_bytes(b"")': "from_bytes(GROUP)"}
    ),
    "test_list_empty_path": Replacement(
        why=f"{_NO_ARRAY}; `foo/baz` gets a document where the suite has a chunk without an array",
        fragments={
            '"foo/bar/zarr.json": data': '"foo/bar/zarr.json": self.buffer_cls.from_bytes(ARRAY)',
            '"foo/baz/c/0": data': '"foo/baz/zarr.json": self.buffer_cls.from_bytes(GROUP)',
            "store._set_many(": "set_documents_first(store, ",
        },
    ),
    "test_list_dir": Replacement(
        why=f"{_NO_ARRAY}; arrays have no children, so the second folder is not below the first; and "
        "a document's key stands for one that is none",
        fragments={
            'b"bar"': "ARRAY",
            '"foo/bar"': '"boo/bar"',
            '"foo/bar/foobar_first_child"': '"boo/bar/foobar_first_child/zarr.json"',
            '"foo/bar/foobar_second_child/zarr.json"': '"boo/bar/foobar_second_child/zarr.json"',
            'b"1"': "GROUP",
            'b"2"': "GROUP",
            "store._set_many(": "set_documents_first(store, ",
        },
    ),
    "test_set_if_not_exists": Replacement(
        why=_NO_KEY, fragments={'"k"': _CHUNK, '"k2"': '"c/1"'}, homes=("c/0",)
    ),
    "test_get_sync": Replacement(why=_NO_KEY, fragments={'"sync_get"': _CHUNK}),
    "test_set_sync": Replacement(why=_NO_KEY, fragments={'"sync_set"': _CHUNK}, homes=("c/0",)),
    "test_delete_sync": Replacement(
        why=_NO_KEY, fragments={'"sync_delete"': _CHUNK}, homes=("c/0",)
    ),
    # zarr up to 3.1.6
    "test_get_bytes": Replacement(why=_NO_DOCUMENT, fragments={'b"hello world"': "GROUP"}),
    "test_get_bytes_sync": Replacement(why=_NO_DOCUMENT, fragments={'b"hello world"': "GROUP"}),
    "test_get_json": Replacement(why=_NO_DOCUMENT, fragments={'{"foo": "bar"}': "GROUP_DOCUMENT"}),
    "test_get_json_sync": Replacement(
        why=_NO_DOCUMENT, fragments={'{"foo": "bar"}': "GROUP_DOCUMENT"}
    ),
    # zarr from 3.2
    "test_sync_async_set_get_parity": Replacement(
        why=_NO_KEY, fragments={'"parity_set_get"': _CHUNK}, homes=("c/0",)
    ),
    "test_delete_sync_visible_to_async_get": Replacement(
        why=_NO_KEY, fragments={'"parity_delete"': _CHUNK}, homes=("c/0",)
    ),
    "test_get_sync_byte_range_parity": Replacement(
        why=_NO_KEY, fragments={'"parity_byte_range"': _CHUNK}, homes=("c/0",)
    ),
}
"""Tests of zarr's suite in which something is replaced; tests that only one version has included."""

REWRITTEN: Mapping[str, str] = {
    "test_serializable_store": "a writable store refuses to be pickled, which is asserted; the rest "
    "holds for a read-only store; a chunk's key stands for `foo`",
    "test_store_repr": "abstract in the suite",
    "test_store_supports_writes": "abstract in the suite",
    "test_store_supports_listing": "abstract in the suite",
}
"""Tests that are written anew here, and why."""

_ONLY_IN = {
    "test_get_bytes",
    "test_get_bytes_sync",
    "test_get_json",
    "test_get_json_sync",
    "test_sync_async_set_get_parity",
    "test_delete_sync_visible_to_async_get",
    "test_get_sync_byte_range_parity",
}


def rewritten(name: str) -> Callable[..., Any] | None:
    """Give a test of the suite with its replacements made; None if this zarr does not have it."""
    original = getattr(suite.StoreTests, name, None)
    if original is None and name in _ONLY_IN:
        return None
    source = textwrap.dedent(inspect.getsource(original))  # type: ignore[arg-type]
    for old, new in REPLACED[name].fragments.items():
        # some keys stand only in the test of one version
        assert old in source or old == '"cc/0"', f"{name}: zarr does not write {old} any more"
        source = source.replace(old, new)
    file = f"<zarr.testing.store.StoreTests.{name}, replaced>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {**vars(suite), **globals()}
    # the suite's annotations name type parameters of its class
    lazy = __future__.annotations.compiler_flag
    exec(compile(source, file, "exec", lazy, dont_inherit=True), namespace)
    made: Callable[..., Any] = namespace[name]
    return made
