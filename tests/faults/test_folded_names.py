"""On volumes that fold large and small letters nobody is given what belongs to a name of another spelling."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import AlreadyExistsError, InvalidInputError, RefNotFoundError, Repository
from icechunk_arrow.storage.local import LocalStorage
from tests.faults.calls import misbehaving
from tests.faults.folding import Folding
from tests.places import make_array, read_array, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A place on a volume that folds names: one that is mounted, or a stand-in."""
    with folding(tmp_path / "folded") as folder:
        yield folder / "r"


@contextmanager
def folding(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    with misbehaving(Folding(folder)):
        yield folder


def test_the_volume_folds(root: Path) -> None:
    """What the tests below stand on: a file is found by any spelling, and listed by its own."""
    storage = LocalStorage(root)
    storage.create("c/File", b"x")

    assert LocalStorage(root).get("c/fILE") == b"x"
    with pytest.raises(AlreadyExistsError):
        storage.create("c/file", b"y")
    assert [info.key for info in storage.list()] == ["c/File"]


def test_a_new_repository_has_one_main(root: Path) -> None:
    """The first entry names no branch: by another spelling it would move the branch, and make it unreadable."""
    repo = Repository.create(root)

    for name in ("Main", "MAIN"):
        with pytest.raises(RefNotFoundError, match=name):
            repo.writable_session(name)
        with pytest.raises(RefNotFoundError, match=name):
            Repository.open(root).lookup_branch(name)
        with pytest.raises(InvalidInputError, match=r"branch\.main.*choose another name"):
            repo.create_branch(name, repo.lookup_branch("main"))
    written(repo)
    assert repo.list_branches() == {"main"}
    assert read_array(Repository.open(root))[0, 0] == 1


def test_branches_of_two_spellings_are_one_or_none(root: Path) -> None:
    """Whoever asks for the other spelling is told that there is none, and cannot make it, reset or delete it."""
    repo = Repository.create(root)
    first, second = written(repo), written(repo, 2, "b")
    repo.create_branch("dev", first)
    other = Repository.open(root)

    with pytest.raises(InvalidInputError, match=r"branch\.dev.*choose another name"):
        other.create_branch("Dev", second)
    for act in (
        lambda: other.lookup_branch("DEV"),
        lambda: other.readonly_session("Dev"),
        lambda: other.writable_session("Dev"),
        lambda: other.reset_branch("Dev", second),
        lambda: other.delete_branch("Dev"),
        lambda: list(other.ancestry(branch="dEV")),
    ):
        with pytest.raises(RefNotFoundError):
            act()
    assert other.list_branches() == {"main", "dev"}
    assert Repository.open(root).lookup_branch("dev") == first
    other.delete_branch("dev")
    with pytest.raises(InvalidInputError, match=r"branch\.dev"):
        other.create_branch("Dev", second)
    other.create_branch("dev", second)
    assert repo.lookup_branch("dev") == second


def test_tags_of_two_spellings_are_one(root: Path) -> None:
    """A tag of another spelling is not there, and its name cannot be given."""
    repo = Repository.create(root)
    first, second = written(repo), written(repo, 2, "b")
    repo.create_tag("v1", first)

    with pytest.raises(InvalidInputError, match=r"tag\.v1.*choose another name"):
        Repository.open(root).create_tag("V1", second)
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("V1")
    with pytest.raises(RefNotFoundError):
        repo.delete_tag("V1")
    assert repo.list_tags() == {"v1"}
    assert Repository.open(root).lookup_tag("v1") == first


def test_a_state_file_has_names_of_any_spelling(root: Path) -> None:
    """Where names are no files the volume does not matter; nor does it for nodes, whose names are none either."""
    repo = Repository.create(root, catalog="state")
    first, second = written(repo), written(repo, 2, "A")
    repo.create_branch("Main", first)
    repo.create_tag("v", first)
    repo.create_tag("V", second)
    session = repo.writable_session("Main")
    make_array(session.store, "b")[...] = 3
    session.commit("on the other")

    assert (repo.lookup_tag("v"), repo.lookup_tag("V")) == (first, second)
    assert repo.lookup_branch("main") == second
    assert read_array(repo, "b", branch="Main")[0, 0] == 3
    assert (read_array(repo)[0, 0], read_array(repo, "A")[0, 0]) == (1, 2)
