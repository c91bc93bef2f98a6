"""Gathering small chunk files: the same bytes in fewer files, as one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icechunk_arrow import CorruptFileError, InvalidInputError, Repository, RepositoryConfig
from icechunk_arrow.engine import compaction
from tests.places import make_array

if TYPE_CHECKING:
    from pathlib import Path

KiB = 1024
SIZE = 64


def values(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Numbers that do not compress."""
    return np.random.default_rng(seed).random((SIZE, SIZE))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository whose twelve commits wrote a chunk file each; some chunks were overwritten since."""
    config = RepositoryConfig(packed_chunk_threshold_bytes=16 * KiB, chunk_file_size_bytes=64 * KiB)
    repo = Repository.create(tmp_path / "repo", config=config)
    session = repo.writable_session("main")
    for name in ("a", "b"):
        make_array(session.store, name, shape=(SIZE, SIZE), chunks=(16, 16), dtype="f8")
    session.commit("arrays")
    for number in range(8):
        write(repo, "a", 8 * number, values(1))
    for number in range(4):
        write(repo, "b", 16 * number, values(2))
    return tmp_path / "repo"


def write(
    repo: Repository, name: str, row: int, data: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    """Commit sixteen rows of an array."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path=name)[row : row + 16] = data[row : row + 16]
    session.commit(f"{name} {row}")


def check(repo: Repository) -> None:
    """Both arrays have their values."""
    store = repo.readonly_session("main").store
    for name, seed in (("a", 1), ("b", 2)):
        found = zarr.open_array(store, path=name, mode="r")[...]
        assert np.array_equal(np.asarray(found), values(seed))


def live_files(repo: Repository) -> set[str]:
    """Chunk files that the newest snapshot refers to."""
    session = repo.readonly_session("main")
    batches = [b for path in ("/a", "/b") for b in session.chunk_references(path)]
    return {row["location"] for batch in batches for row in batch.to_pylist()}


def test_small_files_are_gathered(place: Path) -> None:
    """Fewer files hold the same chunks, of both arrays; values and older snapshots stay."""
    repo = Repository.open(place)
    before, old = live_files(repo), repo.lookup_branch("main")
    found = repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)

    assert (found.files_before, found.files_after) == (len(before), 1)
    assert found.chunk_count == 32
    assert found.size_bytes == 2 * SIZE * SIZE * 8
    assert len(live_files(repo)) == 1
    assert not live_files(repo) & before
    check(repo)
    check_old = zarr.open_array(repo.readonly_session(snapshot_id=old).store, path="a", mode="r")
    assert np.array_equal(np.asarray(check_old[...]), values(1))


def test_new_files_are_not_larger_than_the_setting(place: Path) -> None:
    """What does not fit into one file goes into several."""
    repo = Repository.open(place)
    small = RepositoryConfig(packed_chunk_threshold_bytes=16 * KiB, chunk_file_size_bytes=20 * KiB)
    found = Repository.open(place, config=small).compact_chunks("main", "gather")

    assert found.files_before == 0  # an eighth of 20 KiB is less than any file has
    found = Repository.open(place, config=small).compact_chunks(
        "main", "gather", smaller_than_bytes=20 * KiB
    )
    assert 1 < found.files_after < found.files_before
    sizes = [(place / "c" / name).stat().st_size for name in live_files(repo)]
    assert max(sizes) <= 20 * KiB + 2 * KiB  # the chunk that fills a file ends it
    check(repo)


def test_a_dry_run_writes_nothing(place: Path) -> None:
    """It says what the run says, and leaves every folder as it is."""
    repo = Repository.open(place)
    before = sorted(place.rglob("*"))
    would = repo.compact_chunks("main", "gather", dry_run=True, smaller_than_bytes=64 * KiB)

    assert sorted(place.rglob("*")) == before
    done = repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)
    assert would.snapshot_id is None
    assert done.snapshot_id == repo.lookup_branch("main")
    assert [would.files_before, would.files_after, would.chunk_count, would.size_bytes] == [
        done.files_before,
        done.files_after,
        done.chunk_count,
        done.size_bytes,
    ]


def test_a_second_time_there_is_nothing_to_do(place: Path) -> None:
    """One small file is not worth a commit."""
    repo = Repository.open(place)
    first = repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)
    again = repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)

    assert (again.snapshot_id, again.files_before, again.chunk_count) == (None, 0, 0)
    assert repo.lookup_branch("main") == first.snapshot_id


def test_large_chunks_and_other_kinds_stay(place: Path) -> None:
    """A chunk with a file of its own, inline and virtual chunks are left where they are."""
    repo = Repository.open(place)
    session = repo.writable_session("main")
    make_array(session.store, "large", shape=(SIZE, SIZE), chunks=(SIZE, SIZE), dtype="f8")[...] = (
        values(3)
    )
    make_array(session.store, "tiny", shape=(4,), chunks=(1,), dtype="i1")[...] = 1
    make_array(session.store, "far", shape=(4,), chunks=(1,), dtype="i1")
    table = {"index_0": [0], "location": ["s3://bucket/x"], "offset": [0], "length": [1]}
    session.set_references("/far", pa.table(table))
    session.commit("others")
    paths = ("/large", "/tiny", "/far")
    before = [b for p in paths for b in repo.readonly_session("main").chunk_references(p)]
    repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)

    assert [b for p in paths for b in repo.readonly_session("main").chunk_references(p)] == before
    check(repo)


