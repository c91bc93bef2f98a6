"""Deleting what forks wrote, when it is certain that no snapshot names it and none will."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icechunk_arrow.core.chunks import is_virtual
from icechunk_arrow.core.columns import one_array
from icechunk_arrow.errors import IcechunkArrowError
from icechunk_arrow.formats.layout import FileKind, chunk_key, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.forks import WrittenChunks

__all__ = ["discard_written"]

_log = logging.getLogger(__name__)


def discard_written(context: Context, parts: Iterable[WrittenChunks]) -> int:
    """Delete the manifests of some forks, and the chunk files that these name; tell how many files.

    Only for whoever knows that no commit of these parts was ever begun. What cannot be read or deleted is logged
    and stays: files that nothing names do no harm, and a listing finds them. One manifest is held at a time.
    """
    count = 0
    for part in parts:
        for name in part.sizes:
            try:
                chunk_files = _chunk_files(context, name)
                context.storage.delete(
                    [*map(chunk_key, chunk_files), key_of(FileKind.MANIFEST, name)]
                )
            except IcechunkArrowError as error:
                _log.warning(
                    "the manifest %s in %s, which nothing names, could not be deleted: %s",
                    name,
                    context.storage.url,
                    error,
                )
            else:
                count += len(chunk_files) + 1
    return count


def _chunk_files(context: Context, manifest: str) -> list[str]:
    """Give the chunk files of a manifest; a fork writes all of them itself."""
    names = one_array(context.files.read_manifest(manifest, coded=True)["chunk_file"]).unique()
    return [name for name in names.to_pylist() if name is not None and not is_virtual(name)]
