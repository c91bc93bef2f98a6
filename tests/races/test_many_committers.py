"""Many processes commit at once, and none of their commits is lost."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import (
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    Repository,
)
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats.layout import hint_key
from icechunk_arrow.storage.open import open_storage
from tests.faults.repositories import (
    array_document,
    check_layout,
    contents,
    group_document,
    payload,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROCESSES = 8
COMMITS = 10
SECONDS = 300


@dataclass(frozen=True)
class Place:
    url: str
    options: dict[str, Any] = field(default_factory=dict)
    catalog: str = "branches"

    def open(self) -> Repository:
        return Repository.open(self.url, self.options)


PLACES = ["local", "local, state file", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return Place(request.getfixturevalue("s3_url"), dict(server.storage_options))
    catalog = "state" if "state" in request.param else "branches"
    return Place(str(tmp_path / "repository"), catalog=catalog)


def run(job: Callable[..., Any], place: Place, *arguments: Any) -> list[Any]:
    """Run a job in eight processes that begin together; give what each returned."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.races.test_many_committers"])
    barrier, answers = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(
            target=_run_one, args=(job, place, writer, barrier, answers, arguments), daemon=True
        )
        for writer in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=SECONDS) for _ in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        answers.close()
        answers.join_thread()
    failed = [answer for answer in found if isinstance(answer, str) and "Traceback" in answer]
    assert not failed, failed[0]
    return found


def _run_one(
    job: Callable[..., Any],
    place: Place,
    writer: int,
    barrier: Any,
    answers: Any,
    arguments: tuple[Any, ...],
) -> None:
    try:
        barrier.wait(SECONDS)
        answers.put(job(place, writer, *arguments))
    except BaseException:
        answers.put(traceback.format_exc())


def path_of(writer: int, number: int) -> str:
    return f"/w{writer}-{number}"


def stage(repo: Repository, writer: int, number: int) -> Any:
    """Begin a session that adds one group with one array with one chunk."""
    session = repo.writable_session("main")
    path = path_of(writer, number)
    session.set_document(path, group_document(writer=writer))
    session.set_document(f"{path}/x", array_document(1))
    session.write_chunk(f"{path}/x", (0,), payload(path, 700))
    return session


def commit_by_opening_anew(place: Place, writer: int) -> tuple[list[str], int]:
    made, lost = [], 0
    for number in range(COMMITS):
        while True:
            session = stage(place.open(), writer, number)
            try:
                made.append(session.commit(path_of(writer, number)))
            except ConflictError:
                lost += 1
            else:
                break
    return made, lost


def commit_by_rebasing(place: Place, writer: int) -> tuple[list[str], int]:
    repo = place.open()
    made = []
    for number in range(COMMITS):
        session = stage(repo, writer, number)
        made.append(session.commit(path_of(writer, number), rebase_with=ConflictDetector()))
    return made, 0


@pytest.mark.storm
@pytest.mark.parametrize(
    "job", [commit_by_opening_anew, commit_by_rebasing], ids=lambda job: job.__name__
)
def test_no_commit_is_lost(place: Place, job: Callable[..., Any]) -> None:
    """Eight processes of ten commits: 80 in the history, 80 changes present, no gap."""
    repo = Repository.create(place.url, place.options, catalog=place.catalog)
    session = repo.writable_session("main")
    session.set_document("/", group_document())
    session.commit("begin")

    answers = run(job, place)

    repo = place.open()
    acknowledged = [snapshot_id for made, _ in answers for snapshot_id in made]
    total = PROCESSES * COMMITS
    assert len(set(acknowledged)) == total
    history = list(repo.ancestry(branch="main"))
    assert len(history) == total + 2
    assert {info.id for info in history[:-2]} == set(acknowledged)
    found = contents(repo.readonly_session("main"))
    for writer in range(PROCESSES):
        for number in range(COMMITS):
            path = path_of(writer, number)
            assert found[path]["attributes"] == {"writer": writer}
            assert found[f"{path}/x/c/0"] == payload(path, 700)
    assert len(found) == 3 * total + 1
    for info in history[:-1]:
        log = repo._context.files.read_log(info.id)
        assert len(log.created) == (2 if info.message != "begin" else 1)
    ids = [repo.readonly_session("main").find_node(path).id for path in found if "/c/" not in path]  # type: ignore[union-attr]
    assert len(set(ids)) == len(ids)
    storage = open_storage(place.url, place.options)
    check_layout(repo, storage)
    if place.catalog == "branches":
        listed = (info.key for info in storage.list("refs/branch.main/"))
        names = sorted(key for key in listed if key != hint_key("main"))
        wanted = [f"refs/branch.main/{sequence_name(n)}.json" for n in range(total + 2)]
        assert names == sorted(wanted)
    if job is commit_by_opening_anew and not place.options:
        assert sum(lost for _, lost in answers) > 0, "nobody met anybody: this was no race"


def open_or_create(place: Place, writer: int) -> str:
    repo = Repository.open_or_create(place.url, place.options, catalog=place.catalog)
    first = list(repo.ancestry(branch="main"))[-1].id
    session = stage(repo, writer, 0)
    session.commit("first of each", rebase_with=ConflictDetector())
    return first


@pytest.mark.storm
def test_one_repository(place: Place) -> None:
    """Of many that open or create, one creates; all have the same, and work in it at once."""
    firsts = run(open_or_create, place)

    assert len(set(firsts)) == 1
    repo = place.open()
    history = list(repo.ancestry(branch="main"))
    assert history[-1].id == firsts[0]
    assert len(history) == PROCESSES + 1


def create_only(place: Place, writer: int) -> bool:
    try:
        Repository.create(place.url, place.options, catalog=place.catalog)
    except AlreadyExistsError:
        return False
    return True


@pytest.mark.storm
def test_one_creator(place: Place) -> None:
    """Of many that create, one is told so, and the others that it is there."""
    assert Counter(run(create_only, place)) == {True: 1, False: PROCESSES - 1}
    assert len(list(place.open().ancestry(branch="main"))) == 1


def create_names(place: Place, writer: int, snapshot_ids: list[str], count: int) -> list[str]:
    """Try to take every name, with another snapshot than the others; give those that were got."""
    repo = place.open()
    won = []
    for number in range(count):
        for kind, create in (("branch", repo.create_branch), ("tag", repo.create_tag)):
            try:
                create(f"n{number}", snapshot_ids[writer])
            except AlreadyExistsError:
                continue
            won.append(f"{kind} n{number}")
    return won


@pytest.mark.storm
def test_one_winner_of_a_name(place: Place) -> None:
    """Of many that create a branch or a tag of one name, one wins, and it is the winner's."""
    count = 3 if place.options else 8
    repo = Repository.create(place.url, place.options, catalog=place.catalog)
    snapshot_ids = []
    for writer in range(PROCESSES):
        session = repo.writable_session("main")
        session.set_document(f"/w{writer}", group_document())
        snapshot_ids.append(session.commit("one"))

    answers = run(numbered_names, place, snapshot_ids, count)

    won = {name: writer for writer, names in answers for name in names}
    assert sum(len(names) for _, names in answers) == len(won) == 2 * count
    repo = place.open()
    for name, writer in won.items():
        kind, _, short = name.partition(" ")
        look_up = repo.lookup_branch if kind == "branch" else repo.lookup_tag
        assert look_up(short) == snapshot_ids[writer]


def numbered_names(
    place: Place, writer: int, snapshot_ids: list[str], count: int
) -> tuple[int, list[str]]:
    return writer, create_names(place, writer, snapshot_ids, count)
