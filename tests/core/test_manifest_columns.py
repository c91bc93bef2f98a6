"""The columns of a manifest: what derives from their one declaration goes together."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from icechunk_arrow.core import manifest_columns as declared
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.core.manifest_columns import COLUMNS, IN_TABLES, schema_of
from icechunk_arrow.tables.schemas import TABLES

FORMS = (declared.WIDE, declared.HAS_CHECKS, declared.HAS_CRC, declared.HAS_SUMS)


def test_each_column_is_declared_once() -> None:
    """With a meaning, and with words where it stands in a table."""
    names = [each.name for each in COLUMNS]

    assert len(set(names)) == len(names)
    assert all(each.meaning for each in COLUMNS)
    assert all(bool(each.in_words) == (each.in_tables is not None) for each in COLUMNS)


@pytest.mark.parametrize("chosen", list(itertools.product([False, True], repeat=len(FORMS))))
def test_a_file_has_the_columns_of_its_form(chosen: tuple[bool, ...]) -> None:
    """Those that every file has, and those whose flag is set; sums bring checksums along."""
    form = sum(flag for flag, wanted in zip(FORMS, chosen, strict=True) if wanted)
    wide, checks, crc, sums = chosen
    schema = schema_of(form)

    assert schema.names == [
        *("id", "array_id", "coord", "inline_data", "chunk_file", "offset", "length"),
        *(("etag", "last_modified") if checks else ()),
        *(("crc32c",) if crc or sums else ()),
        *(("sums_crc32c",) if sums else ()),
    ]
    assert schema.field("length").type == (pa.uint64() if wide else pa.uint32())


def test_references_and_tables_have_what_is_declared() -> None:
    """A reference has a member for each column of its own, and the table of chunks takes over what it should."""
    in_memory = declared.CHUNK_SCHEMA.names

    assert in_memory == [each.name for each in COLUMNS if each.name in in_memory]
    assert len(ChunkRef._fields) == len(in_memory) - 2
    assert ChunkRef._fields[2:] == tuple(in_memory[4:])
    shown = TABLES["chunks"]
    assert [name for name in shown.names if name in in_memory] == [each.name for each in IN_TABLES]
    assert all(shown.field(each.name).type == each.in_tables for each in IN_TABLES)
    assert "crc32c" in shown.names
