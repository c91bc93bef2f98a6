"""Virtual chunks: writing references in any form, reading them only where it is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

from icechunk_arrow import (
    InvalidInputError,
    NodeNotFoundError,
    NotAuthorizedError,
    Repository,
    RepositoryConfig,
    SourceChangedError,
    VirtualChunkSpec,
)
from icechunk_arrow.core.locations import fault_of_location
from tests.engine.bulk_place import BulkPlace, in_memory, table_of, view_of
from tests.places import make_array, read_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Source:
    """A file of int32 chunks of 2 × 2, beside a repository that may read it."""

    def __init__(self, folder: Path) -> None:
        self.values = np.arange(64, dtype="<i4").reshape(4, 4, 2, 2)
        self.path = folder / "source" / "file.bin"
        self.path.parent.mkdir()
        self.path.write_bytes(self.values.tobytes())
        self.url = f"file://{self.path}"
        self.prefix = f"file://{self.path.parent}/"
        self.repo = Repository.create(folder / "repo", authorize_virtual_chunk_access=[self.prefix])
        self.expected = self.values.transpose(0, 2, 1, 3).reshape(8, 8)

    def table(self, **columns: Any) -> pa.Table:
        """References to every chunk; ``columns`` replace or add."""
        index = [[i, j] for i in range(4) for j in range(4)]
        return pa.table(
            {
                "index": pa.array(index, pa.list_(pa.int64())),
                "location": [self.url] * 16,
                "offset": pa.array(range(0, 256, 16), pa.int64()),
                "length": pa.array([16] * 16, pa.int32()),
            }
            | columns
        )


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A source file with a repository."""
    return Source(tmp_path)


def test_references_are_read_through_zarr(source: Source) -> None:
    """References from a table, in any order, read as the array they describe; before and after commit."""
    session = source.repo.writable_session("main")
    array = make_array(session.store)
    order = np.random.default_rng(1).permutation(16)
    session.set_references("/a", source.table().take(pa.array(order)))

    assert (array[...] == source.expected).all()
    session.commit("references")
    assert (read_array(source.repo) == source.expected).all()


def test_the_index_may_be_columns(source: Source) -> None:
    """One integer column per dimension does as well, by position or by the dimension's name."""
    index = np.indices((4, 4)).reshape(2, -1)
    for names in (("index_0", "index_1"), ("y", "x")):
        session = source.repo.writable_session("main")
        array = make_array(session.store, overwrite=True, dimension_names=("y", "x"))
        columns = {name: pa.array(index[d]) for d, name in enumerate(names)}
        table = source.table(**columns).drop_columns(["index"])
        session.set_references("/a", table)
        assert (array[...] == source.expected).all()


def test_several_arrays_at_once(source: Source) -> None:
    """A path column spreads one table over arrays, all or nothing."""
    session = source.repo.writable_session("main")
    for name in ("a", "b"):
        make_array(session.store, name)
    both = pa.concat_tables([source.table(path=["/a"] * 16), source.table(path=["/b"] * 16)])
    session.set_references(None, both)
    session.commit("both")

    assert (read_array(source.repo, "a") == source.expected).all()
    assert (read_array(source.repo, "b") == source.expected).all()
    session = source.repo.writable_session("main")
    with pytest.raises(NodeNotFoundError, match="/c"):
        session.set_references(None, source.table(path=["/a"] * 15 + ["/c"]))
    assert not session.has_uncommitted_changes


def test_payloads_that_references_cover_are_not_written(source: Source, tmp_path: Path) -> None:
    """References of any number of arrays take the place of the bytes that wait there, and of no others."""
    repo = Repository.create(
        tmp_path / "packed",
        config=RepositoryConfig(inline_chunk_threshold_bytes=0),
        authorize_virtual_chunk_access=[source.prefix],
    )
    session = repo.writable_session("main")
    for name in ("a", "b", "c"):
        make_array(session.store, name)[...] = 1
    parts = [source.table(path=[f"/{name}"] * 16).slice(0, 8) for name in "ab"]
    session.set_references(None, pa.concat_tables(parts))
    session.commit("both")

    [written] = (tmp_path / "packed" / "c").rglob("*")
    assert written.stat().st_size == (3 * 16 - 2 * 8) * 16
    expected = np.ones_like(source.expected)
    assert (read_array(repo, "c") == expected).all()
    expected[:4] = source.expected[:4]
    for name in "ab":
        assert (read_array(repo, name) == expected).all()


