"""What a session has staged: ids of nodes."""

from __future__ import annotations

import pytest

from icechunk_arrow import InvalidInputError, Repository
from icechunk_arrow.core.snapshot import NODE_IDS_END
from tests.faults.repositories import group_document


def test_ids_of_nodes_come_to_an_end() -> None:
    """The last id is given out, and then none: no id is ever given to another node."""
    repository = Repository.create("memory://the-last-id")
    session = repository.writable_session("main")
    session._staging.next_node_id = NODE_IDS_END - 1
    session.set_document("/last", group_document())
    made = session.commit("the last")
    node = repository.readonly_session("main").find_node("/last")
    assert node is not None
    assert node.id == NODE_IDS_END - 1
    assert repository.lookup_branch("main") == made

    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"'/more' cannot be created: every id"):
        session.set_document("/more", group_document())
