"""A writer that ends between any two storage operations leaves the old state or the new one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import ConflictDetector, Repository, RepositoryNotFoundError
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import (
    CONFIG,
    INLINE,
    OWN,
    PACKED,
    array_document,
    check_layout,
    copy_objects,
    group_document,
    make_base,
    payload,
    picture,
    through,
)
from tests.faults.storage_wrappers import Stopped, StoppingStorage
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icechunk_arrow.storage.port import Storage
    from tests.faults.repositories import Picture


def first_of(repo: Repository) -> str:
    return repo.lookup_branch("other")


def new_array(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.set_document("/new", group_document(long="y" * 300))
    session.set_document("/new/x", array_document(30, attributes={"note": "z" * 300}))
    for index, size in enumerate([INLINE, PACKED, OWN] * 8):
        session.write_chunk("/new/x", (index,), payload(f"new {index}", size))
    session.commit("new array")


def overwrite(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.write_chunk("/a", (2,), payload("over 2", PACKED))
    session.write_chunk("/a", (21,), payload("over 21", OWN))
    session.set_document("/b", array_document(4, attributes={"unit": "degC"}))
    session.commit("overwrite")


def delete(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.delete_nodes(["/b"])
    session.delete_chunk("/a", (4,))
    session.commit("delete")


def resize(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.set_document("/a", array_document(5, attributes={"note": "x" * 200}))
    session.commit("resize")


def move(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.move("/a", "/c")
    session.write_chunk("/c", (3,), payload("moved", PACKED))
    session.commit("move")


def merge(repo: Repository) -> None:
    session = repo.writable_session("main")
    session.write_chunk("/a", (38,), payload("merge", INLINE))
    before = len(session._staging.base.manifest_sizes)
    session.commit("merge")
    assert before == 8, "so many make a larger one"
    assert len(session._staging.base.manifest_sizes) == 2


def rebase(repo: Repository) -> None:
    late = repo.writable_session("main")
    late.write_chunk("/a", (33,), payload("late", PACKED))
    early = repo.writable_session("main")
    early.write_chunk("/a", (34,), payload("early", PACKED))
    early.commit("early")
    late.commit("late", rebase_with=ConflictDetector())


def create_branch(repo: Repository) -> None:
    repo.create_branch("new", first_of(repo))


def create_branch_again(repo: Repository) -> None:
    repo.create_branch("gone", first_of(repo))


def reset_branch(repo: Repository) -> None:
    repo.reset_branch("main", first_of(repo))


def delete_branch(repo: Repository) -> None:
    repo.delete_branch("other")


def create_tag(repo: Repository) -> None:
    repo.create_tag("v2", first_of(repo))


def delete_tag(repo: Repository) -> None:
    repo.delete_tag("v1")


def save_config(repo: Repository) -> None:
    repo.save_config()


def export_state(repo: Repository) -> None:
    repo.export_state()


# how many commits an action makes, each of which may be the last that is seen
ACTIONS: dict[Callable[[Repository], None], int] = {
    new_array: 1,
    overwrite: 1,
    delete: 1,
    resize: 1,
    move: 1,
    rebase: 2,
    create_branch: 1,
    create_branch_again: 1,
    reset_branch: 1,
    delete_branch: 1,
    create_tag: 1,
    delete_tag: 1,
    save_config: 0,
}


SAME_WITH_STATE_FILE = {new_array, delete, resize, move, save_config}
"""They differ in their files alone; ``overwrite`` stands for them there."""
WRITES = {"put", "create", "replace", "delete", "sync"}


@dataclass(frozen=True)
class Outcome:
    """What a run left."""

    place: Storage
    operations: list[tuple[str, str]]
    finished: bool


@dataclass(frozen=True)
class Stage:
    """A place for each run, all beginning with the same objects."""

    base: Storage
    root: Path | None

    def fresh(self) -> tuple[str, Storage]:
        name = secrets.token_hex(6)
        if self.root is None:
            url, place = f"memory://{name}", MemoryStorage(name)
            copy_objects(self.base, place)
            return url, place
        url = str(self.root / name)
        local = LocalStorage(url, durable=False)
        copy_objects(self.base, local)
        return url, local

    def run(
        self,
        action: Callable[[Repository], None],
        stop_at: int | None,
        *,
        after: bool = False,
        fast: bool | None = None,
    ) -> tuple[str, Outcome]:
        """Do an action that ends at an operation; then the place as the next process finds it."""
        url, place = self.fresh()
        wrappers: list[StoppingStorage] = []

        def wrap(storage: Storage) -> Storage:
            wrappers.append(StoppingStorage(storage, stop_at=stop_at, after=after, fast=fast))
            return wrappers[-1]

        with through(wrap):
            try:
                action(Repository.open(url, config=CONFIG, storage_settings=UNSYNCED))
            except Stopped:
                finished = False
            else:
                finished = True
        assert len(wrappers) == 1
        return url, Outcome(place, wrappers[0].operations, finished)


def prove(
    stage: Stage, action: Callable[[Repository], None], most: int, *, fast: bool | None = None
) -> None:
    """Stop an action at every operation, before and after, and look at what is left."""
    url, _ = stage.fresh()
    states: list[Picture] = [picture(Repository.open(url))]
    url, whole = stage.run(action, None, fast=fast)
    assert whole.finished
    states.append(picture(Repository.open(url)))
    assert (states[0] != states[1]) == (most > 0)
    seen: list[Picture] = []
    size = -1
    for stop_at, operation in enumerate(whole.operations):
        for after in (False, True):
            url, left = stage.run(action, stop_at, after=after, fast=fast)
            assert not left.finished
            where = f"{'after' if after else 'before'} {operation}"
            names = len(list(left.place.list()))
            if operation[0] not in WRITES and size == names:
                continue  # what is there has been looked at, after the write before this reading
            size = names
            repo = Repository.open(url)
            found = picture(repo)
            if most <= 1:
                assert found in states, f"neither old nor new state {where}"
            if found not in seen:
                seen.append(found)
            check_layout(repo, left.place)
            check_commit(repo)
    assert len(seen) == most + 1, "the old state, each new one, and no other"
    assert seen[0] == states[0]
    assert seen[-1] == states[1]


def check_commit(repo: Repository) -> None:
    """Check that the next writer can go on."""
    session = repo.writable_session("main")
    session.set_document("/later", group_document())
    session.commit("later")
    later = Repository.open(repo.url).readonly_session("main")
    assert later.find_node("/later") is not None


@pytest.fixture(scope="module")
def bases() -> dict[str, Stage]:
    """A place to begin from with each catalog."""
    found = {}
    for catalog in ("branches", "state"):
        name = secrets.token_hex(6)
        make_base(f"memory://{name}", catalog=catalog)
        found[catalog] = Stage(MemoryStorage(name), None)
    return found


@pytest.mark.parametrize(
    ("catalog", "action"),
    [
        pytest.param(catalog, action, id=f"{catalog}-{action.__name__}")
        for catalog in ("branches", "state")
        for action in ACTIONS
        if catalog == "branches" or action not in SAME_WITH_STATE_FILE
    ],
)
def test_old_or_new_state_in_memory(
    bases: dict[str, Stage], catalog: str, action: Callable[[Repository], None]
) -> None:
    """Stopped before or after any operation, the old state or the new one, and every chunk."""
    prove(bases[catalog], action, ACTIONS[action])


def test_old_or_new_state_where_files_are_written_at_once(bases: dict[str, Stage]) -> None:
    """The same where a commit writes its files from several threads, in any order."""
    prove(bases["branches"], new_array, 1, fast=False)


@pytest.mark.parametrize("action", [overwrite, reset_branch, create_tag])
def test_old_or_new_state_on_disk(tmp_path: Path, action: Callable[[Repository], None]) -> None:
    """The same on a local disk."""
    make_base(str(tmp_path / "base"))
    stage = Stage(LocalStorage(tmp_path / "base"), tmp_path)

    prove(stage, action, ACTIONS[action])


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_old_or_new_state_when_manifests_are_merged(catalog: str) -> None:
    """The same for a commit that makes one manifest of eight."""
    name = secrets.token_hex(6)
    make_base(f"memory://{name}", catalog=catalog, manifest_count=8)

    prove(Stage(MemoryStorage(name), None), merge, 1)


def test_an_export_is_there_or_not() -> None:
    """Stopped anywhere, an export is whole or absent, the branches decide, and it can be repeated."""
    name = secrets.token_hex(6)
    make_base(f"memory://{name}")
    stage = Stage(MemoryStorage(name), None)
    for twice in (False, True):
        if twice:
            Repository.open(f"memory://{name}").export_state()
        prove(stage, export_state, 0)


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_a_repository_is_there_or_not(catalog: str) -> None:
    """Stopped while it is created, a repository is whole or absent, and can be created then."""

    def create(stop_at: int | None, *, after: bool = False) -> tuple[str, int]:
        url = f"memory://{secrets.token_hex(6)}"
        wrappers: list[StoppingStorage] = []

        def wrap(storage: Storage) -> Storage:
            wrappers.append(StoppingStorage(storage, stop_at=stop_at, after=after))
            return wrappers[-1]

        with through(wrap):
            try:
                Repository.create(url, config=CONFIG, storage_settings=UNSYNCED, catalog=catalog)
                assert stop_at is None
            except Stopped:
                assert stop_at is not None
        return url, len(wrappers[0].operations)

    url, count = create(None)
    whole = picture(Repository.open(url))
    answers = []
    for stop_at in range(count):
        for after in (False, True):
            url, _ = create(stop_at, after=after)
            try:
                found = picture(Repository.open(url))
            except RepositoryNotFoundError:
                answers.append(False)
                assert not Repository.exists(url)
            else:
                answers.append(True)
                assert found == whole
            assert picture(Repository.open_or_create(url, catalog=catalog)) == whole
    assert answers == sorted(answers)
    assert set(answers) == {False, True}
