"""Index files of GRIB, as ``wgrib2`` writes them: a table of messages, with what each is about.

Owns reading such files. Which message is which chunk of which array is for the person to say, in SQL: the result of
that goes to ``ingest.references``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.errors import CorruptFileError, InvalidInputError
from icechunk_arrow.ingest.spark_frames import frame_of, is_frame, rows_of, spark_type
from icechunk_arrow.spark.writing.tasks import telling_errors
from icechunk_arrow.storage.source_files import SourceFiles, absolute_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["GRIB_MESSAGES", "grib_index"]

GRIB_MESSAGES = pa.schema(
    [
        ("location", pa.string()),
        ("message", pa.int64()),
        ("field", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("reference_time", pa.timestamp("us", "UTC")),
        ("variable", pa.string()),
        ("level", pa.string()),
        ("forecast", pa.string()),
        ("rest", pa.string()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "UTC")),
    ]
)
"""A row is a field; several of one message stand in the same range of the file."""
_LINE = re.compile(
    r"(?P<message>\d+)(?:\.(?P<field>\d+))?:(?P<offset>\d+):d=(?P<time>\d{4,14}):"
    r"(?P<variable>[^:]*):(?P<level>[^:]*):(?P<forecast>[^:]*):?(?P<rest>.*)"
)
_TIME = "00000101000000"
"""What stands in for parts of a time that are not said."""


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
    table = pa.Table.from_pydict(
        {
            "position": from_values(range(len(urls)), pa.int64()),
            "index_url": from_values(urls, pa.string()),
        }
    )
    work = _ReadIndexes(files=SourceFiles(dict(source_options or {})), suffix=suffix)
    return frame_of(spark, table).mapInArrow(work, spark_type(GRIB_MESSAGES))


@dataclass(frozen=True, kw_only=True)
class _ReadIndexes:
    """Batches of ``index_url`` in, ``GRIB_MESSAGES`` out."""

    files: SourceFiles
    suffix: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_errors():
            for batch in batches:
                for url in batch.column("index_url").to_pylist():
                    yield self._read(url)

    def _read(self, url: str) -> pa.RecordBatch:
        file = self.files.facts(url.removesuffix(self.suffix))
        found = _fields(url, self.files.read(url).decode(errors="replace"))
        offsets = sorted({row["offset"] for row in found})
        ends = dict(zip(offsets, [*offsets[1:], file.size_bytes], strict=True))
        if offsets and offsets[-1] >= file.size_bytes:
            raise CorruptFileError(
                f"{url} has a message at {offsets[-1]}, and {file.url} has {file.size_bytes} bytes"
            )
        made = {
            "location": file.url,
            "etag": file.etag,
            "last_modified": file.last_modified if file.etag is None else None,
        }
        rows = [row | made | {"length": ends[row["offset"]] - row["offset"]} for row in found]
        columns = []
        for each in GRIB_MESSAGES:
            values = [row[each.name] for row in rows]
            if pa.types.is_timestamp(each.type):
                columns.append(from_values(values, pa.int64()).view(each.type))
            else:
                columns.append(from_values(values, each.type))
        return pa.RecordBatch.from_arrays(columns, schema=GRIB_MESSAGES)


def _fields(url: str, text: str) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(
                f"{url} is no index of GRIB: line {number} is {line[:80]!r}, where "
                f"number:offset:d=time:variable:level:forecast: was expected"
            )
        found.append(
            {
                "message": int(match["message"]),
                "field": int(match["field"] or 1),
                "offset": int(match["offset"]),
                "reference_time": _micros(url, match["time"]),
                "variable": match["variable"],
                "level": match["level"],
                "forecast": match["forecast"],
                "rest": match["rest"],
            }
        )
    return found


def _micros(url: str, text: str) -> int:
    whole = text + _TIME[len(text) :]
    try:
        moment = datetime.strptime(whole, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError as error:
        raise CorruptFileError(f"{url} has a time that there is not: d={text}") from error
    return int(moment.timestamp()) * 1_000_000
