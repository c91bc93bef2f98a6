"""Where chunk bytes and attributes go: inline, gathered, files of their own, attributes files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

from icechunk_arrow import CorruptFileError, InvalidInputError, Repository, RepositoryConfig
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from pathlib import Path


def files(root: Path, kind: str) -> list[Path]:
    """Files of one folder."""
    return sorted((root / kind).glob("*")) if (root / kind).exists() else []


def test_small_chunks_stand_in_the_manifest(tmp_path: Path) -> None:
    """Chunks up to the threshold make no chunk file."""
    repo = Repository.create(tmp_path)
    written(repo)

    assert files(tmp_path, "c") == []
    assert (read_array(repo) == 1).all()


def test_middling_chunks_share_a_file_in_order(tmp_path: Path) -> None:
    """Chunks below a megabyte are gathered, in the order of their coordinates, whatever that of writing."""
    repo = Repository.create(tmp_path)
    session = repo.writable_session("main")
    array = make_array(session.store, shape=(64, 64), chunks=(16, 16))
    for i in (3, 1, 0, 2):
        array[16 * i : 16 * i + 16] = i + 1
    session.commit("packed")
    [path] = files(tmp_path, "c")

    assert path.stat().st_size == 64 * 64 * 4
    assert np.frombuffer(path.read_bytes(), "<i4")[:: 16 * 16 * 4].tolist() == [1, 2, 3, 4]
    assert (read_array(repo)[::16, 0] == [1, 2, 3, 4]).all()


def test_large_chunks_have_files_of_their_own(tmp_path: Path) -> None:
    """A chunk of a megabyte is one file, byte for byte."""
    repo = Repository.create(tmp_path)
    session = repo.writable_session("main")
    array = make_array(session.store, shape=(1024, 512), chunks=(512, 512))
    array[...] = np.arange(1024 * 512).reshape(1024, 512)
    session.commit("large")

    assert [path.stat().st_size for path in files(tmp_path, "c")] == [1 << 20] * 2


def test_memory_held_is_bounded(tmp_path: Path) -> None:
    """When enough bytes wait, they are written; the session still reads all it wrote."""
    config = RepositoryConfig(chunk_file_size_bytes=1 << 20)
    repo = Repository.create(tmp_path, config=config)
    session = repo.writable_session("main")
    array = make_array(session.store, shape=(1024, 1024), chunks=(64, 64))
    values = np.arange(1024 * 1024, dtype="i4").reshape(1024, 1024)
    array[...] = values

    assert len(files(tmp_path, "c")) >= 3
    arrays = session._staging.arrays.values()
    held = [value for staged in arrays for value in staged.singles.values()]
    assert sum(len(value) for value in held if isinstance(value, bytes)) <= 1 << 20
    assert (array[...] == values).all()
    array[0:64, 0:64] = -1
    session.commit("much")
    assert (read_array(repo)[0:64, 0:64] == -1).all()
    assert (read_array(repo)[64:] == values[64:]).all()


def test_checksums_find_altered_bytes(tmp_path: Path) -> None:
    """With the setting on, an altered chunk file is an error; a part of a chunk is checked too."""
    repo = Repository.create(tmp_path, config=RepositoryConfig(checksum_chunks=True))
    written(repo, shape=(64, 64), chunks=(32, 32))
    assert (read_array(repo) == 1).all()
    [path] = files(tmp_path, "c")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=path.name):
        read_array(repo)


def test_large_attributes_leave_the_structure_file_once(tmp_path: Path) -> None:
    """Attributes above the limit stand in a shared file, and later commits do not write them again."""
    repo = Repository.create(tmp_path)
    session = repo.writable_session("main")
    text = {"history": "x" * 10_000}
    for name in ("a", "b"):
        make_array(session.store, name, attributes={**text, "name": name})
    make_array(session.store, "c", attributes={"small": 1})
    session.commit("large attributes")
    [path] = files(tmp_path, "a")
    written(repo, name="d")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0:2, 0:2] = 3
    session.commit("chunks only")

    assert files(tmp_path, "a") == [path]
    store = repo.readonly_session("main").store
    for name in ("a", "b"):
        assert dict(zarr.open_array(store, path=name, mode="r").attrs) == {**text, "name": name}
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b").attrs["more"] = True
    session.commit("attributes")
    assert len(files(tmp_path, "a")) == 2
    assert zarr.open_array(repo.readonly_session("main").store, path="b", mode="r").attrs["more"]


def test_settings_travel_with_the_repository(tmp_path: Path) -> None:
    """Settings given to create are saved; given to open they override; save_config saves them."""
    Repository.create(tmp_path, config=RepositoryConfig(inline_chunk_threshold_bytes=7))
    assert Repository.open(tmp_path).config.inline_chunk_threshold_bytes == 7
    other = Repository.open(tmp_path, config=RepositoryConfig(inline_chunk_threshold_bytes=9))
    assert other.config.inline_chunk_threshold_bytes == 9
    assert Repository.open(tmp_path).config.inline_chunk_threshold_bytes == 7
    assert other.config == RepositoryConfig(inline_chunk_threshold_bytes=9)
    partly = Repository.open(tmp_path, config=RepositoryConfig(checksum_chunks=True)).config
    assert (partly.inline_chunk_threshold_bytes, partly.checksum_chunks) == (7, True)
    other.save_config()
    assert Repository.open(tmp_path).config.inline_chunk_threshold_bytes == 9
    (tmp_path / "config.yaml").write_text(json.dumps({"inline-chunk-threshold-bytes": 11}))
    assert Repository.open(tmp_path).config.inline_chunk_threshold_bytes == 11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inline-chunk-threshold: 1", r"inline-chunk-threshold'.*inline-chunk-threshold-bytes"),
        ("chunk-file-size-bytes: many", r"chunk-file-size-bytes must be of type int"),
        ("chunk-file-size-bytes: true", r"chunk-file-size-bytes must be of type int"),
        ("packed-chunk-threshold-bytes: -1", r"packed-chunk-threshold-bytes"),
        ("checksum-chunks: 1", r"checksum-chunks must be of type bool"),
        ("storage: {durable: false}", r"unknown configuration key 'storage'"),
        ("cache-bytes: 5", r"unknown configuration key 'cache-bytes'"),
        ("chunk-file-size-bytes: 4611686018427387904", r"at most 1073741824"),
        ("[1]", r"mapping"),
        ("a: !!python/object:os.system x", r"not plain YAML"),
        ("{", r"not plain YAML"),
    ],
)
def test_bad_settings_name_the_key(text: str, message: str) -> None:
    """An unknown or ill-typed key is refused by name."""
    with pytest.raises(InvalidInputError, match=message):
        RepositoryConfig.from_yaml(text)


def test_settings_round_trip() -> None:
    """``from_yaml(to_yaml(x)) == x``."""
    config = RepositoryConfig(checksum_chunks=True, chunk_file_size_bytes=123_456_789)

    assert RepositoryConfig.from_yaml(config.to_yaml()) == config
