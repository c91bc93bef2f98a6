"""Invariants of branches, tags and files, looked at whenever a reference is written, and at the end.

By the specification: JSON and Parquet as they are; the package is asked for values alone.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.model import Model
    from tests.simulation.storage import Shared

__all__ = ["Watch"]

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LAST = (1 << 40) - 1
BRANCH = re.compile(rf"refs/branch\.([^/]+)/([{ALPHABET}]{{8}})\.json")
TAG = re.compile(r"refs/tag\.([^/]+)/(ref|deleted)\.json")


def number_of(name: str) -> int:
    """The number of an entry."""
    number = 0
    for character in name:
        number = number << 5 | ALPHABET.index(character)
    return LAST - number


class Watch:
    """Knows where branches and tags stood at every time."""

    def __init__(self, shared: Shared, model: Model) -> None:
        self.shared = shared
        self.model = model
        self.identity = ""
        self.tips: dict[str, list[tuple[int, str | None]]] = {}
        self.tags: dict[str, list[tuple[int, str | None]]] = {}
        self.counts: dict[str, int] = {}
        self.commits: dict[str, int] = {}
        """Commits of the repository that stands here, and when each came to be."""
        self.groups: dict[str, str] = {}
        self.wiped = -1
        """When the place was made anew."""
        self.foreign = 0
        shared.watch = self.wrote

    # -- what is written

    def wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        """Look at a reference that was just written; what is wrong ends the world."""
        try:
            self._wrote(key, before, data)
        except Violation as violation:
            self.shared.world.fail(violation)

    def _wrote(self, key: str, before: bytes | None, data: bytes) -> None:
        if key == "state.json":
            self._state(None if before is None else json.loads(before), json.loads(data))
        elif found := BRANCH.fullmatch(key):
            if before is not None:
                raise Violation("altered", f"{key} was written again")
            self._entry(found[1], number_of(found[2]), json.loads(data))
        elif found := TAG.fullmatch(key):
            if before is not None:
                raise Violation("altered", f"{key} was written again")
            self._tag(found[1], None if found[2] == "deleted" else json.loads(data)["snapshot"])

    def _entry(self, branch: str, number: int, entry: dict[str, Any]) -> None:
        expected = self.counts.get(branch, 0)
        if number != expected:
            raise Violation("gap", f"entry {number} of {branch}, and there are {expected}")
        self.counts[branch] = number + 1
        snapshot = entry["snapshot"]
        if entry.get("deleted"):
            self._move(branch, None)
            return
        facts = self.model.facts_of(snapshot)
        if (branch, number) == ("main", 0):
            self.identity = snapshot
        if facts["repository"] != self.identity:
            self.foreign += (
                1  # by one who began before the place was made anew; acknowledging looks at that
            )
            return
        self._there(snapshot, is_first=facts["parent"] is None)
        if "write_id" not in entry and number:
            if (facts["branch"], facts["sequence"]) != (branch, number):
                raise Violation(
                    "identity", f"entry {number} of {branch} names {facts['branch']}'s {snapshot}"
                )
            self._commit(branch, snapshot)
        self._move(branch, snapshot)

    def _state(self, before: dict[str, Any] | None, state: dict[str, Any]) -> None:
        listed = [each["snapshot-id"] for each in state["snapshots"]]
        branches, tags = _refs(state)
        old_listed: list[str] = []
        old_branches: dict[str, str] = {}
        if before is not None:
            old_listed = [each["snapshot-id"] for each in before["snapshots"]]
            old_branches = _refs(before)[0]
            if state["generation"] != before["generation"] + 1:
                raise Violation(
                    "gap", f"generation {state['generation']} after {before['generation']}"
                )
            if state["write-id"] == before["write-id"] or state["id"] != before["id"]:
                raise Violation("identity", "the state's id or write-id is not right")
        else:
            self.identity = state["id"]
        if listed[: len(old_listed)] != old_listed or len(set(listed)) != len(listed):
            raise Violation("history", "a snapshot that was listed is not any more, or twice")
        for snapshot in listed[len(old_listed) :]:
            self._there(snapshot, is_first=self.model.facts_of(snapshot)["parent"] is None)
        for name in {*branches, *old_branches}:
            if branches.get(name) != old_branches.get(name):
                tip = branches.get(name)
                is_new = tip in listed[len(old_listed) :]
                if tip is not None and is_new and self.model.facts_of(tip)["parent"]:
                    self._commit(name, tip)
                self._move(name, tip)
        for name, snapshot_id in tags.items():
            if self.tag_at(name) != snapshot_id:
                self._tag(name, snapshot_id)

    def _there(self, snapshot: str, *, is_first: bool) -> None:
        keys = [f"s/{snapshot}.parquet"] + ([] if is_first else [f"t/{snapshot}.parquet"])
        for key in keys:
            item = self.shared.objects.get(key)
            if item is None:
                raise Violation("half visible", f"{key} is named and not there")
            if not item.is_durable:
                raise Violation("durable", f"{key} is named, and a power cut would take it")

    def _commit(self, branch: str, snapshot: str) -> None:
        """Look at a commit that came to be."""
        model, name = self.model, self.model.name_of(snapshot)
        facts = model.facts_of(snapshot)
        tip = self.tip(branch)
        if facts["parent"] != tip:
            raise Violation(
                "parent", f"{snapshot} is on {facts['parent']}, and {branch} stood at {tip}"
            )
        attempt = model.attempts.get(name)
        if attempt is None:
            raise Violation("history", f"nobody tried {name!r}")
        if attempt.is_refused:
            raise Violation(
                "refused", f"{name} came to be after its session was told that it had lost"
            )
        if self.groups.setdefault(attempt.group, snapshot) != snapshot:
            raise Violation("twice", f"{name}, of which another attempt came to be before")
        self.commits[snapshot] = self.shared.world.tick
        self._facts(snapshot, facts, model.facts_of(facts["parent"]))
        model.check_conflicts(snapshot)

    def _facts(self, snapshot: str, facts: dict[str, Any], parent: dict[str, Any]) -> None:
        """Rules 20, 21 and 23, and the identity."""
        history = [parent["metadata"], *parent["short_term_history"]][:16]
        new = set(facts["ids"]) - set(parent["ids"])
        holds = {
            "id": facts["metadata"]["id"] == snapshot,
            "repository": facts["repository"] == parent["repository"] == self.identity,
            "count": facts["total_parents"] == parent["total_parents"] + 1,
            "history": facts["short_term_history"] == history,
            "time": facts["metadata"]["written_at"] > parent["metadata"]["written_at"],
            "start": facts["started_at"] <= facts["metadata"]["written_at"],
            "ids": len(set(facts["ids"])) == len(facts["ids"]),
            "new ids": not new or min(new) >= parent["next_node_id"],
            "next id": facts["next_node_id"] >= parent["next_node_id"]
            and facts["next_node_id"] > max(facts["ids"], default=0),
        }
        wrong = [name for name, is_so in holds.items() if not is_so]
        if wrong:
            raise Violation("identity", f"{', '.join(wrong)} of {snapshot}")

    def _move(self, branch: str, snapshot: str | None) -> None:
        self.tips.setdefault(branch, []).append((self.shared.world.tick, snapshot))

    def _tag(self, name: str, snapshot: str | None) -> None:
        before = self.tag_at(name)
        if before is not None and snapshot is not None:
            raise Violation("tag", f"{name} was at {before}, and is at {snapshot}")
        if snapshot is not None and self.tags.get(name):
            raise Violation("tag", f"{name} was withdrawn, and is there again")
        self.tags.setdefault(name, []).append((self.shared.world.tick, snapshot))

    # -- what was known when

    def tip(self, branch: str) -> str | None:
        """Where a branch stands."""
        moves = self.tips.get(branch)
        return moves[-1][1] if moves else None

    def tag_at(self, name: str) -> str | None:
        """Where a tag stands."""
        moves = self.tags.get(name)
        return moves[-1][1] if moves else None

    def tips_since(self, branch: str, tick: int) -> set[str | None]:
        """Where a branch stood at some time since a tick."""
        return _since(self.tips.get(branch, []), tick)

    def left_since(self, branch: str, snapshot: str, tick: int) -> set[str | None]:
        """From where a branch was moved to a snapshot since a tick."""
        moves = self.tips.get(branch, [])
        return {
            before
            for (_, before), (when, after) in pairwise(moves)
            if after == snapshot and when >= tick
        }

    def tags_since(self, name: str, tick: int) -> set[str | None]:
        """The same of a tag."""
        return _since(self.tags.get(name, []), tick)

    def begin(self) -> None:
        """Take what stands here for a repository that was just made; whatever there was before is forgotten."""
        self.tips, self.tags, self.counts, self.commits, self.groups = {}, {}, {}, {}, {}
        self.wiped = self.shared.world.tick if self.identity else -1
        objects = self.shared.objects
        entries = {
            number_of(match[2]): json.loads(item.data)["snapshot"]
            for key, item in objects.items()
            if (match := BRANCH.fullmatch(key))
        }
        self.identity = entries[0]
        self.counts["main"] = len(entries)
        tip = entries[max(entries)]
        if "state.json" in objects:
            tip = _refs(json.loads(objects["state.json"].data))[0]["main"]
        self.commits[tip] = self.shared.world.tick
        self._move("main", tip)


def _since(moves: list[tuple[int, str | None]], tick: int) -> set[str | None]:
    found: set[str | None] = set()
    before: str | None = None
    for when, snapshot in moves:
        if when < tick:
            before = snapshot
        else:
            found.add(snapshot)
    return found | {before}


def _refs(state: dict[str, Any]) -> tuple[dict[str, str], dict[str, str | None]]:
    branches, tags = {}, {}
    for ref in state["refs"].values():
        if ref["type"] == "branch":
            branches[ref["name"]] = ref["snapshot-id"]
        else:
            tags[ref["name"]] = None if ref.get("deleted") else ref["snapshot-id"]
    return branches, tags