def test_references_lie_over_what_was_there(source: Source) -> None:
    """Later writes win: a chunk over a reference, references over chunks."""
    session = source.repo.writable_session("main")
    array = make_array(session.store)
    array[...] = 1
    session.set_references("/a", source.table())
    array[0:2, 0:2] = 2
    session.set_references("/a", source.table().slice(15))
    array[2:4, 0:2] = 3
    expected = source.expected.copy()
    expected[0:2, 0:2], expected[2:4, 0:2] = 2, 3

    assert (array[...] == expected).all()
    session.commit("mixed")
    assert (read_array(source.repo) == expected).all()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("outside", {"index": [[0, 0]] * 15 + [[4, 0]]}, r"row 15.*outside"),
    ("negative index", {"index": [[0, -1]] * 16}, r"row 0.*negative"),
    ("wrong dimensions", {"index": [[0]] * 16}, r"row 0.*2 dimensions"),
    ("missing index", {"index": [[0, 0]] * 3 + [None] * 13}, r"row 3"),
    ("twice", {"index": [[0, 0], [0, 1], [0, 0]] + [[1, 0]] * 13}, r"row 2.*twice"),
    ("negative offset", {"offset": [0, -1] + [0] * 14}, r"row 1.*negative"),
    ("overflow", {"offset": [2**63 - 1] * 16}, r"row 0.*beyond"),
    ("huge", {"offset": pa.array([2**64 - 1] * 16, pa.uint64())}, r"row 0.*beyond"),
    ("missing length", {"length": [1, None] + [1] * 14}, r"row 1.*missing"),
    ("no numbers", {"length": ["1"] * 16}, r"length.*whole numbers"),
    ("relative", {"location": ["a/b"] * 16}, r"row 0.*absolute"),
    ("bare path", {"location": ["/etc/passwd"] * 16}, r"row 0.*absolute"),
    ("traversing", {"location": ["file:///a/../etc/passwd"] * 16}, r"row 0.*'\.\.'"),
    ("chained", {"location": ["zip://x::file:///y"] * 16}, r"row 0"),
    ("missing location", {"location": ["file:///x"] * 2 + [None] * 14}, r"row 2.*missing"),
    ("text time", {"last_modified": ["now"] * 16}, r"timestamps"),
]


