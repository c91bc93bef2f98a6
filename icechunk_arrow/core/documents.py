"""Zarr metadata documents (`zarr.json`): checked, taken apart into columns, put together again.

Owns what a valid Zarr v3 document is, and which of its members are the documented columns of the
structure file. Must not know Arrow or Parquet.

Nothing of a document is ever lost. What the columns say is put together as a document in its usual
spelling and compared with the original; the difference is the extension, a patch of top-level
members. So an object-valued data type, a codec given as a bare string, an absent separator and a
member that is not known here yet need no rule of their own.

A document is a plain `dict` as `json.loads` gives it. It is shared freely: never change one.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.core.json_values import (
    decode_json,
    encode_json,
    is_finite,
    kind_of,
    parse_json,
    same_json,
    without_surrogates,
)
from icechunk_arrow.core.keys import chunk_keys_of
from icechunk_arrow.errors import InvalidInputError

__all__ = [
    "ArrayColumns",
    "check_document",
    "decode_json",
    "encode_document",
    "encode_json",
    "join_document",
    "parse_document",
    "same_json",
    "split_document",
]

_ARRAY_MEMBERS = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")

_MEMBERS = (
    "zarr_format",
    "node_type",
    *_ARRAY_MEMBERS,
    "storage_transformers",
    "dimension_names",
    "attributes",
)


class ArrayColumns(Struct, frozen=True, kw_only=True):
    """What the structure file's documented columns hold of an array document.

    Attributes
    ----------
    shape : tuple of int
        The shape of the array.
    data_type : str
        The name of the data type.
    fill_value : bytes or None
        The fill value as JSON.
    dimension_names : tuple of (str or None), or None
        One per dimension; None where the document has none.
    grid_name : str
        `regular` or `rectilinear`.
    chunk_shape : tuple of int
        The chunk shape; of a rectilinear grid, the longest edge of each dimension.
    key_encoding_name : str
        `default` or `v2`.
    separator : str
        What stands between the indexes in a chunk key, whether the document names it or not.
    codecs : tuple of (str, bytes or None)
        Name and configuration as JSON of each codec.
    """

    shape: tuple[int, ...]
    data_type: str
    fill_value: bytes | None
    dimension_names: tuple[str | None, ...] | None
    grid_name: str
    chunk_shape: tuple[int, ...]
    key_encoding_name: str
    separator: str
    codecs: tuple[tuple[str, bytes | None], ...]


def encode_document(document: dict[str, Any]) -> bytes:
    """Encode a document: the same bytes for the same document, whatever the order of members.

    Attributes keep their order, which their author may care about.
    """
    names = [name for name in _MEMBERS if name in document]
    names += sorted(document.keys() - set(names))
    members = [
        encode_json({name: document[name]}, sort_keys=name != "attributes")[1:-1] for name in names
    ]
    return b"{" + b",".join(members) + b"}"


def parse_document(data: bytes, *, path: str) -> dict[str, Any]:
    """Decode and check the document of a node.

    Parameters
    ----------
    data : bytes
        The content of a `zarr.json`.
    path : str
        The path of the node, for messages.

    Raises
    ------
    InvalidInputError
        It is not a valid Zarr v3 document. Attribute `path` names the node.
    """
    try:
        document = parse_json(data)
    except InvalidInputError as error:
        raise _invalid(path, error.message) from None
    check_document(document, path=path)
    assert isinstance(document, dict)
    return document


def check_document(document: object, *, path: str) -> None:
    """Raise InvalidInputError if a JSON value is not a valid Zarr v3 document.

    Parameters
    ----------
    document : object
        What `json.loads` gave.
    path : str
        The path of the node, for messages.
    """
    try:
        document = _check_node(document)
        if document["node_type"] == "array":
            _check_array(document)
    except InvalidInputError as error:
        raise _invalid(path, error.message) from None


def split_document(
    document: dict[str, Any],
) -> tuple[ArrayColumns | None, bytes | None, dict[str, Any] | None]:
    """Take a valid document apart.

    Parameters
    ----------
    document : dict
        A document that `check_document` accepts.

    Returns
    -------
    columns : ArrayColumns or None
        What the documented columns hold; None for a group.
    attributes_json : bytes or None
        The attributes as JSON; None where the document has no such member.
    extension : dict or None
        `{"set": {member: value}, "unset": [member]}`, what is still to be done to what the columns
        say to get the original; None where it is nothing, as it is for what zarr-python writes.
    """
    columns = _columns_of(document) if document["node_type"] == "array" else None
    rest = {name: value for name, value in document.items() if name != "attributes"}
    attributes_json = encode_json(document["attributes"]) if "attributes" in document else None
    return columns, attributes_json, _difference(_usual_document(columns), rest)


def join_document(
    columns: ArrayColumns | None,
    attributes_json: bytes | None,
    extension: dict[str, Any] | None,
) -> dict[str, Any]:
    """Put a document together again: the exact inverse of `split_document`.

    Raises
    ------
    ValueError
        One of the JSON values is none.
    """
    document = _usual_document(columns)
    if attributes_json is not None:
        attributes = decode_json(attributes_json)
        if not isinstance(attributes, dict):
            raise ValueError(f"attributes must be an object, not {kind_of(attributes)}")
        document["attributes"] = attributes
    if extension is not None:
        for name in extension["unset"]:
            del document[name]
        document |= extension["set"]
    return document


def _usual_document(columns: ArrayColumns | None) -> dict[str, Any]:
    """Write the document that columns describe as zarr-python does, without attributes."""
    if columns is None:
        return {"zarr_format": 3, "node_type": "group"}
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(columns.shape),
        "data_type": columns.data_type,
        "chunk_grid": {
            "name": columns.grid_name,
            "configuration": {"chunk_shape": list(columns.chunk_shape)},
        },
        "chunk_key_encoding": {
            "name": columns.key_encoding_name,
            "configuration": {"separator": columns.separator},
        },
        "codecs": [
            {"name": name}
            if configuration is None
            else {"name": name, "configuration": decode_json(configuration)}
            for name, configuration in columns.codecs
        ],
        "storage_transformers": [],
    }
    if columns.fill_value is not None:
        document["fill_value"] = decode_json(columns.fill_value)
    if columns.dimension_names is not None:
        document["dimension_names"] = list(columns.dimension_names)
    return document


def _columns_of(document: dict[str, Any]) -> ArrayColumns:
    """Take from an array document what the documented columns can hold."""
    keys = chunk_keys_of(document)
    names = document.get("dimension_names")
    return ArrayColumns(
        shape=tuple(document["shape"]),
        data_type=without_surrogates(_name_of(document["data_type"])),
        fill_value=encode_json(document["fill_value"]),
        dimension_names=None
        if names is None
        else tuple(None if name is None else without_surrogates(name) for name in names),
        grid_name=_name_of(document["chunk_grid"]),
        chunk_shape=grid_of(document).chunk_shape,
        key_encoding_name=keys.name,
        separator=keys.separator,
        codecs=tuple(
            (without_surrogates(_name_of(codec)), _configuration_of(codec))
            for codec in document["codecs"]
        ),
    )


def _difference(usual: dict[str, Any], document: dict[str, Any]) -> dict[str, Any] | None:
    """Find the patch that makes one document of the other; None where they are the same."""
    if same_json(usual, document):
        return None
    return {
        "set": {
            name: value
            for name, value in document.items()
            if name not in usual or not same_json(value, usual[name])
        },
        "unset": [name for name in usual if name not in document],
    }


def _name_of(named: Any) -> str:
    """Take the name of what is written as a bare name or as an object with a name."""
    name = named if isinstance(named, str) else named["name"]
    assert isinstance(name, str)
    return name


def _configuration_of(named: Any) -> bytes | None:
    """Take the configuration of such a thing, as JSON."""
    if isinstance(named, str) or "configuration" not in named:
        return None
    return encode_json(named["configuration"])


def _invalid(path: str, fact: str) -> InvalidInputError:
    """Make the error for a document that cannot be taken."""
    return InvalidInputError(f"the zarr.json of {path!r} is no Zarr v3 document: {fact}", path=path)


def _check_node(document: object) -> dict[str, Any]:
    """Check what groups and arrays have in common."""
    if not isinstance(document, dict):
        raise InvalidInputError(
            f"it is not a JSON object but {kind_of(document)}; write an object with the members "
            "zarr_format and node_type"
        )
    version = document.get("zarr_format")
    if type(version) is not int or version != 3:
        raise InvalidInputError(f"zarr_format must be 3, not {version!r}; write with zarr_format=3")
    if document.get("node_type") not in ("array", "group"):
        raise InvalidInputError(
            f"node_type must be 'array' or 'group', not {document.get('node_type')!r}"
        )
    if document.get("consolidated_metadata") is not None:
        raise InvalidInputError(
            "there is no consolidated_metadata here: one read of the structure file gives all "
            "nodes at once; write without it (in xarray: consolidated=False)"
        )
    attributes = document.get("attributes", {})
    if not isinstance(attributes, dict):
        raise InvalidInputError(
            f"attributes must be an object, not {kind_of(attributes)}; leave them out if there "
            "are none"
        )
    for name, value in document.items():
        if name != "attributes" and not is_finite(value):
            raise InvalidInputError(
                f"{name} contains a number that is not finite, which JSON does not have; "
                'write it as a string, such as "NaN" or "-Infinity"'
            )
    return document


def _check_array(document: dict[str, Any]) -> None:
    """Check what an array has besides."""
    if missing := [name for name in _ARRAY_MEMBERS if name not in document]:
        raise InvalidInputError(f"an array needs the member {missing[0]}; add it")
    grid = grid_of(document)
    chunk_keys_of(document)
    _check_named(document["data_type"], "data_type")
    for member in ("codecs", "storage_transformers"):
        items = document.get(member, [])
        if not isinstance(items, list):
            raise InvalidInputError(f"{member} must be a list, not {kind_of(items)}")
        for position, item in enumerate(items):
            _check_named(item, f"{member}[{position}]")
    if not document["codecs"]:
        raise InvalidInputError("codecs is empty; an array needs at least a codec such as 'bytes'")
    ndim = len(grid.axes)
    names = document.get("dimension_names")  # zarr-python takes null for absent
    if names is not None and not (
        isinstance(names, list)
        and len(names) == ndim
        and all(name is None or isinstance(name, str) for name in names)
    ):
        raise InvalidInputError(
            f"dimension_names must be a list of {ndim} strings or nulls, one per dimension, "
            f"not {names!r}"
        )


def _check_named(value: object, member: str) -> None:
    """Check a bare name, or an object with a name and perhaps a configuration."""
    match value:
        case str(name) | {"name": str(name)} if not name:
            raise InvalidInputError(f"{member} has an empty name; name one that Zarr knows")
        case str() | {"name": str(), "configuration": dict()}:
            return
        case {"name": str(), "configuration": other}:
            raise InvalidInputError(
                f"{member}: the configuration must be an object, not {kind_of(other)}; leave it "
                "out if there is none"
            )
        case {"name": str()}:
            return
        case _:
            raise InvalidInputError(
                f"{member} must be a name or an object with a name, not {kind_of(value)}"
            )
