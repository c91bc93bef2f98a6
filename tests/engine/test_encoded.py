"""Chunks whose bytes are there already, as a column: each is stored where one written by zarr would be."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icechunk_arrow import InvalidInputError, Repository, RepositoryConfig
from icechunk_arrow.engine.encoded import staging_in_order

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [0, 1, 40, 3000, 900, 70_000, 5, 2_000_000, 10, 800]
CONFIG = RepositoryConfig(checksum_chunks=True)


def made(tmp_path: Path) -> tuple[Repository, list[bytes]]:
    """Make an array of ten chunks, and bytes for them: inline, packed and large."""
    repo = Repository.create(tmp_path / "repo", config=CONFIG)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store,
        name="/a",
        shape=len(SIZES) * (1 << 21),
        chunks=(1 << 21,),
        dtype="u1",
        compressors=None,
    )
    session.commit("array")
    draw = np.random.default_rng(4)
    return repo, [draw.bytes(size) for size in SIZES]


def source(data: list[bytes], kind: pa.DataType, order: list[int]) -> pa.Table:
    """Put some of the chunks into rows."""
    index = pa.array([[i] for i in order], pa.list_(pa.int32()))
    return pa.table({"index": index, "data": pa.array([data[i] for i in order], kind)})


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_bytes_come_back(tmp_path: Path, kind: pa.DataType) -> None:
    """All sizes, any order, from all binary types, and after the commit as before it."""
    repo, data = made(tmp_path)
    session = repo.writable_session("main")
    session.set_encoded_chunks("/a", source(data, kind, [7, 3, 0, 1, 9, 2, 8, 5, 4, 6]))
    for each in (session, None):
        reading = each or repo.readonly_session("main")
        view = reading.get_array("/a")
        for number, wanted in enumerate(data):
            found = reading.find_chunk(view, (number,))
            assert found is not None
            length = found.length if not isinstance(found, bytes) else len(found)
            assert bytes(reading.read_chunk(found, 0, length)) == wanted
        if each is not None:
            session.commit("bytes")


def test_small_chunks_share_a_file_and_large_ones_have_their_own(tmp_path: Path) -> None:
    repo, data = made(tmp_path)
    session = repo.writable_session("main")
    session.set_encoded_chunks("/a", source(data, pa.binary(), list(range(10))))
    session.commit("bytes")
    chunks = repo.tables("chunks")
    rows = chunks.select(["index", "kind", "location", "offset", "length"]).to_pylist()
    assert [row["length"] for row in rows] == SIZES
    packed = {
        row["location"] for row in rows if row["kind"] == "native" and row["length"] < 1 << 20
    }
    large = {row["location"] for row in rows if row["length"] >= 1 << 20}
    assert len(packed) == len(large) == 1
    assert packed.isdisjoint(large)
    inline = CONFIG.inline_chunk_threshold_bytes
    for row in rows:
        assert (row["kind"] == "inline") == (row["length"] <= inline)


def test_a_damaged_chunk_is_found_by_its_checksum(tmp_path: Path) -> None:
    repo, data = made(tmp_path)
    session = repo.writable_session("main")
    session.set_encoded_chunks("/a", source(data, pa.binary(), [5]))
    session.commit("bytes")
    (file,) = [path for path in (tmp_path / "repo" / "c").rglob("*") if path.is_file()]
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    reading = repo.readonly_session("main")
    found = reading.find_chunk(reading.get_array("/a"), (5,))
    assert found is not None
    assert not isinstance(found, bytes)
    with pytest.raises(Exception, match="checksum"):
        reading.read_chunk(found, 0, found.length)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"index": [[0]]}, "data"),
        ({"index": [[0]], "data": ["text"]}, "the column 'data' must hold bytes, not string"),
        ({"index": [[0], [1]], "data": [b"x", None]}, "the data is missing"),
        ({"index": [[0], [0]], "data": [b"x", b"y"]}, "twice|more than once"),
        ({"index": [[11]], "data": [b"x"]}, "11"),
    ],
)
def test_rows_that_are_wrong_are_refused_and_nothing_is_staged(
    tmp_path: Path, columns: dict[str, list[Any]], told: str
) -> None:
    repo, _ = made(tmp_path)
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match=told):
        session.set_encoded_chunks("/a", pa.table(columns))
    assert not session.has_uncommitted_changes


def test_chunks_that_come_in_order_are_staged_as_rows_are(tmp_path: Path) -> None:
    """In one portion or several, what is staged is what rows of the same chunks become."""
    columns = ["index", "kind", "offset", "length"]
    found = []
    for number, edges in enumerate([[0, 10], [0, 3, 4, 10], None]):
        repo, data = made(tmp_path / str(number))
        session = repo.writable_session("main")
        if edges is None:
            session.set_encoded_chunks("/a", source(data, pa.binary(), list(range(10))))
        else:
            with staging_in_order(session) as take:
                for start, stop in pairwise(edges):
                    places = np.arange(start, stop, dtype=np.uint64).reshape(-1, 1)
                    take("/a", places, pa.array(data[start:stop], pa.large_binary()))
        session.commit("bytes")
        reading = repo.readonly_session("main")
        view = reading.get_array("/a")
        for place, wanted in enumerate(data):
            chunk = reading.find_chunk(view, (place,))
            assert chunk is not None
            assert not isinstance(chunk, bytes)
            assert bytes(reading.read_chunk(chunk, 0, chunk.length)) == wanted
        found.append(repo.tables("chunks").select(columns).to_pylist())
    assert found[0] == found[2]
    assert [(row["index"], row["length"]) for row in found[1]] == [
        (row["index"], row["length"]) for row in found[2]
    ]


def test_chunks_in_order_are_all_staged_or_none(tmp_path: Path) -> None:
    repo, data = made(tmp_path)
    session = repo.writable_session("main")
    with suppress(KeyError), staging_in_order(session) as take:
        take("/a", np.array([[0]], np.uint64), pa.array(data[:1], pa.large_binary()))
        raise KeyError
    assert not session.has_uncommitted_changes