@pytest.mark.parametrize(("change", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_rows_are_refused_all_or_nothing(
    source: Source, change: dict[str, Any], message: str
) -> None:
    """A table with one bad row stages nothing, and the error names the first bad row and the fact."""
    session = source.repo.writable_session("main")
    make_array(session.store)
    before = session.status()
    with pytest.raises(InvalidInputError, match=message):
        session.set_references("/a", source.table(**change))

    assert session.status() == before


def test_reading_needs_permission(source: Source) -> None:
    """Without an allowed prefix the location is refused, with the way out; writing needed none."""
    session = source.repo.writable_session("main")
    make_array(session.store)
    session.set_references("/a", source.table())
    session.commit("references")
    closed = Repository.open(source.repo.url)
    with pytest.raises(NotAuthorizedError, match="authorize_virtual_chunk_access"):
        read_array(closed)
    near = source.prefix.rstrip("/")[:-1] + "/"
    with pytest.raises(NotAuthorizedError):
        read_array(Repository.open(source.repo.url, authorize_virtual_chunk_access=[near]))
    for prefix in (source.prefix, source.prefix.rstrip("/"), "file:///"):
        opened = Repository.open(source.repo.url, authorize_virtual_chunk_access={prefix: None})
        assert (read_array(opened) == source.expected).all()


def test_a_changed_source_is_an_error(source: Source) -> None:
    """Where a time is recorded, a file modified after it is refused; so is one with another ETag."""
    modified = datetime.fromtimestamp(source.path.stat().st_mtime, UTC) + timedelta(seconds=1)
    session = source.repo.writable_session("main")
    make_array(session.store)
    session.set_references("/a", source.table(last_modified=[modified] * 16))
    session.commit("with times")
    assert (read_array(source.repo) == source.expected).all()

    later = modified.timestamp() + 100
    os.utime(source.path, (later, later))
    with pytest.raises(SourceChangedError, match="modified"):
        read_array(source.repo)
    session = source.repo.writable_session("main")
    session.set_references("/a", source.table(etag=["other"] * 16))
    session.commit("with etags")
    with pytest.raises(SourceChangedError, match="ETag"):
        read_array(source.repo)


def test_a_cut_source_is_an_error(source: Source) -> None:
    """A file that ends too early gives an error, never fewer bytes."""
    session = source.repo.writable_session("main")
    make_array(session.store)
    session.set_references("/a", source.table())
    session.commit("references")
    source.path.write_bytes(source.values.tobytes()[:100])
    with pytest.raises(SourceChangedError, match="ends"):
        read_array(source.repo)


def test_icechunks_ways_to_set_references(source: Source) -> None:
    """``set_virtual_ref``, ``set_virtual_refs`` and ``set_virtual_refs_arr`` do the same."""
    index = [(i, j) for i in range(4) for j in range(4)]
    session = source.repo.writable_session("main")
    for name in ("a", "b", "c"):
        make_array(session.store, name)
    for n, (i, j) in enumerate(index):
        session.store.set_virtual_ref(f"a/c/{i}/{j}", source.url, offset=16 * n, length=16)
    specs = [
        VirtualChunkSpec(index=at, location=source.url, offset=16 * n, length=16)
        for n, at in enumerate(index)
    ]
    session.store.set_virtual_refs("/b", specs)
    session.store.set_virtual_refs_arr(
        "/c",
        (4, 4),
        [source.url] * 15 + [""],
        np.arange(16, dtype="u8") * 16,
        np.full(16, 16, "u8"),
    )
    session.commit("three ways")

    assert (read_array(source.repo, "a") == source.expected).all()
    assert (read_array(source.repo, "b") == source.expected).all()
    last = read_array(source.repo, "c")
    assert (last[6:, 6:] == 0).all()
    assert (last[:6] == source.expected[:6]).all()
    session = source.repo.writable_session("main")
    with pytest.raises(NotAuthorizedError):
        session.store.set_virtual_ref(
            "a/c/0/0", "s3://other/x", offset=0, length=1, validate_container=True
        )
    with pytest.raises(InvalidInputError, match="outside"):
        session.store.set_virtual_ref("a/c/9/9", source.url, offset=0, length=1)


def test_a_length_beyond_four_gigabytes(source: Source) -> None:
    """One huge contiguous variable is a reference like any other: the manifest becomes wide."""
    session = source.repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), chunks=(1,), dtype="i4")
    table = pa.table(
        {
            "index": [[0], [1]],
            "location": [source.url] * 2,
            "offset": [0, 5_000_000_000],
            "length": [5_000_000_000, 16],
        }
    )
    session.set_references("/a", table)
    session.commit("huge")
    view = source.repo.readonly_session("main")
    found = view.find_chunk(view.get_array("/a"), (0,))

    assert found is not None
    assert not isinstance(found, bytes)
    assert found.length == 5_000_000_000


def _as_dataset(table: pa.Table, folder: Path) -> Any:
    pq.write_table(table.slice(0, 7), folder / "1.parquet", row_group_size=3)
    pq.write_table(table.slice(7), folder / "2.parquet", row_group_size=4)
    return ds.dataset([folder / "1.parquet", folder / "2.parquet"])


