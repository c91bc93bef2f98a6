"""Callers name nodes with slashes in front and behind or without, or as zarr arrays: it is all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icechunk_arrow import InvalidInputError, NodeNotFoundError, Repository
from icechunk_arrow.core.keys import node_path
from tests.places import make_array

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow import Session

SPELLED = ("/group/temp", "group/temp", "group/temp/", "/group/temp/", "//group/temp")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session with one array, ``/group/temp``, of four chunks."""
    found = Repository.create(tmp_path / "repo").writable_session("main")
    make_array(found.store, "group/temp", shape=(4,), chunks=(1,), dtype="u1")
    return found


def chunks(**columns: Any) -> pa.Table:
    """Two encoded chunks."""
    return pa.table({"index": [[0], [2]], "data": pa.array([b"a", b"b"], pa.binary()), **columns})


@pytest.mark.parametrize("spelled", SPELLED)
def test_paths(session: Session, spelled: str) -> None:
    """Whatever takes the path of an array takes it in every spelling."""
    session.set_encoded_chunks(spelled, chunks())

    assert session.has_chunks(spelled)
    assert sum(map(len, session.chunk_coordinates(spelled))) == 2
    assert sum(each.num_rows for each in session.chunk_references(spelled)) == 2
    session.delete_chunk(spelled, (0,))
    assert sum(map(len, session.chunk_coordinates(spelled))) == 1
    session.clear_array(spelled)
    assert not session.has_chunks("/group/temp")
    session.move(spelled, "elsewhere/")
    assert session.array_paths() == ["/elsewhere"]
    session.delete_nodes(["elsewhere"])
    assert session.array_paths() == []


def test_the_array_itself(session: Session) -> None:
    """As zarr has opened it; that of another repository is refused, though a path of the same name is here."""
    array = zarr.open_array(session.store, path="group/temp")
    session.set_encoded_chunks(array, chunks())

    assert sum(map(len, session.chunk_coordinates(array))) == 2
    np.testing.assert_array_equal(array[...], np.frombuffer(b"a\0b\0", "u1"))
    session.move(array, "/moved")
    assert session.array_paths() == ["/moved"]


def test_an_array_of_another_repository(session: Session, tmp_path: Path) -> None:
    """Its path says nothing here."""
    other = Repository.create(tmp_path / "other").writable_session("main")
    make_array(other.store, "group/temp", shape=(4,), chunks=(1,), dtype="u1")

    with pytest.raises(InvalidInputError, match="was opened in"):
        session.set_encoded_chunks(zarr.open_array(other.store, path="group/temp"), chunks())


def test_spellings_of_one_array_in_a_column(session: Session) -> None:
    """Rows of one array stay together, and two of them for one chunk are found."""
    mixed = chunks(path=pa.array(["group/temp", "/group/temp/"]).dictionary_encode())
    session.set_encoded_chunks(None, mixed)
    assert sum(map(len, session.chunk_coordinates("/group/temp"))) == 2

    twice = pa.table(
        {"index": [[1], [1]], "data": [b"x", b"y"], "path": ["group/temp", "/group/temp"]}
    )
    with pytest.raises(InvalidInputError, match="twice"):
        session.set_encoded_chunks(None, twice)


@pytest.mark.parametrize("spelled", ["absent", "/absent", "group"])
def test_absent(session: Session, spelled: str) -> None:
    """The error has the node's path."""
    with pytest.raises(NodeNotFoundError) as caught:
        session.set_encoded_chunks(spelled, chunks())
    assert caught.value.__dict__["path"] == "/" + spelled.strip("/")


@pytest.mark.parametrize("wrong", ["a//b", "a/../b", 7, None, object()])
def test_no_path(wrong: Any) -> None:
    """What is no path, nor an array or group, is refused with what it is."""
    with pytest.raises(InvalidInputError):
        node_path(wrong)


def test_below_a_group() -> None:
    """A path without a slash in front is below the group that a caller gives."""
    assert node_path("temp", "group") == "/group/temp"
    assert node_path("/temp", "group") == "/temp"
    assert node_path("", "/group/") == "/group"
    assert node_path("") == "/"
