"""``ingest.references``: tables and files that say where chunks are become arrays of a repository.

Owns what a person may give, and the order of events. What a kerchunk file says is known by ``kerchunk``, what
VirtualiZarr has in memory by ``manifests``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.chunk_rows import CHUNK_ROWS, take_rows
from icechunk_arrow.ingest.hierarchy import hierarchy_of
from icechunk_arrow.ingest.kerchunk import (
    KERCHUNK_ROWS,
    ReadJson,
    ReadRecords,
    RecordArray,
    is_kerchunk,
)
from icechunk_arrow.ingest.manifests import is_virtual, stage_manifests
from icechunk_arrow.ingest.nodes import join_paths, make_nodes, placed
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested
from icechunk_arrow.ingest.source_facts import facts_of
from icechunk_arrow.ingest.spark_frames import (
    frame_of,
    is_frame,
    kept,
    rows_of,
    spark_type,
)
from icechunk_arrow.ingest.words import IngestWords, said
from icechunk_arrow.ingest.zarr_source import places_of
from icechunk_arrow.spark.writing.targets import make_arrays

if TYPE_CHECKING:
    from icechunk_arrow.ingest.hierarchy import Hierarchy
    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.ingest.words import Said
    from icechunk_arrow.spark.writing.targets import ArraySpec, Target
    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["references"]


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
    own = said(words)
    framed = is_frame(source)
    if arrays and not framed:
        raise InvalidInputError("arrays= is for a DataFrame; others say what their arrays are")
    if framed and (own.group.strip("/") or own.drop):
        raise InvalidInputError("group= and drop= are not for a DataFrame: choose among its rows")
    reporter = own.reporter(spark, "ingest of references")
    reader = _Reader(spark=spark, said=own, base=base, reporter=reporter, virtual=virtual)
    with own.writing(target, "ingest references") as under_way:
        session = under_way.session
        if framed:
            taken = reader.take_frame(session, source, arrays or {})
        elif is_virtual(source):
            if not virtual:
                raise InvalidInputError(
                    "virtual=False copies from DataFrames and kerchunk files only"
                )
            group = join_paths(own.group, "")
            taken = stage_manifests(
                session,
                source,
                group,
                overwrite=own.overwrite,
                ask=partial(facts_of, spark, own.files) if own.detect_changes else None,
            )
        elif isinstance(source, Mapping) and is_kerchunk(source):
            taken = reader.take_content(session, source, join_paths(own.group, ""))
        else:
            taken = reader.take_files(session, source, own.group)
    return Ingested(
        snapshot_id=under_way.snapshot_id,
        arrays=tuple(taken["arrays"]),
        file_count=taken.get("files", 1),
        chunk_count=taken["chunks"],
        failures=tuple(taken.get("failures", ())),
    )


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """What all sources have in common."""

    spark: Any
    said: Said
    base: str | None
    reporter: Reporter
    virtual: bool

    @property
    def files(self) -> SourceFiles:
        """What reaches files of references, and of chunks that are copied."""
        return self.said.files

    @property
    def drop(self) -> tuple[str, ...]:
        """Nodes to leave out."""
        return self.said.drop

    def _take(self, session: Any, rows: Any, paths: list[str]) -> int:
        return take_rows(
            rows,
            session,
            paths=paths,
            virtual=self.virtual,
            detect_changes=self.said.detect_changes,
            files=self.files,
            reporter=self.reporter,
        )

    def take_frame(
        self, session: Any, frame: Any, arrays: Mapping[str, ArraySpec]
    ) -> dict[str, Any]:
        """Take rows that are chunks already."""
        make_arrays(session, arrays)
        with kept(_conformed(frame)) as rows:
            with self.reporter.stage("finding arrays", Amount()):
                named = rows_of(rows.select("path").distinct())
            paths = sorted(row["path"] for row in named if row["path"] is not None)
            if len(paths) < len(named):
                raise InvalidInputError("one of the rows has no path. Nothing was staged.")
            for path in paths:
                session.get_array(path)
            return {"arrays": paths, "chunks": self._take(session, rows, paths)}

    def take_content(self, session: Any, content: Mapping[str, Any], group: str) -> dict[str, Any]:
        """Take what a JSON file holds."""
        work = ReadJson(files=self.files, base=self.base, groups={0: group}, drop=self.drop)
        table = pa.Table.from_batches(work.rows(0, dict(content)), schema=KERCHUNK_ROWS)
        # one chunk, as Spark loses rows behind an empty one
        frame = self.spark.createDataFrame(table.combine_chunks())
        return self._take_kerchunk(session, frame, {0: ("", group)})

    def take_files(self, session: Any, source: Any, group: str) -> dict[str, Any]:
        """Take kerchunk files: JSON is read by executors, of Parquet the driver reads what arrays there are."""
        places = dict(enumerate(places_of(source, group, (".json", ".parquet", ".parq"))))
        json_files: dict[int, tuple[str, str]] = {}
        tables: dict[int, tuple[str, str, dict[str, Any]]] = {}
        failed: list[Failure] = []
        for number, (url, to) in places.items():
            try:
                found = self.files.find(f"{url}/.zmetadata")
                if found is None:
                    json_files[number] = url, to
                else:
                    tables[number] = url, to, _record_documents(url, found)
            except IcechunkArrowError as error:
                self._fail(failed, url, error)
        taken: dict[str, Any] = {"arrays": [], "chunks": 0, "failures": failed}
        if json_files:
            _add(taken, self._take_kerchunk(session, self._json_rows(json_files), json_files))
        if tables:
            _add(taken, self._take_records(session, tables))
        taken["files"] = len(places) - len(failed)
        if not taken["files"]:
            raise InvalidInputError(f"none of the files can be taken; {failed[0].reason}")
        return taken

    def _fail(self, failed: list[Failure], url: str, error: IcechunkArrowError) -> None:
        reason = error.message if url in error.message else f"{url}: {error.message}"
        if self.said.stops:
            raise InvalidInputError(reason, url=url) from error
        failed.append(Failure(source=url, reason=reason))

    def _json_rows(self, places: Mapping[int, tuple[str, str]]) -> Any:
        work = ReadJson(
            files=self.files,
            base=self.base,
            groups={number: group for number, (_, group) in places.items()},
            drop=self.drop,
        )
        table = pa.Table.from_pydict(
            {
                "source": from_values(list(places), pa.int64()),
                "location": from_values([url for url, _ in places.values()], pa.string()),
            }
        )
        return frame_of(self.spark, table).mapInArrow(work, spark_type(KERCHUNK_ROWS))

    def _take_kerchunk(
        self, session: Any, frame: Any, places: Mapping[int, tuple[str, str]]
    ) -> dict[str, Any]:
        """Make arrays of the documents among some rows, and take the chunks."""
        from pyspark.sql import functions as sf  # noqa: PLC0415  (an extra, and slow to import)

        failed: list[Failure] = []
        with kept(frame) as rows:
            with self.reporter.stage("reading references", Amount(files=len(places))):
                said = rows_of(
                    rows.where(sf.col("key").isNotNull() | sf.col("reason").isNotNull()).select(
                        "source", "key", "reason", "data"
                    )
                )
            documents: dict[int, dict[str, bytes]] = {}
            for row in said:
                if row["reason"] is None:
                    documents.setdefault(row["source"], {})[row["key"]] = bytes(row["data"])
                elif self.said.stops:
                    raise InvalidInputError(row["reason"], url=places[row["source"]][0])
                else:
                    failed.append(Failure(source=places[row["source"]][0], reason=row["reason"]))
            found = [
                (places[number][1], hierarchy_of(each, self.drop))
                for number, each in sorted(documents.items())
            ]
            paths = self._make(session, found)
            chunks = rows.where(sf.col("path").isNotNull()).select(*CHUNK_ROWS.names)
            count = self._take(session, chunks, paths) if paths else 0
        return {"arrays": paths, "chunks": count, "failures": failed}

    def _make(self, session: Any, found: list[tuple[str, Hierarchy]]) -> list[str]:
        groups, arrays = placed(found)
        make_nodes(session, groups, arrays, overwrite=self.said.overwrite)
        return list(arrays)

    def _take_records(
        self, session: Any, tables: Mapping[int, tuple[str, str, dict[str, Any]]]
    ) -> dict[str, Any]:
        found = {
            number: (group, hierarchy_of(content["metadata"], self.drop))
            for number, (_, group, content) in tables.items()
        }
        paths = self._make(session, list(found.values()))
        arrays: dict[str, RecordArray] = {}
        pieces: list[tuple[int, str, int]] = []
        for number, (group, each) in found.items():
            url, _, content = tables[number]
            for path, one in each.arrays.items():
                array = RecordArray(
                    path=join_paths(group, path),
                    folder=f"{url}{path}".rstrip("/"),
                    record_size=content["record_size"],
                    chunk_counts=grid_of(one.document).chunk_counts,
                )
                arrays[array.path] = array
                pieces += [(number, array.path, record) for record in range(array.file_count)]
        if not pieces:
            return {"arrays": paths, "chunks": 0}
        table = pa.Table.from_pydict(
            {
                "source": from_values([number for number, _, _ in pieces], pa.int64()),
                "array": from_values([path for _, path, _ in pieces], pa.string()),
                "record": from_values([record for _, _, record in pieces], pa.int64()),
            }
        )
        work = ReadRecords(files=self.files, base=self.base, arrays=arrays)
        frame = frame_of(self.spark, table)
        with kept(frame.mapInArrow(work, spark_type(KERCHUNK_ROWS))) as rows:
            count = self._take(session, rows.select(*CHUNK_ROWS.names), paths)
        return {"arrays": paths, "chunks": count}


def _add(taken: dict[str, Any], more: Mapping[str, Any]) -> None:
    taken["arrays"] += more["arrays"]
    taken["chunks"] += more["chunks"]
    taken["failures"] += more.get("failures", [])


def _record_documents(url: str, data: bytes) -> dict[str, Any]:
    """Read what arrays a folder of Parquet files is of, and how many references each file has."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise InvalidInputError(f"{url}/.zmetadata is not JSON: {error}", url=url) from error
    match content:
        case {"record_size": int(size), "metadata": dict()} if size > 0:
            found: dict[str, Any] = content
        case _:
            raise InvalidInputError(
                f"{url} is no folder of kerchunk's: its .zmetadata has no record_size; a Zarr store is taken "
                f"by ingest.zarr",
                url=url,
            )
    return found