def _as_relation(table: pa.Table, _: Path) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(table)


class Foreign:
    """A table of some library that knows the Arrow C stream interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "table": lambda table, _: table,
    "table in pieces": lambda table, _: pa.concat_tables([table.slice(0, 5), table.slice(5)]),
    "batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "reader": lambda table, _: table.to_reader(max_chunksize=5),
    "dataset": _as_dataset,
    "scanner": lambda table, folder: _as_dataset(table, folder).scanner(),
    "memory dataset": lambda table, _: ds.dataset(table),
    "c stream": lambda table, _: Foreign(table),
    "duckdb": _as_relation,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_of_arrow_data_does(kind: str, source: Source, tmp_path: Path) -> None:
    """Tables, batches, readers, datasets and whatever else has Arrow data can be given; so with other columns."""
    session = source.repo.writable_session("main")
    array = make_array(session.store)
    more = {"note": ["not ours"] * 16, "kind": [{"a": 1}] * 16, "weight": [1.5] * 16}
    session.set_references("/a", SOURCES[kind](source.table(**more), tmp_path))

    assert (array[...] == source.expected).all()


@pytest.mark.parametrize("given_", [b"bytes", [1, 2], {"index": [1]}, pa.chunked_array([[1, 2]])])
def test_what_is_no_table_is_refused(source: Source, given_: Any) -> None:
    """Something else is refused by the name of its type."""
    session = source.repo.writable_session("main")
    make_array(session.store)
    with pytest.raises(InvalidInputError, match=f"not {type(given_).__name__}"):
        session.set_references("/a", given_)


def test_nothing_is_imported_for_sources_that_are_not_used() -> None:
    """Neither pyarrow.dataset nor duckdb nor pandas is loaded by staging a table."""
    code = (
        "import sys\n"
        "from tests.engine.bulk_place import BulkPlace, table_of, view_of\n"
        "place = BulkPlace({'/a': view_of('/a', 1, (9,))})\n"
        "place.stage(None, table_of([('/a', (i,), i) for i in (3, 1, 2)]))\n"
        "print(sorted({'pandas', 'pyarrow.dataset', 'duckdb'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def two_arrays() -> BulkPlace:
    """A place with an array of two dimensions, one of one, and a scalar."""
    return BulkPlace(
        {
            "/a": view_of("/a", 1, (4, 3), ("y", "x")),
            "/b": view_of("/b", 2, (5,), ("x",)),
            "/s": view_of("/s", 3, ()),
        }
    )


MIXED = [
    ("/b", (4,), 0),
    ("/a", (3, 2), 1),
    ("/s", (), 2),
    ("/b", (0,), 3),
    ("/a", (0, 1), 4),
    ("/a", (3, 1), 5),
]


def test_arrays_of_any_dimensions_come_together() -> None:
    """Arrays of different dimensions, a scalar among them, may alternate row by row."""
    place = two_arrays()
    staged = place.stage(None, table_of(MIXED))

    assert place.read(staged) == {(path, chunk): number for path, chunk, number in MIXED}
    assert [each.node_id for each in staged] == [2, 1, 3]


def test_each_array_has_its_columns() -> None:
    """With a column per dimension each array reads those it has; what others leave out may be missing."""
    place = two_arrays()
    table = table_of(MIXED).drop_columns(["index"])
    y = pa.array([None, 3, None, None, 0, 3], pa.int8())
    x = pa.array([4, 2, None, 0, 1, 1], pa.uint64())
    staged = place.stage(None, table.append_column("y", y).append_column("x", x))

    assert place.read(staged) == {(path, chunk): number for path, chunk, number in MIXED}
    with pytest.raises(
        InvalidInputError, match="row 4 of the references for '/a': the y is missing"
    ):
        place.stage(
            None,
            table.append_column("y", pa.array([0, 1, 1, 1, None, 1])).append_column("x", x),
        )
    with pytest.raises(InvalidInputError, match=r"neither a column 'index' nor .*'y'"):
        place.stage(None, table.append_column("x", x))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8()),
        pa.large_list(pa.uint16()),
        pa.list_(pa.int32(), 2),
        pa.list_view(pa.int64()),
    ],
    ids=str,
)
def test_the_index_may_be_any_kind_of_list(kind: pa.DataType) -> None:
    """Lists of any Arrow type and any integers tell a chunk's place, cut out of a larger table too."""
    place = two_arrays()
    rows = [("/a", (i, j), 3 * i + j) for i in range(4) for j in range(3)]
    table = table_of(rows, paths=False)
    at = table.schema.get_field_index("index")
    values = pa.array([list(chunk) for _, chunk, _ in rows], kind)
    table = table.set_column(at, "index", values).slice(5)

    assert place.read(place.stage("/a", table)) == {(p, c): n for p, c, n in rows[5:]}
    missing = pa.array([[0, 0], [0, 1], None, [1, 1], [1, 2], [2, 0], [2, 1]], kind)
    with pytest.raises(InvalidInputError, match=r"row 2 .* the index is None"):
        place.stage("/a", table.set_column(at, "index", missing))


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_texts_may_have_any_type(kind: pa.DataType) -> None:
    """Paths, locations and ETags may be any kind of text, dictionaries included."""
    place = two_arrays()
    table = table_of(MIXED).append_column("etag", pa.array(["e", None, "e", "f", "e", None]))
    for name in ("path", "location", "etag"):
        at = table.schema.get_field_index(name)
        plain = table[name].combine_chunks()
        as_kind = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain
        table = table.set_column(at, name, as_kind.cast(kind))
    staged = place.stage(None, table.slice(1))

    assert place.read(staged) == {(path, chunk): number for path, chunk, number in MIXED[1:]}
    by_id = {each.node_id: in_memory(each) for each in staged}
    assert by_id[1]["etag"].to_pylist() == ["e", None, None]
    assert by_id[2]["etag"].to_pylist() == ["f"]


