"""What is asked of places that take a while to answer: few things, and side by side where possible."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository, RepositoryConfig
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage

T = TypeVar("T")
PATIENCE_SECONDS = 30.0


class AskedStorage(WrappedStorage):
    """Writes down what it is asked, and can hold requests back until all of a group have come."""

    def __init__(self, inner: Storage, group: Sequence[str] = ()) -> None:
        super().__init__(inner, fast=False)
        self.asked: list[str] = []
        self.answer_together(group)

    def answer_together(self, group: Sequence[str]) -> None:
        """Answer requests that begin so when all of them are there, once; fail if they never are."""
        self._waiting = list(group)
        self._barrier = threading.Barrier(max(len(group), 1))

    def _run(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        request = f"{operation} {key}"
        self.asked.append(request)
        expected = next((each for each in self._waiting if request.startswith(each)), None)
        if expected is not None:
            self._waiting.remove(expected)
            self._barrier.wait(PATIENCE_SECONDS)
        return effect()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A repository with one array, whose chunks are files of their own."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packed_chunk_threshold_bytes=0)
    written(Repository.create(tmp_path / "repository", config=config))
    return tmp_path / "repository"


def open_slow(place: Path, *group: str) -> tuple[Repository, AskedStorage]:
    """Open a repository through a storage that counts as slow."""
    slow: list[AskedStorage] = []

    def wrap(inner: Storage) -> Storage:
        slow.append(AskedStorage(inner, group))
        return slow[-1]

    with through(wrap):
        repo = Repository.open(place)
    return repo, slow[-1]


def test_whose_it_is_and_where_it_stands_are_asked_for_together(made: Path) -> None:
    """Opening does not wait for the first entry before it looks for the tip of main, nor for the settings."""
    first = "refs/branch.main/ZZZZZZZZ.json"
    _, slow = open_slow(made, f"get {first}", "get refs/branch.main/hint.json")
    assert slow.asked.count(f"get {first}") == 1
    assert "get config.yaml" not in slow.asked


def test_a_session_looks_for_a_newer_commit_while_it_reads(made: Path) -> None:
    """The structure file of the tip seen before, and its name and two after it, are asked for together."""
    repo, slow = open_slow(made)
    slow.asked.clear()
    slow.answer_together(["exists refs/"] * 3 + ["get_tail s/"])
    session = repo.readonly_session("main")
    first = [request for request in slow.asked if "config.yaml" not in request]
    assert len(first) == 4
    zarr.open_array(session.store, path="a", mode="r")[0, 0]
    then = [request[:11] for request in slow.asked if "config.yaml" not in request][4:]
    assert then == ["get_tail i/", "get_range c"]


def test_a_newer_commit_is_found_all_the_same(made: Path) -> None:
    """Reading ahead is a guess: what another process has committed meanwhile is what a session sees."""
    repo, _ = open_slow(made)
    other = Repository.open(made)
    for value in (2, 3, 4):
        session = other.writable_session("main")
        zarr.open_array(session.store, path="a")[...] = value
        session.commit(f"value {value}")
        assert (read_array(repo) == value).all()


def test_a_guess_that_cannot_be_read_does_no_harm(made: Path) -> None:
    """A structure file that is gone, of a tip that was moved away from, is nobody's concern."""
    repo, _ = open_slow(made)
    before = repo.lookup_branch("main")
    other = Repository.open(made)
    session = other.writable_session("main")
    make_array(session.store, "b")[...] = 5
    session.commit("b")
    (made / "s" / f"{before}.parquet").unlink()
    assert np.asarray(read_array(repo, "b")).sum() == 5 * 64
