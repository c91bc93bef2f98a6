"""Any valid Zarr v3 document in, the same document out; anything else is a clear error."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.group import GroupMetadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from icechunk_arrow.core.documents import (
    check_document,
    decode_json,
    encode_document,
    encode_json,
    join_document,
    parse_document,
    same_json,
    split_document,
)
from icechunk_arrow.errors import InvalidInputError
from tests.core.strategies import documents
from tests.core.zarr_documents import (
    GROUP_OPTIONS,
    HAS_RECTILINEAR,
    OPTIONS,
    array_document,
    as_bytes,
    group_document,
    plain,
    rectilinear_documents,
    without,
)


def round_trip(document: dict[str, Any]) -> dict[str, Any]:
    """The document after the structure file: columns, two blobs of JSON."""
    columns, attributes_json, extension = split_document(document)
    stored = None if extension is None else decode_json(encode_json(extension))
    return join_document(columns, attributes_json, stored)


@given(documents)
def test_every_valid_document_comes_back(document: dict[str, Any]) -> None:
    """Split and join is the identity on JSON values, and so is parsing what was encoded."""
    check_document(document, path="/a")
    assert same_json(round_trip(document), document)
    assert same_json(parse_document(encode_document(document), path="/a"), document)
    assert same_json(parse_document(as_bytes(document), path="/a"), document)


@given(documents)
def test_columns_can_stand_in_parquet(document: dict[str, Any]) -> None:
    """Text is UTF-8 and integers fit 64 bits, whatever the document holds."""
    columns, _, _ = split_document(document)
    if columns is None:
        return
    for text in (columns.data_type, *(columns.dimension_names or ()), *dict(columns.codecs)):
        assert text is None or text.encode().decode() == text
    assert all(0 <= size < 2**64 for size in (*columns.shape, *columns.chunk_shape))
    assert len(columns.chunk_shape) == len(columns.shape)


@given(documents, st.randoms())
def test_bytes_depend_on_the_document_alone(document: dict[str, Any], random: Any) -> None:
    """The order of members does not show, so size and content are one before and after a commit."""
    members = list(document.items())
    random.shuffle(members)
    assert encode_document(dict(members)) == encode_document(document)
    assert encode_document(round_trip(document)) == encode_document(document)


def test_order_of_inner_members_does_not_show_except_in_attributes() -> None:
    """Attributes keep the order that their author gave them."""
    one = {"name": "bytes", "configuration": {"endian": "little"}}
    other = {"configuration": {"endian": "little"}, "name": "bytes"}
    assert encode_document(plain(codecs=[one])) == encode_document(plain(codecs=[other]))
    for attributes in ({"b": 1, "a": 2}, {"a": 2, "b": 1}):
        document = parse_document(encode_document(plain(attributes=attributes)), path="/a")
        assert list(round_trip(document)["attributes"]) == list(attributes)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize("name", OPTIONS)
def test_arrays_of_zarr_come_back(name: str) -> None:
    """Each data type, fill value, codec and encoding of zarr survives, and zarr reads it the same.

    What zarr writes needs no extension, save for data types with a configuration.
    """
    data = array_document(**OPTIONS[name])
    document = parse_document(data, path="/a")
    joined = round_trip(document)
    assert same_json(joined, json.loads(data))
    _, _, extension = split_document(document)
    if isinstance(document["data_type"], str):
        assert extension is None
    else:
        assert extension == {"set": {"data_type": document["data_type"]}, "unset": []}
    written = json.loads(encode_document(joined))
    ours = ArrayV3Metadata.from_dict(written)
    theirs = ArrayV3Metadata.from_dict(json.loads(data))
    assert same_json(ours.to_dict(), theirs.to_dict())


@pytest.mark.parametrize("name", GROUP_OPTIONS)
def test_groups_of_zarr_come_back(name: str) -> None:
    """A group with and without attributes survives, without an extension."""
    data = group_document(**GROUP_OPTIONS[name])
    document = parse_document(data, path="/")
    columns, _, extension = split_document(document)
    assert (columns, extension) == (None, None)
    assert same_json(round_trip(document), json.loads(data))
    written = json.loads(encode_document(document))
    assert same_json(
        GroupMetadata.from_dict(written).to_dict(),
        GroupMetadata.from_dict(json.loads(data)).to_dict(),
    )


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
def test_rectilinear_grids_of_zarr_come_back() -> None:
    """Bare edges, lists and runs survive as they were spelt; the column holds the longest edges."""
    found = rectilinear_documents()
    for data, _ in found.values():
        document = parse_document(data, path="/a")
        assert same_json(round_trip(document), json.loads(data))
        with zarr.config.set({"array.rectilinear_chunks": True}):
            assert ArrayV3Metadata.from_dict(json.loads(encode_document(document)))
    columns, _, _ = split_document(parse_document(found["mixed"][0], path="/a"))
    assert columns is not None
    assert (columns.grid_name, columns.chunk_shape) == ("rectilinear", (4, 4))


_UNUSUAL = {
    "codec-bare": plain(codecs=["bytes", {"name": "zstd", "configuration": {"level": 1}}]),
    "codec-must-understand": plain(codecs=[{"name": "bytes", "must_understand": False}]),
    "data-type-object": plain(data_type={"name": "r24", "configuration": {"x": [1, 1.0]}}),
    "separator-absent": plain(chunk_key_encoding={"name": "default"}),
    "separator-empty": plain(chunk_key_encoding={"name": "v2", "configuration": {}}),
    "encoding-bare": plain(chunk_key_encoding="v2"),
    "transformers": plain(storage_transformers=[{"name": "indexed", "configuration": {"a": 1}}]),
    "transformers-absent": without(plain(), "storage_transformers"),
    "attributes-absent": without(plain(), "attributes"),
    "names-null": plain(dimension_names=None),
    "names-surrogate": plain(dimension_names=["\ud800", None]),
    "extension": plain(**{"x-ours": {"must_understand": False, "big": 10**30, "zero": -0.0}}),
    "extension-bare": plain(proposal=True, other=None),
    "consolidated-null": plain(consolidated_metadata=None),
    "grid-must-understand": plain(
        chunk_grid={
            "name": "regular",
            "configuration": {"chunk_shape": [1, 1]},
            "must_understand": True,
        }
    ),
    "fill-nan-payload": plain(fill_value="0x7fc00001"),
    "fill-true": plain(fill_value=True),
    "fill-one": plain(fill_value=1),
    "fill-one-point-zero": plain(fill_value=1.0),
    "fill-minus-zero": plain(fill_value=-0.0),
    "fill-null": plain(fill_value=None),
    "fill-nested": plain(fill_value={"b": [0, {"a": "Infinity"}]}),
    "group-extension": {"zarr_format": 3, "node_type": "group", "shape": "not an array's"},
    "group-consolidated-null": {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": None,
    },
}


@pytest.mark.parametrize("name", _UNUSUAL)
def test_unusual_spellings_come_back(name: str) -> None:
    """What the columns cannot hold stands in the extension, and only that."""
    document = parse_document(as_bytes(_UNUSUAL[name]), path="/a")
    assert same_json(round_trip(document), _UNUSUAL[name])
    _, _, extension = split_document(document)
    if name.startswith(("fill-", "attributes-")):
        assert extension is None
    else:
        assert extension is not None
        assert len(extension["set"]) + len(extension["unset"]) in (1, 2)


def test_columns_say_what_the_document_says() -> None:
    """The documented columns are readable without the extension."""
    columns, attributes_json, extension = split_document(
        plain(
            dimension_names=["y", None],
            attributes={"ä": math.nan},
            codecs=[{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}],
            chunk_key_encoding={"name": "v2"},
        )
    )
    assert columns is not None
    assert columns.shape == (6, 4)
    assert columns.data_type == "float32"
    assert columns.fill_value == b"0.0"
    assert columns.dimension_names == ("y", None)
    assert (columns.grid_name, columns.chunk_shape) == ("regular", (2, 3))
    assert (columns.key_encoding_name, columns.separator) == ("v2", ".")
    assert columns.codecs == (("bytes", None), ("zstd", b'{"level":1}'))
    assert attributes_json == '{"ä":NaN}'.encode()
    assert extension == {"set": {"chunk_key_encoding": {"name": "v2"}}, "unset": []}


def test_attributes_absent_and_empty_are_two_things() -> None:
    """No attributes is not the same as an empty object."""
    assert split_document(plain())[1] == b"{}"
    assert split_document(without(plain(), "attributes"))[1] is None


_INVALID: dict[str, tuple[Any, str]] = {
    "list": ([], "not a JSON object but a list"),
    "null": (None, "not a JSON object but null"),
    "v2": (plain(zarr_format=2), "zarr_format=3"),
    "format-float": (plain(zarr_format=3.0), "zarr_format must be 3, not 3.0"),
    "format-true": ({"zarr_format": True, "node_type": "group"}, "zarr_format must be 3"),
    "format-absent": ({"node_type": "group"}, "zarr_format must be 3, not None"),
    "node-absent": ({"zarr_format": 3}, "node_type must be"),
    "node-unhashable": ({"zarr_format": 3, "node_type": ["array"]}, "node_type must be"),
    "node-other": ({"zarr_format": 3, "node_type": "table"}, "'table'"),
    "consolidated": (
        {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {}}},
        "one read of the structure file gives all nodes",
    ),
    "attributes-null": (plain(attributes=None), "attributes must be an object, not null"),
    "attributes-list": (plain(attributes=[]), "attributes must be an object, not a list"),
    "nan-fill": (plain(fill_value=math.nan), 'fill_value contains .* "NaN"'),
    "nan-codec": (
        plain(codecs=[{"name": "q", "configuration": {"scale": math.inf}}]),
        "codecs contains a number",
    ),
    "nan-extension": (plain(**{"x-y": [math.nan]}), "x-y contains a number"),
    **{
        f"no-{member}": (without(plain(), member), f"an array needs the member {member}")
        for member in (
            *("shape", "data_type", "chunk_grid"),
            *("chunk_key_encoding", "fill_value", "codecs"),
        )
    },
    "shape-text": (plain(shape="64"), "shape must be a list"),
    "shape-negative": (plain(shape=[6, -4]), "shape must be a list"),
    "shape-true": (plain(shape=[True, 4]), "shape must be a list"),
    "shape-float": (plain(shape=[6.0, 4]), "shape must be a list"),
    "shape-endless": (plain(shape=[6, 2**63]), "shape must be a list"),
    "type-number": (plain(data_type=4), "data_type must be a name or an object"),
    "type-empty": (plain(data_type=""), "data_type has an empty name"),
    "type-nameless": (plain(data_type={"configuration": {}}), "data_type must be a name"),
    "type-empty-name": (plain(data_type={"name": ""}), "data_type has an empty name"),
    "codecs-object": (plain(codecs={"name": "bytes"}), "codecs must be a list, not an object"),
    "codecs-empty": (plain(codecs=[]), "codecs is empty"),
    "codec-null": (plain(codecs=["bytes", None]), r"codecs\[1\] must be a name .* not null"),
    "codec-configuration": (
        plain(codecs=[{"name": "bytes", "configuration": None}]),
        r"codecs\[0\]: the configuration must be an object",
    ),
    "transformers-null": (plain(storage_transformers=None), "storage_transformers must be a list"),
    "transformer": (plain(storage_transformers=[1]), r"storage_transformers\[0\]"),
    "names-few": (plain(dimension_names=["x"]), "dimension_names must be a list of 2"),
    "names-number": (plain(dimension_names=["x", 1]), "dimension_names must be a list of 2"),
    "names-text": (plain(dimension_names="xy"), "dimension_names must be a list of 2"),
    "grid": (plain(chunk_grid="regular"), "'regular' is not known here.*configuration"),
    "encoding": (plain(chunk_key_encoding="fanout"), "'fanout' is not known here"),
}


@pytest.mark.parametrize("name", _INVALID)
def test_invalid_documents_are_refused_by_name(name: str) -> None:
    """The error names the node, the member and what would be right, also as an attribute."""
    document, fact = _INVALID[name]
    with pytest.raises(InvalidInputError, match=fact) as caught:
        parse_document(as_bytes(document), path="/deep/ä")
    assert "'/deep/ä'" in str(caught.value)
    assert caught.value.path == "/deep/ä"  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match=fact):
        check_document(document, path="/deep/ä")


def test_bytes_that_are_no_json_are_refused_by_name() -> None:
    """Raw bytes under zarr.json, members that come twice and 1e400 get errors of their own."""
    for data, fact in (
        (b"\x01\x02\x03\x04", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"zarr_format": 3, "zarr_format": 3, "node_type": "group"}', "comes twice"),
        (b'{"zarr_format": 3, "node_type": "group", "x": 1e400}', "x contains a number"),
    ):
        with pytest.raises(InvalidInputError, match=fact) as caught:
            parse_document(data, path="/a")
        assert "'/a'" in str(caught.value)