def test_dictionaries_may_be_odd() -> None:
    """A dictionary may name a path twice, hold paths that no row has, and differ from batch to batch."""
    place = two_arrays()
    rows = [("/b", (i,), i) for i in (3, 0, 2, 1)]
    plain = table_of(rows, paths=False)
    batches: list[pa.RecordBatch] = []
    for codes, paths in (([0, 2], ["/b", "/nowhere", "/b"]), ([1, 1], ["/a", "/b"])):
        path = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(paths))
        part = plain.slice(2 * len(batches), 2).append_column("path", path)
        batches.append(part.combine_chunks().to_batches()[0])
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)

    assert place.read(place.stage(None, reader)) == {(path, chunk): n for path, chunk, n in rows}
    missing = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0]), pa.array(["/b", None]))
    with pytest.raises(InvalidInputError, match=r"row 2 .*path is missing"):
        place.stage(None, plain.append_column("path", missing))


def test_nothing_gives_nothing(source: Source) -> None:
    """An empty source is fine where its columns and its array are, and changes nothing."""
    place = two_arrays()
    empty = table_of([])
    assert place.stage(None, empty) == []
    assert place.stage("/a", empty.drop_columns(["path"]).to_reader()) == []
    with pytest.raises(NodeNotFoundError, match="/c"):
        place.stage("/c", empty.drop_columns(["path"]))
    with pytest.raises(InvalidInputError, match="no column 'length'"):
        place.stage("/a", empty.drop_columns(["path", "length"]))

    session = source.repo.writable_session("main")
    make_array(session.store)
    session.commit("array")
    session = source.repo.writable_session("main")
    session.set_references("/a", source.table().slice(0, 0))
    assert not session.has_uncommitted_changes


