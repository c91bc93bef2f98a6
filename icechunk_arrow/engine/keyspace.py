"""Zarr keys over a session: what a key names, and reading, writing, listing by key.

Synchronous, and free of zarr itself; the store wraps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.core.keys import METADATA_NAME, check_node_path, key_of, split_key
from icechunk_arrow.errors import InvalidInputError, NodeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_arrow.core.chunks import ChunkRef
    from icechunk_arrow.engine.chunk_bytes import Part
    from icechunk_arrow.engine.context import ArrayView
    from icechunk_arrow.engine.session import BaseSession

__all__ = ["Found", "Keyspace"]

Found = tuple["bytes | ChunkRef", int]
"""What stands under a key, and its size."""


class Keyspace:
    """The keys of a session's hierarchy."""

    def __init__(self, session: BaseSession) -> None:
        self._session = session

    def _chunk_of(self, key: str) -> tuple[ArrayView, tuple[int, ...]] | None:
        split = split_key(key, self._session.find_array)
        if split is None:
            return None
        view = self._session.find_array(split[0])
        coord = None if view is None else view.keys.decode(split[1])
        if view is None or coord is None or not view.grid.contains(coord):
            return None
        return view, coord

    def find(self, key: str) -> Found | None:
        """Find what stands under a key; an odd key has nothing."""
        if key.endswith(METADATA_NAME) and key[-10:-9] in {"/", ""}:
            node = self._session.find_node("/" + key[:-10])
            if node is None:
                return None
            document = self._session.document(node)
            return document, len(document)
        place = self._chunk_of(key)
        chunk = None if place is None else self._session.find_chunk(*place)
        if chunk is None:
            return None
        return chunk, len(chunk) if isinstance(chunk, bytes) else chunk.length

    def read(self, found: Found, bounds: Callable[[int], tuple[int, int]]) -> bytes | memoryview:
        """Read what was found, within bounds that may depend on its size."""
        content, size_bytes = found
        return self._session.read_chunk(content, *bounds(size_bytes))

    def read_part(self, content: bytes | ChunkRef, start: int, stop: int) -> bytes | memoryview:
        """Read a part of what was found."""
        return self._session.read_chunk(content, start, stop)

    def part_to_fetch(self, ref: ChunkRef, start: int, stop: int) -> Part | None:
        """Say what is fetched for a part of a chunk that is in a file; None where it is not checked."""
        return self._session.part_to_fetch(ref, start, stop)

    def write(self, key: str, data: bytes | memoryview) -> None:
        """Set a key: a document or a chunk; anything else is refused."""
        split = split_key(key, self._session.find_array)
        if split is not None and split[1] == METADATA_NAME:
            self._session.set_document(check_node_path(split[0]), bytes(data))
            return
        path, coord = self._place_to_write(key, split)
        self._session.write_chunk(path, coord, data)

    def point(self, key: str, ref: ChunkRef) -> None:
        """Make a chunk's key a reference to bytes that are somewhere already."""
        path, coord = self._place_to_write(key, split_key(key, self._session.find_array))
        self._session.set_chunk_ref(path, coord, ref)

    def _place_to_write(
        self, key: str, split: tuple[str, str] | None
    ) -> tuple[str, tuple[int, ...]]:
        view = None if split is None else self._session.find_array(split[0])
        if split is None or view is None:
            raise NodeNotFoundError(
                f"the key {key!r} is neither a zarr.json nor a chunk of an array that is there. Only "
                f"Zarr v3 hierarchies can be stored; write the array's zarr.json first.",
                key=key,
            )
        coord = view.keys.decode(split[1])
        if coord is None:
            raise InvalidInputError(
                f"the key {key!r} is no chunk key of the array {split[0]!r}, whose keys look like "
                f"{key_of(split[0], view.keys.encode((0,) * view.keys.ndim))!r}",
                key=key,
            )
        return split[0], coord

    def delete(self, key: str) -> None:
        """Remove a document with its chunks, or a chunk; nothing where there is nothing."""
        split = split_key(key, self._session.find_array)
        if split is None:
            return
        if split[1] == METADATA_NAME:
            if self._session.find_node(split[0]) is not None:
                self._session.delete_nodes([split[0]])
            return
        view = self._session.find_array(split[0])
        coord = None if view is None else view.keys.decode(split[1])
        if coord is not None:
            self._session.delete_chunk(split[0], coord)

    def delete_folder(self, prefix: str) -> None:
        """Remove every node below a folder, or the chunks below it within an array."""
        folder = "/" + prefix.strip("/")
        below = "/" if folder == "/" else folder + "/"
        paths = self._session.node_paths()
        nodes = [path for path in paths if path == folder or path.startswith(below)]
        if nodes:
            self._session.delete_nodes(nodes)
            return
        for key in list(self.list_keys(below[1:])):
            self.delete(key)

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Give every key that begins with a prefix."""
        for path in self._session.node_paths():
            root = key_of(path, "")
            if not (root.startswith(prefix) or prefix.startswith(root)):
                continue
            document = key_of(path, METADATA_NAME)
            if document.startswith(prefix):
                yield document
            view = self._session.find_array(path)
            if view is None:
                continue
            everything = root.startswith(prefix)
            for batch in self._session.chunk_coordinates(path):
                for relative in view.keys.encode_many(batch):
                    key = root + relative
                    if everything or key.startswith(prefix):
                        yield key

    def list_folder(self, prefix: str) -> Iterator[str]:
        """Give the names directly below a folder."""
        folder = prefix.strip("/")
        path = "/" + folder
        view = self._session.find_array(path)
        if view is not None and view.keys.name == "default" and view.keys.separator == "/":
            yield METADATA_NAME
            if any(len(batch) for batch in self._session.chunk_coordinates(path)):
                yield "c"
            return
        below = "/" if path == "/" else path + "/"
        names: dict[str, None] = {}
        node = self._session.find_node(path)
        if node is not None:
            names[METADATA_NAME] = None
        for each in self._session.node_paths():
            if each.startswith(below) and each != path:
                names[each[len(below) :].split("/", 1)[0]] = None
        inside = below[1:]
        if view is not None or (node is None and not names):
            for key in self.list_keys(inside):
                names[key[len(inside) :].split("/", 1)[0]] = None
        yield from names
