"""Index files of GRIB, as ``wgrib2`` writes them: a table of messages, with what each is about.

Owns reading such files. Which message is which chunk of which array is for the caller to say, in SQL: the result of
that goes to ``ingest.references``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_arrow.core.columns import from_values
from icechunk_arrow.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icechunk_arrow.storage.source_files import SourceFiles

GRIB_MESSAGES = pa.schema(
    [
        ("location", pa.string()),
        *((name, pa.int64()) for name in ("message", "field", "offset", "length")),
        ("reference_time", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in ("variable", "level", "forecast", "rest", "etag")),
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


@dataclass(frozen=True, kw_only=True)
class GribIndex:
    """Reads index files: URLs in, ``GRIB_MESSAGES`` out. A message ends where the next one or the file does."""

    files: SourceFiles
    suffix: str
    """What the name of an index file has behind that of its GRIB file."""

    def __call__(self, urls: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some."""
        return map(self.read, urls)

    def read(self, url: str) -> pa.RecordBatch:
        """Read one."""
        file = self.files.facts(url.removesuffix(self.suffix))
        fields = _fields(url, self.files.read(url).decode(errors="replace"))
        offsets = sorted({row["offset"] for row in fields})
        ends = dict(zip(offsets, [*offsets[1:], file.size_bytes], strict=True))
        if offsets and offsets[-1] >= file.size_bytes:
            raise CorruptFileError(
                f"{url} has a message at {offsets[-1]}, and {file.url} has {file.size_bytes} bytes"
            )
        of_file = {
            "location": file.url,
            "etag": file.etag,
            "last_modified": file.last_modified if file.etag is None else None,
        }
        rows = [row | of_file | {"length": ends[row["offset"]] - row["offset"]} for row in fields]
        columns = []
        for each in GRIB_MESSAGES:
            values = [row[each.name] for row in rows]
            if pa.types.is_timestamp(each.type):
                columns.append(from_values(values, pa.int64()).view(each.type))
            else:
                columns.append(from_values(values, each.type))
        return pa.RecordBatch.from_arrays(columns, schema=GRIB_MESSAGES)


def _fields(url: str, text: str) -> list[dict[str, Any]]:
    fields = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(
                f"{url} is no index of GRIB: line {number} is {line[:80]!r}, where "
                f"number:offset:d=time:variable:level:forecast: was expected"
            )
        fields.append(
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
    return fields


def _micros(url: str, text: str) -> int:
    whole = text + _TIME[len(text) :]
    try:
        moment = datetime.strptime(whole, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError as error:
        raise CorruptFileError(f"{url} has a time that there is not: d={text}") from error
    return int(moment.timestamp()) * 1_000_000