def test_the_first_wrong_row_is_named_whatever_is_wrong() -> None:
    """Of several wrong rows the one that stands first in the input is named, in whichever array and column."""
    place = two_arrays()
    table = table_of(MIXED)
    location = ["s3://b/x"] * 4 + ["x", "y"]
    index = [[4], [3, 2], [], [5], [0, 1], [3, 1]]
    offset = [0, 0, 0, 0, 0, -1]
    changes = {
        "offset": pa.array(offset, pa.int64()),
        "location": pa.array(location),
        "index": pa.array(index, pa.list_(pa.uint64())),
    }
    for (name, column), message in zip(
        changes.items(),
        (
            r"row 5 of the references for '/a': the offset is negative",
            r"row 4 of the references for '/a': the location 'x' cannot be used: it is not an abs",
            r"row 3 of the references for '/b': chunk \(5,\) is outside the grid \(5,\)",
        ),
        strict=True,
    ):
        table = table.set_column(table.schema.get_field_index(name), name, column)
        with pytest.raises(InvalidInputError, match=message + ".*Nothing was staged"):
            place.stage(None, table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"location": [1] * 6}, "'location' must hold text, not int64"),
        ({"path": [1] * 6}, "'path' must hold text, not int64"),
        ({"etag": [b"e"] * 6}, "'etag' must hold text, not binary"),
        ({"index": [0] * 6}, "'index' must hold lists, not int64"),
        ({"index": [["0"]] * 6}, "'index' must hold whole numbers, not string"),
        ({"offset": [None] * 6}, "'offset' must hold whole numbers, not null"),
    ],
)
def test_columns_of_a_wrong_type_are_named(change: dict[str, list[Any]], message: str) -> None:
    """A column that cannot be what it is named is an error that says what it holds."""
    table = table_of(MIXED)
    for name, values in change.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(values))
    with pytest.raises(InvalidInputError, match=message):
        two_arrays().stage(None, table)


def test_a_column_that_is_there_twice_is_refused() -> None:
    """Two columns of one name are an error where it is a name that matters."""
    table = table_of(MIXED)
    assert two_arrays().stage(None, table.append_column("x", table["offset"]))
    other = pa.array(["x"] * 6)
    assert two_arrays().stage(None, table.append_column("n", other).append_column("n", other))
    with pytest.raises(InvalidInputError, match="'offset' twice"):
        two_arrays().stage(None, table.append_column("offset", table["offset"]))


def test_how_duplicates_are_treated_must_be_known() -> None:
    """Another word than error or last is refused."""
    with pytest.raises(InvalidInputError, match="'error' or 'last', not 'first'"):
        two_arrays().stage(None, table_of(MIXED), duplicates="first")


def test_the_message_says_how_to_keep_the_last() -> None:
    """A chunk that is there twice is named by the later row, with the way out, which works."""
    place = two_arrays()
    rows = [*MIXED, ("/a", (0, 1), 6)]
    with pytest.raises(InvalidInputError, match=r"row 6 .*'/a'.*\(0, 1\).*duplicates='last'"):
        place.stage(None, table_of(rows))
    assert place.read(place.stage(None, table_of(rows), duplicates="last"))["/a", (0, 1)] == 6


_PARTS = ["s3", "file", "FILE", "local", "a+b", ":", "/", "//", "///", "..", ".", "::", "%2e"]
_PARTS += ["%2F", "%2f", "\\", "\n", "\x7f", "x", "é", "\u017f3", "1", "#", " ", "\u3000"]


@given(st.lists(st.sampled_from(_PARTS), max_size=9).map("".join) | st.text())
@example("s3://b/k")
@example("file:///f/%2E%2e")
@example("file://host/f")
@example("s3://b/..")
def test_the_quick_check_of_locations_misses_nothing(location: str) -> None:
    """A location is refused exactly when it has a fault, whether looked at quickly or closely."""
    table = table_of([("/b", (0,), 0), ("/b", (1,), 1)], paths=False)
    at = table.schema.get_field_index("location")
    table = table.set_column(at, "location", pa.array(["s3://b/k", location]))
    place = two_arrays()
    fault = fault_of_location(location)
    if fault is None:
        (staged,) = place.stage("/b", table)
        assert in_memory(staged)["chunk_file"].to_pylist() == ["s3://b/k", location]
    else:
        with pytest.raises(InvalidInputError, match="row 1") as caught:
            place.stage("/b", table)
        assert fault in str(caught.value)


