"""``ingest.zarr``: Zarr stores of version 2 or 3 become groups of a repository.

Owns what a person says about stores, and the order of events.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.chunk_rows import CHUNK_ROWS, take_rows
from icechunk_arrow.ingest.hierarchy import hierarchy_of, read_documents
from icechunk_arrow.ingest.nodes import join_paths, make_nodes, placed
from icechunk_arrow.ingest.progress import Failure, Ingested
from icechunk_arrow.ingest.spark_frames import frame_of, kept, spark_type
from icechunk_arrow.ingest.words import IngestWords, said
from icechunk_arrow.ingest.zarr_work import ListChunks, ListedArray, listing_pieces
from icechunk_arrow.storage.source_files import absolute_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_arrow.ingest.hierarchy import Hierarchy
    from icechunk_arrow.ingest.words import Said
    from icechunk_arrow.spark.writing.targets import Target
    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["places_of", "zarr"]

_SUFFIXES = (".zarr", ".zarr3")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """A store, and where it comes to stand."""

    url: str
    group: str
    found: Hierarchy


def zarr(
    spark: Any,
    source: Any,
    target: Target,
    *,
    virtual: bool = False,
    consolidated: bool | None = None,
    **words: Unpack[IngestWords],
) -> Ingested:
    """Bring Zarr stores in, as one commit.

    Chunks stay byte for byte what they are. Documents of Zarr v2 are said again in Zarr v3; those of v3, sharded
    arrays included, are taken as they are. Executors list and copy the chunks.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    source
        The path or URL of a store, an array or a group; or several, each of which becomes a group of the name of
        its folder without ``.zarr``; or a mapping of groups to URLs.
    target
        A repository, its path or URL, or a writable session, which is then not committed here.
    virtual
        Refer to chunks where they are, instead of copying them.
    consolidated
        Take documents that stand together in one place: True, only so; False, never; by default where there are.
    words
        :class:`IngestWords`. A source that fails is a store whose documents cannot be taken.
    """
    own = said(words)
    stores, failed = _read(own, places_of(source, own.group), consolidated)
    title = (
        f"ingest of {len(stores)} Zarr stores" if len(stores) > 1 else f"ingest of {stores[0].url}"
    )
    listed = [each for store in stores for each in _listed(store)]
    groups, arrays = placed((store.group, store.found) for store in stores)
    with own.writing(target, title) as under_way:
        make_nodes(under_way.session, groups, arrays, overwrite=own.overwrite)
        count = 0
        if listed:
            detects = virtual and own.detect_changes
            with kept(_rows(spark, own.files, listed, detects=detects)) as rows:
                count = take_rows(
                    rows,
                    under_way.session,
                    paths=list(arrays),
                    virtual=virtual,
                    detect_changes=False,  # a listing says it of every file
                    files=own.files,
                    reporter=own.reporter(spark, title),
                )
    return Ingested(
        snapshot_id=under_way.snapshot_id,
        arrays=tuple(arrays),
        file_count=count,
        chunk_count=count,
        failures=failed,
    )


def places_of(
    source: Any, group: str, suffixes: Sequence[str] = _SUFFIXES
) -> list[tuple[str, str]]:
    """Give the URL and the group of each source; of several, the group is named as the source without a suffix."""
    if isinstance(source, Mapping):
        places = [(absolute_url(url), join_paths(group, str(to))) for to, url in source.items()]
    elif isinstance(source, str | os.PathLike):
        places = [(absolute_url(source), join_paths(group, ""))]
    else:
        urls = [absolute_url(each) for each in source]
        places = [(url, join_paths(group, _name(url, suffixes))) for url in urls]
    if not places:
        raise InvalidInputError("there is no source: none was given")
    seen: dict[str, str] = {}
    for url, to in places:
        if to in seen:
            raise InvalidInputError(
                f"{seen[to]} and {url} would both become the group {to!r}; give a mapping of groups to URLs"
            )
        seen[to] = url
    return [(url.rstrip("/"), to) for url, to in places]


def _name(url: str, suffixes: Sequence[str]) -> str:
    name = url.rstrip("/").rpartition("/")[2]
    for suffix in suffixes:
        name = name.removesuffix(suffix)
    return name


def _read(
    own: Said, places: Sequence[tuple[str, str]], consolidated: bool | None
) -> tuple[list[_Store], tuple[Failure, ...]]:
    """Read the documents of all stores; leave out or refuse those that cannot be taken."""
    stores: list[_Store] = []
    failed: list[Failure] = []
    for url, group in places:
        try:
            documents = read_documents(own.files, url, consolidated=consolidated)
            found = hierarchy_of(documents, own.drop)
        except IcechunkArrowError as error:
            reason = error.message if url in error.message else f"{url}: {error.message}"
            if own.stops:
                raise InvalidInputError(reason, url=url) from error
            failed.append(Failure(source=url, reason=reason))
        else:
            stores.append(_Store(url=url, group=group, found=found))
    if not stores:
        raise InvalidInputError(f"none of the stores can be taken; {failed[0].reason}")
    return stores, tuple(failed)


def _listed(store: _Store) -> list[ListedArray]:
    return [
        ListedArray(
            path=join_paths(store.group, path),
            url=f"{store.url}{path}".rstrip("/"),
            keys=array.keys,
            chunk_counts=grid_of(array.document).chunk_counts,
        )
        for path, array in store.found.arrays.items()
    ]


def _rows(spark: Any, files: SourceFiles, listed: Sequence[ListedArray], *, detects: bool) -> Any:
    """Give a frame of all chunks, which Spark lists when it is asked for them."""
    pieces = [(array.path, folder) for array in listed for folder in listing_pieces(array)]
    table = pa.Table.from_pydict(
        {
            "number": from_values(range(len(pieces)), pa.int64()),
            "array": from_values([path for path, _ in pieces], pa.string()),
            "folder": from_values([folder for _, folder in pieces], pa.string()),
        }
    )
    arrays = {array.path: array for array in listed}
    work = ListChunks(files=files, arrays=arrays, detects=detects)
    return frame_of(spark, table).mapInArrow(work, spark_type(CHUNK_ROWS))
