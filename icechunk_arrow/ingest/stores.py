"""``ingest.zarr``, ``ingest.references`` and ``ingest.grib_index``: arrays whose chunks come as they are.

Owns what the caller may give, and the order of events: sources are opened, their nodes made, and their chunks
referred to or copied. What a format says is known by the module of its name.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.documents import encode_document
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.executor import cut
from icechunk_arrow.ingest.grib import GRIB_MESSAGES, GribIndex
from icechunk_arrow.ingest.kerchunk import KerchunkJson, KerchunkParquet, is_kerchunk
from icechunk_arrow.ingest.options import IngestOptions, IngestWords
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested
from icechunk_arrow.ingest.source import REFERENCES, ask_files, message_of, repeated
from icechunk_arrow.ingest.spark import (
    CHUNK_ROWS,
    ChunkTaker,
    SparkExecutor,
    chunk_rows_of,
    frame_of_batches,
    frame_over,
    is_frame,
    kept,
    rows_of,
)
from icechunk_arrow.ingest.target import join_paths, make_nodes, placed
from icechunk_arrow.ingest.virtualizarr import VirtualDataset, is_virtual
from icechunk_arrow.ingest.zarr import ZarrStore
from icechunk_arrow.spark.writing.targets import make_arrays
from icechunk_arrow.storage.source_files import SourceFiles, absolute_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.ingest.source import Hierarchy, Source
    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.writing.targets import ArraySpec, Target

S = TypeVar("S", bound="Source")

_REFERENCES = pa.schema([each for each in REFERENCES if each.name != "data"])
_STORE_SUFFIXES = (".zarr", ".zarr3")
_FILE_SUFFIXES = (".json", ".parquet", ".parq")
_SOURCE = pa.schema([("source", pa.int64()), ("nodes", pa.binary()), ("reason", pa.string())])
_OPENED = pa.schema([*_SOURCE, *CHUNK_ROWS])
"""A row is a source that was opened, one that could not be, or a chunk."""


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
    options = IngestOptions.of(words)
    open_store = partial(
        ZarrStore.open,
        options.files,
        drop=options.drop,
        consolidated=consolidated,
        detects=virtual and options.detect_changes,
    )
    places = _places(source, options.group, _STORE_SUFFIXES)
    stores, _, failures = _open_all(options, places, open_store)
    if not stores:
        raise InvalidInputError(f"none of the stores can be taken; {failures[0].reason}")
    what = f"{len(stores)} Zarr stores" if len(stores) > 1 else stores[0][1].location
    title = f"ingest of {what}"
    reporter = options.reporter(SparkExecutor(spark), title)
    with options.writing(target, title) as under_way:
        intake = _Intake(
            spark=spark,
            options=replace(
                options, detect_changes=False
            ),  # a listing says of every file what it is now
            session=under_way.session,
            reporter=reporter,
            virtual=virtual,
        )
        intake.take_sources(stores)
    return intake.result(under_way.snapshot_id, intake.chunk_count, failures)


def references(
    spark: Any,
    source: Any,
    target: Target,
    *,
    arrays: Mapping[str, ArraySpec] | None = None,
    virtual: bool = True,
    base: str | None = None,
    **words: Unpack[IngestWords],
) -> Ingested:
    """Bring references to chunks in, as one commit.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    source
        A DataFrame with the columns ``path``, ``index`` (a list of integers), ``location``, ``offset``, ``length``,
        and if wanted ``etag``, ``last_modified`` and ``data`` (the chunk itself, where ``location`` is null);
        or the path or URL of a kerchunk file, JSON of version 0 or 1 or a folder of Parquet files, or several, each
        of which becomes a group of its name, or a mapping of groups to them;
        or what such a JSON file holds, as a dictionary;
        or an xarray dataset of VirtualiZarr, or a mapping of paths to its ``ManifestArray``.
    target
        A repository, its path or URL, or a writable session, which is then not committed here.
    arrays
        For a DataFrame: arrays that are made where they are not there yet, path to a Zarr v3 document, or to
        the arguments of ``zarr.create_array``.
    virtual
        Refer to the chunks. False copies their bytes into the repository.
    base
        What locations in kerchunk files begin with that are not absolute, such as ``s3://``.
    words
        :class:`IngestWords`. A source that fails is a kerchunk file that cannot be read. The paths of a DataFrame
        are whole, and its chunks are written over those that are there.
    """
    options = IngestOptions.of(words)
    framed = is_frame(source)
    if arrays and not framed:
        raise InvalidInputError("arrays= is for a DataFrame; others say what their arrays are")
    if framed and (options.group.strip("/") or options.drop):
        raise InvalidInputError("group= and drop= are not for a DataFrame: choose among its rows")
    reporter = options.reporter(SparkExecutor(spark), "ingest of references")
    file_count, failures = 1, []
    with options.writing(target, "ingest references") as under_way:
        intake = _Intake(
            spark=spark,
            options=options,
            session=under_way.session,
            reporter=reporter,
            virtual=virtual,
        )
        group = join_paths(options.group, "") if not framed else "/"
        if framed:
            intake.take_frame(source, arrays or {})
        elif is_virtual(source):
            intake.take_dataset(source, group)
        elif isinstance(source, Mapping) and is_kerchunk(source):
            content = dict(source)
            intake.take_here(
                group, KerchunkJson.of(options.files, content, drop=options.drop, base=base)
            )
        else:
            places = _places(source, options.group, _FILE_SUFFIXES)
            failures = intake.take_files(places, base)
            file_count = len(places) - len(failures)
    return intake.result(under_way.snapshot_id, file_count, failures)


def grib_index(
    spark: Any,
    source: Any,
    *,
    suffix: str = ".idx",
    source_options: Mapping[str, Any] | None = None,
) -> Any:
    """Read index files of GRIB into a DataFrame with a row for each field.

    Executors read them. A message ends where the next one begins, the last one where its file does.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    source
        A path or URL, or several, of index files; or a DataFrame with a column ``path``.
    suffix
        What the name of an index file has behind that of its GRIB file.
    source_options
        What the file system of the files takes.

    Returns
    -------
    pyspark.sql.DataFrame
        Columns ``location``, ``message``, ``field`` (1 unless a message has several), ``offset``, ``length``,
        ``reference_time``, ``variable``, ``level``, ``forecast``, ``rest`` (what stands behind), ``etag`` and
        ``last_modified`` of the GRIB file. With ``path`` and ``index`` beside them it is a source of
        ``ingest.references``.
    """
    if is_frame(source):
        places = [row["path"] for row in rows_of(source.select("path"))]
    else:
        places = [source] if isinstance(source, str | os.PathLike) else list(source)
    urls = [absolute_url(place) for place in places]
    for url in urls:
        if not url.endswith(suffix) or not suffix:
            raise InvalidInputError(
                f"{url} does not end in {suffix!r}: say with suffix= what index files have behind the names of "
                f"their GRIB files"
            )
    work = GribIndex(files=SourceFiles(dict(source_options or {})), suffix=suffix)
    return frame_over(spark, work, cut(urls), GRIB_MESSAGES)


def _places(source: Any, group: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
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


def _open_all(
    options: IngestOptions,
    places: Sequence[tuple[str, str]],
    open_source: Callable[[str], S | None],
) -> tuple[list[tuple[str, S]], list[tuple[str, str]], list[Failure]]:
    """Open sources; give each with its group, the places of those that are of another kind, and what failed."""
    opened: list[tuple[str, S]] = []
    others: list[tuple[str, str]] = []
    failures: list[Failure] = []
    for url, group in places:
        try:
            source = open_source(url)
        except IcechunkArrowError as error:
            reason = message_of(url, error)
            if options.stops:
                raise InvalidInputError(reason, url=url) from error
            failures.append(Failure(source=url, reason=reason))
            continue
        if source is None:
            others.append((url, group))
        else:
            opened.append((group, source))
    return opened, others, failures


@dataclass(kw_only=True)
class _Intake:
    """An ingest of chunks that is under way."""

    spark: Any
    options: IngestOptions
    session: Session
    reporter: Reporter
    virtual: bool
    arrays: list[str] = field(default_factory=list)
    """What has been made, or written to."""
    chunk_count: int = 0

    def result(
        self, snapshot_id: str | None, file_count: int, failures: Sequence[Failure]
    ) -> Ingested:
        """Tell what came of it."""
        return Ingested(
            snapshot_id=snapshot_id,
            arrays=tuple(self.arrays),
            file_count=file_count,
            chunk_count=self.chunk_count,
            failures=tuple(failures),
        )

    def take_frame(self, frame: Any, arrays: Mapping[str, ArraySpec]) -> None:
        """Take rows that are chunks already."""
        make_arrays(self.session, arrays)
        with kept(chunk_rows_of(frame)) as rows:
            with self.reporter.stage("finding arrays", Amount()):
                paths = rows_of(rows.select("path").distinct())
            self.arrays = sorted(row["path"] for row in paths if row["path"] is not None)
            if len(self.arrays) < len(paths):
                raise InvalidInputError("one of the rows has no path. Nothing was staged.")
            for path in self.arrays:
                self.session.get_array(path)
            self._take(rows, self.arrays)

    def take_dataset(self, source: Any, group: str) -> None:
        """Take what is in memory as columns; variables of a dataset that have values are written by xarray."""
        if not self.virtual:
            raise InvalidInputError("virtual=False copies from DataFrames and kerchunk files only")
        ask = partial(ask_files, SparkExecutor(self.spark), self.options.files)
        dataset = VirtualDataset.of(source, group, ask if self.options.detect_changes else None)
        self._make([(group, dataset.hierarchy)])
        for path in dataset.hierarchy.arrays:
            batches = (each.select(_REFERENCES.names) for each in dataset.references(path))
            reader = pa.RecordBatchReader.from_batches(_REFERENCES, batches)
            self.session.set_references(join_paths(group, path), reader)
            self.chunk_count += dataset.chunk_count(path)
        if dataset.loaded:
            values = source[dataset.loaded].drop_attrs(deep=False)
            values.to_zarr(
                self.session.store, group=group, mode="a", consolidated=False, zarr_format=3
            )
            if attributes := dataset.hierarchy.groups["/"]:  # xarray has written its own
                document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
                self.session.set_document(group, encode_document(document))
            self.arrays += [join_paths(group, str(name)) for name in dataset.loaded]

    def take_here(self, group: str, source: Source) -> None:
        """Take a source whose references are in memory."""
        paths = self._make([(group, source.hierarchy)])
        with self.reporter.stage("reading references", Amount(files=1)):
            batches = list(_chunk_rows(group, source))
        if batches:
            with kept(frame_of_batches(self.spark, batches, CHUNK_ROWS)) as rows:
                self._take(rows, paths)

    def take_sources(self, sources: Sequence[tuple[str, Source]]) -> None:
        """Take sources that are open, each into its group; executors read the references."""
        paths = self._make([(group, source.hierarchy) for group, source in sources])
        parts = [
            (number, path, part)
            for number, (_, source) in enumerate(sources)
            for path in source.hierarchy.arrays
            for part in source.parts(path)
        ]
        if parts:
            work = _ReadReferences(sources=tuple(sources))
            with kept(frame_over(self.spark, work, cut(parts), CHUNK_ROWS)) as rows:
                self._take(rows, paths)

    def take_files(self, places: Sequence[tuple[str, str]], base: str | None) -> list[Failure]:
        """Take kerchunk files: executors open those of JSON, of Parquet the driver reads what arrays there are."""
        options = self.options
        find = partial(KerchunkParquet.find, options.files, drop=options.drop, base=base)
        folders, files, failures = _open_all(options, places, find)
        if files:
            open_file = partial(KerchunkJson.open, options.files, drop=options.drop, base=base)
            failures += self._take_closed(files, open_file)
        if folders:
            self.take_sources(folders)
        if len(failures) == len(places):
            raise InvalidInputError(f"none of the files can be taken; {failures[0].reason}")
        return failures

    def _take_closed(
        self, places: Sequence[tuple[str, str]], open_source: Callable[[str], Source]
    ) -> list[Failure]:
        """Take sources that executors open: their nodes come back, and their chunks stay in the frame."""
        failures: list[Failure] = []
        opened: dict[int, Hierarchy] = {}
        work = _OpenSources(open=open_source)
        parts = cut([(number, *place) for number, place in enumerate(places)])
        with kept(frame_over(self.spark, work, parts, _OPENED)) as rows:
            with self.reporter.stage("reading references", Amount(files=len(places))):
                sources = rows_of(rows.where("source IS NOT NULL").select(*_SOURCE.names))
            for row in sources:
                url = places[row["source"]][0]
                if row["reason"] is None:  # what was pickled is of our own task
                    opened[row["source"]] = pickle.loads(bytes(row["nodes"]))  # noqa: S301
                elif self.options.stops:
                    raise InvalidInputError(row["reason"], url=url)
                else:
                    failures.append(Failure(source=url, reason=row["reason"]))
            paths = self._make([(places[number][1], opened[number]) for number in sorted(opened)])
            if paths:
                chunks = rows.where("path IS NOT NULL").select(*CHUNK_ROWS.names)
                self._take(chunks, paths)
        return failures

    def _make(self, found: Sequence[tuple[str, Hierarchy]]) -> list[str]:
        """Make the nodes of sources; give the paths of the arrays."""
        groups, arrays = placed(found)
        make_nodes(self.session, groups, arrays, overwrite=self.options.overwrite)
        self.arrays += arrays
        return list(arrays)

    def _take(self, rows: Any, paths: list[str]) -> None:
        taker = ChunkTaker(
            session=self.session,
            files=self.options.files,
            virtual=self.virtual,
            asks=self.options.detect_changes,
            reporter=self.reporter,
        )
        self.chunk_count += taker.take(rows, paths)


def _chunk_rows(group: str, source: Source) -> Iterator[pa.RecordBatch]:
    """Give all references of a source as ``CHUNK_ROWS`` has them."""
    for path in source.hierarchy.arrays:
        for part in source.parts(path):
            yield from _with_path(join_paths(group, path), source.references(path, part))


def _with_path(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [repeated(path, batch.num_rows), *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, schema=CHUNK_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadReferences:
    """Reads parts of sources that are open: number of the source, path and part in, ``CHUNK_ROWS`` out."""

    sources: tuple[tuple[str, Source], ...]
    """Each with its group."""

    def __call__(self, parts: Sequence[tuple[int, str, Any]]) -> Iterator[pa.RecordBatch]:
        for number, path, part in parts:
            group, source = self.sources[number]
            yield from _with_path(join_paths(group, path), source.references(path, part))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSources:
    """Opens sources, and reads all of each: number, location and group in, ``_OPENED`` out."""

    open: Callable[[str], Source]

    def __call__(self, places: Sequence[tuple[int, str, str]]) -> Iterator[pa.RecordBatch]:
        for number, location, group in places:
            try:
                source = self.open(location)
                batches = list(_chunk_rows(group, source))
            except IcechunkArrowError as error:
                yield _opened(number, None, message_of(location, error))
                continue
            yield _opened(number, pickle.dumps(source.hierarchy), None)
            for batch in batches:
                blank = [pa.nulls(batch.num_rows, each.type) for each in _SOURCE]
                yield pa.RecordBatch.from_arrays([*blank, *batch.columns], schema=_OPENED)


def _opened(number: int, nodes: bytes | None, reason: str | None) -> pa.RecordBatch:
    values = (number, nodes, reason, *[None] * len(CHUNK_ROWS))
    columns = [from_values([value], each.type) for value, each in zip(values, _OPENED, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_OPENED)