def test_what_is_staged_does_not_change_with_the_input() -> None:
    """Numbers are copied: whoever fills the same numpy arrays again changes nothing that is staged."""
    place = two_arrays()
    numbers = np.arange(5, dtype=np.uint64)
    columns = {name: pa.array(numbers) for name in ("x", "offset", "length")}
    (staged,) = place.stage("/b", pa.table({**columns, "location": ["s3://b/k"] * 5}))
    numbers[:] = 99

    assert (
        in_memory(staged)["offset"].to_pylist()
        == in_memory(staged)["length"].to_pylist()
        == [*range(5)]
    )


def test_many_references_are_read_and_committed(source: Source) -> None:
    """References beyond what is held in memory are read before the commit and after it, and counted once."""
    count = 100_000
    session = source.repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(count,), chunks=(1,), dtype="i4", compressors=None
    )
    order = np.random.default_rng(1).permutation(count)
    table = pa.table(
        {
            "index_0": order,
            "location": [source.url] * count,
            "offset": order % 64 * 4,
            "length": np.full(count, 4),
        }
    )
    session.set_references("/a", table.to_reader(max_chunksize=9999))
    expected = source.values.reshape(-1)[np.arange(count) % 64]
    some = slice(65_500, 65_600)
    array = zarr.open_array(session.store, path="a", mode="r")
    assert (np.asarray(array[some]) == expected[some]).all()
    session.commit("many")

    view = source.repo.readonly_session("main")
    array = zarr.open_array(view.store, path="a", mode="r")
    assert (np.asarray(array[some]) == expected[some]).all()
    assert sum(len(batch) for batch in view.chunk_coordinates("/a")) == count


def test_a_refused_bulk_write_leaves_no_manifest(source: Source, tmp_path: Path) -> None:
    """A wrong row after many good ones: the session is as before, and no file was left in the repository."""
    count = 400_000
    session = source.repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(count,), chunks=(1,), dtype="i4")
    before = session.status()
    index = np.arange(count)
    index[-1] = count
    table = pa.table(
        {
            "index_0": index,
            "location": [source.url] * count,
            "offset": index,
            "length": index,
        }
    )
    with pytest.raises(InvalidInputError, match=f"row {count - 1} .*outside"):
        session.set_references("/a", table)

    assert session.status() == before
    manifests = tmp_path / "repo" / "i"
    assert not manifests.exists() or list(manifests.iterdir()) == []


@pytest.mark.s3
def test_virtual_chunks_on_s3(s3: Any, tmp_path: Path) -> None:
    """References into a bucket are read with the options given for it; the server compares the ETag."""
    import s3fs

    fs = s3fs.S3FileSystem(**s3.storage_options)
    values = np.arange(64, dtype="<i4")
    url = f"{s3.url}/virtual/file.bin"
    fs.pipe_file(url, values.tobytes())
    info = fs.info(url)
    repo = Repository.create(
        tmp_path, authorize_virtual_chunk_access={f"{s3.url}/virtual/": s3.storage_options}
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(64,), chunks=(16,), dtype="<i4", compressors=None
    )
    table = pa.table(
        {
            "index": [[i] for i in range(4)],
            "location": [url] * 4,
            "offset": [64 * i for i in range(4)],
            "length": [64] * 4,
            "etag": [info["ETag"]] * 4,
            "last_modified": [info["LastModified"]] * 4,
        }
    )
    session.set_references("/a", table)
    session.commit("references")
    assert (read_array(repo) == values).all()

    fs.pipe_file(url, (values + 1).tobytes())
    with pytest.raises(SourceChangedError, match="changed"):
        read_array(repo)
