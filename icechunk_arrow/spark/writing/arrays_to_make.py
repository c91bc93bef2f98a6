"""Arrays that a write makes where they are not there yet, as somebody describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_arrow.session import Session

__all__ = ["ArraySpec", "make_arrays"]

ArraySpec = Mapping[str, Any]
"""A Zarr v3 document (it has ``zarr_format``), or what ``zarr.create_array`` takes: shape, chunks, dtype, …."""


def make_arrays(session: Session, arrays: Mapping[str, ArraySpec]) -> None:
    """Make arrays that are not there, and the groups above them; those that are there stay as they are."""
    import zarr  # noqa: PLC0415  (slow to import)

    for path, spec in arrays.items():
        if not isinstance(spec, Mapping):
            raise InvalidInputError(
                f"the array {path!r} is described by {spec!r}; give a Zarr v3 document, or a mapping with "
                f"shape, chunks, dtype and whatever else zarr.create_array takes"
            )
        found = session.find_node(path)
        if found is not None:
            if not found.is_array:
                raise InvalidInputError(f"{path!r} is to be an array, and there is a group")
            continue
        _make_groups(session, path)
        if "zarr_format" in spec:
            session.set_document(path, json.dumps(dict(spec)).encode())
            continue
        try:
            zarr.create_array(session.store, name=path.strip("/") or None, **spec)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"the array {path!r} cannot be made as described: {error}"
            ) from error


def _make_groups(session: Session, path: str) -> None:
    above = "/"
    for name in ["", *path.strip("/").split("/")[:-1]]:
        above = f"{above.rstrip('/')}/{name}" if name else "/"
        if session.find_node(above) is None and path != "/":
            session.set_document(
                above, b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
            )
