"""The random sequences of session_machine, run; and what they once found, one by one."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from zarr.core.buffer import cpu

from icechunk_arrow import (
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    Repository,
)
from tests.conformance.session_machine import SETTINGS, SessionMachine
from tests.conformance.session_model import ONE_CHUNK, full_key

if TYPE_CHECKING:
    from icechunk_arrow import Session

EXAMPLES = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def test_a_session_is_a_dictionary_that_commits() -> None:
    """Whatever is done in whatever order, a session and all its snapshots show what was written."""
    run_state_machine_as_test(SessionMachine, settings=EXAMPLES)


def new_session() -> tuple[Repository, Session]:
    repository = Repository.create(f"memory://{secrets.token_hex(8)}", config=SETTINGS)
    return repository, repository.writable_session("main")


def put(session: Session, path: str, document: dict[str, Any]) -> None:
    data = cpu.Buffer.from_bytes(json.dumps(document).encode())
    session.store.set_sync(full_key(path, "zarr.json"), data)


def get(session: Session, key: str) -> bytes:
    chunk = session.store.get_sync(key)
    assert chunk is not None
    return chunk.to_bytes()


GROUP = {"zarr_format": 3, "node_type": "group"}


def test_a_group_with_nodes_below_it_does_not_become_an_array() -> None:
    """An array has no children, so a group that has some keeps its document."""
    _, session = new_session()
    put(session, "/a", GROUP)
    put(session, "/a/x", ONE_CHUNK)
    with pytest.raises(InvalidInputError, match="nodes below it"):
        put(session, "/a", ONE_CHUNK)
    assert json.loads(get(session, "a/zarr.json")) == GROUP


def test_nothing_moves_to_where_nodes_are_below() -> None:
    """A path without a node, but with nodes below it, takes no array and no other group's children."""
    _, session = new_session()
    for path, document in {"/": GROUP, "/a/x": ONE_CHUNK, "/w": ONE_CHUNK}.items():
        put(session, path, document)
    with pytest.raises(InvalidInputError, match="nodes below it"):
        session.move("/w", "/a")
    assert session.node_paths() == ["/", "/a/x", "/w"]


def test_a_rebase_that_fails_half_way_leaves_a_session_that_works() -> None:
    """The commits before the conflict are taken in, reads and writes stay right, and it can go on."""
    repository, ours = new_session()
    put(ours, "/mine", ONE_CHUNK)
    put(ours, "/both", ONE_CHUNK)
    ours.store.set_sync("mine/c/0", cpu.Buffer.from_bytes(b"mine"))
    commits = []
    for path in ("/first", "/both"):
        theirs = repository.writable_session("main")
        put(theirs, path, ONE_CHUNK)
        theirs.store.set_sync(full_key(path, "c/0"), cpu.Buffer.from_bytes(b"theirs"))
        commits.append(theirs.commit(path))
    with pytest.raises(RebaseFailedError, match="'/both'"):
        ours.rebase(ConflictDetector())
    assert ours.snapshot_id == commits[0]
    assert get(ours, "first/c/0") == b"theirs"
    assert get(ours, "mine/c/0") == b"mine"
    ours.store.set_sync("mine/c/0", cpu.Buffer.from_bytes(b"later"))
    with pytest.raises(ConflictError):
        ours.commit("not yet")
    ours.store.delete_sync("both/zarr.json")
    ours.rebase(ConflictDetector())
    ours.commit("now")
    reader = repository.readonly_session("main")
    for path, chunk in {"first": b"theirs", "both": b"theirs", "mine": b"later"}.items():
        assert get(reader, f"{path}/c/0") == chunk
