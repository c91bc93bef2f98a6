"""What was tried, what was acknowledged, and what every snapshot has to show: values alone, nothing of the package.

A tree of the replay's model whose chunks are bytes. Commits carry the name of the attempt that made them; what an
attempt did is known here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.replay.model import Array, Group, Tree
from tests.simulation.schedule import PATHS, SHAPE
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.storage import Shared

__all__ = ["SETUP", "Attempt", "Contents", "Model", "Shown", "payload"]

Operation = dict[str, Any]
Contents = dict[str, Any]


def payload(uid: int, size: int) -> bytes:
    """The bytes of a chunk: who wrote it can be read off."""
    return f"{uid:04}".encode() * (size // 4)


class Shown(Tree):
    """All nodes by path; chunks are bytes."""

    def again(self) -> Shown:
        return Shown({path: node.again() for path, node in self.nodes.items()})

    def _create(self, op: Operation) -> None:
        array = Array((SHAPE,), (1,), "uint8", 0, node_id=op["uid"])
        self.nodes[op["path"]] = array

    def _put(self, op: Operation) -> None:
        data: Any = None if op["size"] is None else payload(op["uid"], op["size"])
        self.array(op["path"]).put((op["place"],), data)

    def contents(self) -> Contents:
        """What a reader sees."""
        return {
            path: node.attributes
            if isinstance(node, Group)
            else {p[0]: c for p, c in node.data.items()}
            for path, node in self.nodes.items()
        }


def _shown(tree: Shown, operations: Iterable[Operation]) -> Shown:
    found = tree.again()
    found.do(operations)
    return found


SETUP: list[Operation] = [
    {"op": "create_group", "path": "/"},
    {"op": "create_group", "path": "/g"},
    *({"op": "create", "path": path, "uid": i + 1} for i, path in enumerate(PATHS)),
    *(
        {"op": "put", "path": "/a", "place": i, "size": size, "uid": 9}
        for i, size in ((0, 4), (1, 20))
    ),
]


@dataclass
class Attempt:
    """A commit that was tried: of one group at most one comes to be."""

    group: str
    operations: list[Operation]
    is_refused: bool = False


@dataclass
class Model:
    """Everything that is known without asking the package."""

    shared: Shared
    attempts: dict[str, Attempt] = field(default_factory=dict)
    trees: dict[str, Shown] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def facts_of(self, snapshot_id: str) -> dict[str, Any]:
        """What the file of a snapshot says, also of one that is not there any more."""
        found = self.facts.get(snapshot_id)
        if found is None:
            data = self.shared.ever.get(f"s/{snapshot_id}.parquet")
            if data is None:
                raise Violation("half visible", f"the snapshot {snapshot_id} was never written")
            file = pq.ParquetFile(pa.BufferReader(data))
            found = json.loads(file.metadata.metadata[b"icechunk.snapshot"])
            history = found["short_term_history"]
            found["parent"] = history[0]["id"] if history else None
            found["ids"] = file.read(columns=["id"])["id"].to_pylist()
            self.facts[snapshot_id] = found
        return found

    def name_of(self, snapshot_id: str) -> str:
        """The attempt that made a snapshot."""
        name: str = self.facts_of(snapshot_id)["properties"].get("sim", "")
        return name

    def tree_of(self, snapshot_id: str) -> Shown:
        """What a snapshot has to show."""
        found = self.trees.get(snapshot_id)
        if found is None:
            facts = self.facts_of(snapshot_id)
            if facts["parent"] is None:
                found = Shown()
            else:
                name = self.name_of(snapshot_id)
                if name not in self.attempts:
                    raise Violation("history", f"nobody tried the commit {name!r} of {snapshot_id}")
                try:
                    found = _shown(self.tree_of(facts["parent"]), self.attempts[name].operations)
                except (KeyError, AssertionError) as error:
                    fact = f"{name} cannot be done on {facts['parent']}: {error!r}"
                    raise Violation("conflict", fact) from error
            self.trees[snapshot_id] = found
        return found

    def with_staged(self, snapshot_id: str, staged: list[Operation]) -> Shown:
        """What a session shows that began, or was rebased, there."""
        try:
            return _shown(self.tree_of(snapshot_id), staged)
        except (KeyError, AssertionError) as error:
            raise Violation("conflict", f"staged changes on {snapshot_id}: {error!r}") from error

    def ancestors(self, snapshot_id: str | None) -> Iterable[str]:
        """A snapshot and those before it."""
        while snapshot_id is not None:
            yield snapshot_id
            snapshot_id = self.facts_of(snapshot_id)["parent"]

    def check_conflicts(self, snapshot_id: str) -> None:
        """What a commit changed nobody has changed since it saw it."""
        mine = self.attempts[self.name_of(snapshot_id)].operations
        others: dict[str, str] = {}
        bases = {op["base"] for op in mine if "base" in op}
        parent = self.facts_of(snapshot_id)["parent"]
        open_bases = set(bases) - {parent}
        between: list[str] = []
        for ancestor in self.ancestors(parent):
            if ancestor in open_bases:
                open_bases.discard(ancestor)
            if not open_bases:
                break
            between.append(ancestor)
        for ancestor in between:
            for op in self.attempts[self.name_of(ancestor)].operations:
                for what in _touched(op):
                    others.setdefault(what, ancestor)
        seen = set(between)
        for op in mine:
            base = op.get("base")
            if base is None or base == parent:
                continue
            # only what came after the base that this operation was made on
            after = set()
            for ancestor in self.ancestors(parent):
                if ancestor == base:
                    break
                after.add(ancestor)
            for what in _touched(op):
                if others.get(what) in after & seen:
                    fact = f"{self.name_of(snapshot_id)} changed {what}, as did {others[what]} meanwhile"
                    raise Violation("conflict", fact)


def _touched(op: Operation) -> list[str]:
    match op["op"]:
        case "put":
            return [f"chunk {op['path']} {op['place']}"]
        case "create" | "create_group":
            return [f"node {op['path']}"]
        case "attributes":
            return [f"attributes {op['path']}"]
    return []