def _conformed(frame: Any) -> Any:
    """Give a frame the columns of rows of chunks."""
    from pyspark.sql import functions as sf  # noqa: PLC0415
    from pyspark.sql.types import TimestampNTZType  # noqa: PLC0415

    needed = ("path", "index", "location", "offset", "length")
    for name in needed:
        if name not in frame.columns:
            raise InvalidInputError(
                f"a DataFrame of references needs the columns {', '.join(needed)}; it has {frame.columns}"
            )
    wanted = {each.name: each.dataType for each in spark_type(CHUNK_ROWS)}
    given = {each.name: each.dataType for each in frame.schema}
    for name, kind in given.items():
        if name in wanted and not _fits(kind, wanted[name]):
            raise InvalidInputError(
                f"the column {name!r} of references is {kind.simpleString()}, and {wanted[name].simpleString()} "
                f"is wanted: cast it, so that nothing is cut or rounded unseen"
            )
    columns = {
        name: sf.col(name) if name in given else sf.lit(None).cast(kind)
        for name, kind in wanted.items()
    }
    if isinstance(
        given.get("last_modified"), TimestampNTZType
    ):  # a time without a zone is one of UTC
        columns["last_modified"] = sf.concat(sf.col("last_modified").cast("string"), sf.lit("Z"))
    return frame.select(*(columns[name].cast(kind).alias(name) for name, kind in wanted.items()))


def _fits(given: Any, wanted: Any) -> bool:
    """Whether a column can be taken for what is wanted without another meaning."""
    from pyspark.sql import types as st  # noqa: PLC0415

    if isinstance(given, st.NullType):
        return True
    if isinstance(wanted, st.ArrayType):
        return isinstance(given, st.ArrayType) and _fits(given.elementType, wanted.elementType)
    if isinstance(wanted, st.LongType):
        whole = isinstance(given, st.DecimalType) and given.scale == 0
        return whole or isinstance(given, st.IntegralType)
    if isinstance(wanted, st.TimestampType):
        return isinstance(given, st.TimestampType | st.TimestampNTZType)
    return isinstance(given, type(wanted))
