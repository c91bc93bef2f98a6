"""Defects to be planted, each of which the checker has to find."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from icechunk_arrow.core import coords
from icechunk_arrow.engine import branch_session, commit, plan
from icechunk_arrow.engine.session import BaseSession

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFECTS", "plant"]


def _forgotten_fillers(patch: pytest.MonkeyPatch) -> None:
    """A chunk that is not there is not deleted."""

    def delete_chunk(self: Any, path: str, coord: tuple[int, ...]) -> None:
        view = self.find_array(path)
        if view is None or not view.grid.contains(coord):
            return
        if self.find_chunk(view, coord) is not None:
            self._staging.chunks_of(view.node.id).singles[coords.encode_one(coord)] = None

    patch.setattr(BaseSession, "delete_chunk", delete_chunk)


def _unseen_conflicts(patch: pytest.MonkeyPatch) -> None:
    """Nothing conflicts with anything."""
    patch.setattr(branch_session, "conflicts", lambda *_: ())


def _reused_ids(patch: pytest.MonkeyPatch) -> None:
    """The id for the next node is the least that no node has now."""
    original = plan.plan_commit

    def plan_commit(base: Any, changes: Any, **more: Any) -> Any:
        ids = [node.id for node in changes.overlay.values() if node is not None]
        least = max([*ids, *base.rows_by_id], default=0) + 1
        facts = replace(base.facts, next_node_id=1)
        return original(replace(base, facts=facts), replace(changes, next_node_id=least), **more)

    patch.setattr(commit, "plan_commit", plan_commit)


def _greedy_compaction(patch: pytest.MonkeyPatch) -> None:
    """A compaction does not give way."""
    patch.setattr(branch_session, "_give_way", lambda *_: None)


def _forgotten_rows(patch: pytest.MonkeyPatch) -> None:
    """A manifest that is written again without what goes loses one row more."""
    original = vars(plan)["subtract"]

    def subtract(table: Any, going: Any, removed: Any) -> Any:
        rest = original(table, going, removed)
        return rest.slice(1) if 0 < rest.num_rows < table.num_rows else rest

    patch.setattr(plan, "subtract", subtract)


DEFECTS = {
    "forgotten fillers": _forgotten_fillers,
    "unseen conflicts": _unseen_conflicts,
    "reused ids": _reused_ids,
    "greedy compaction": _greedy_compaction,
    "forgotten rows": _forgotten_rows,
}


@contextmanager
def plant(name: str) -> Iterator[None]:
    """Plant a defect for a while; none, if it has no name."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            DEFECTS[name](patch)
        yield
