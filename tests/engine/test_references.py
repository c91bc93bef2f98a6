"""Virtual chunks: writing references in any form, reading them only where it is allowed."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icechunk_arrow import (
    InvalidInputError,
    NodeNotFoundError,
    NotAuthorizedError,
    Repository,
    SourceChangedError,
    VirtualChunkSpec,
)
from tests.places import make_array, read_array

if TYPE_CHECKING:
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