def test_shared_ranges_are_copied_once(place: Path) -> None:
    """Two chunks that are the same bytes of a file are the same bytes of the new one."""
    repo = Repository.open(place)
    session = repo.writable_session("main")
    ref = session.find_chunk(session.get_array("/a"), (0, 0))
    assert ref is not None
    assert not isinstance(ref, bytes)
    session.set_chunk_ref("/b", (0, 0), ref)
    session.commit("the same chunk twice")
    found = repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)

    assert found.chunk_count == 32
    assert found.size_bytes == 31 * 16 * 16 * 8
    session = repo.readonly_session("main")
    assert session.find_chunk(session.get_array("/a"), (0, 0)) == session.find_chunk(
        session.get_array("/b"), (0, 0)
    )


def test_a_chunk_written_meanwhile_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever overwrites a chunk while its old bytes are gathered is not undone."""
    repo = Repository.open(place)
    point = compaction._point

    def late(*arguments: object) -> None:
        write(repo, "a", 0, values(9))
        point(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "_point", late)
    repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)
    found = np.asarray(zarr.open_array(repo.readonly_session("main").store, path="a")[...])

    assert np.array_equal(found[:16], values(9)[:16])
    assert np.array_equal(found[16:], values(1)[16:])


def test_checksums_are_carried_along(tmp_path: Path) -> None:
    """Chunks that have checksums keep them, and they fit."""
    config = RepositoryConfig(checksum_chunks=True, packed_chunk_threshold_bytes=16 * KiB)
    repo = Repository.create(tmp_path / "repo", config=config)
    session = repo.writable_session("main")
    make_array(session.store, "a", shape=(SIZE, SIZE), chunks=(16, 16), dtype="f8")
    session.commit("array")
    for row in range(0, SIZE, 16):
        write(repo, "a", row, values(1))
    repo.compact_chunks("main", "gather")
    session = repo.readonly_session("main")
    refs = [row for b in session.chunk_references("/a") for row in b.to_pylist()]

    assert len({row["location"] for row in refs}) == 1
    assert all(row["crc32c"] is not None for row in refs)
    assert np.array_equal(
        np.asarray(zarr.open_array(session.store, path="a", mode="r")[...]), values(1)
    )


def test_a_damaged_file_stops_it(place: Path) -> None:
    """A file that is cut is named, and nothing is changed."""
    repo = Repository.open(place)
    tip = repo.lookup_branch("main")
    name = min(live_files(repo))
    path = place / "c" / name
    path.write_bytes(path.read_bytes()[:1])
    with pytest.raises(CorruptFileError, match=name):
        repo.compact_chunks("main", "gather", smaller_than_bytes=64 * KiB)

    assert repo.lookup_branch("main") == tip


@pytest.mark.parametrize("size", [0, -1, 1 << 40])
def test_impossible_sizes_are_refused(place: Path, size: int) -> None:
    """The message says what is possible."""
    with pytest.raises(InvalidInputError, match="between 1 and"):
        Repository.open(place).compact_chunks("main", "gather", smaller_than_bytes=size)


@pytest.mark.parametrize("what", ["bytes", "sums", "answer"])
def test_no_damage_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Neither what changed in a file nor what changed on its way: the new file would be the only one."""
    config = RepositoryConfig(
        packed_chunk_threshold_bytes=2 << 20,
        chunk_file_size_bytes=1 << 26,
        inline_chunk_threshold_bytes=0,
    )
    repo = Repository.create(tmp_path / "repo", config=config)
    session = repo.writable_session("main")
    lengths = {"a": 512, "b": 1 << 20 | 4096}
    for name, length in lengths.items():
        make_array(session.store, name, shape=(2, length), chunks=(1, length), dtype="u1")
    session.commit("arrays")
    for name, length in lengths.items():
        for row in range(2):
            session = repo.writable_session("main")
            data = np.random.default_rng(row).integers(1, 255, length, "u1")
            zarr.open_array(session.store, path=name)[row] = data
            session.commit(f"{name} {row}")
    tip = repo.lookup_branch("main")
    session = repo.readonly_session("main")
    name = "a" if what == "answer" else "b"
    [ref, _] = [row for b in session.chunk_references(f"/{name}") for row in b.to_pylist()]
    place = ref["offset"] + (ref["length"] + 3 if what == "sums" else 7)
    path = tmp_path / "repo" / "c" / ref["location"]
    if what == "answer":
        storage = repo._context.storage
        original = type(storage).get_range

        def get_range(self: Any, key: str, start: int, length: int) -> bytes:
            found = bytearray(original(self, key, start, length))
            if key.endswith(ref["location"]):
                found[place - start] ^= 16
            return bytes(found)

        monkeypatch.setattr(type(storage), "get_range", get_range)
    else:
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 16
        path.write_bytes(damaged)
    files = {each.name for each in path.parent.iterdir()}
    with pytest.raises(CorruptFileError, match=ref["location"]):
        repo.compact_chunks("main", "gather")
    assert repo.lookup_branch("main") == tip
    assert {each.name for each in path.parent.iterdir()} == files, "what was begun is removed"
