"""Walks a repository from its first snapshot, replays what each commit says that it did, and compares.

What it knows of files it reads with pyarrow and JSON, by the specification; the package is asked for values and
documents alone.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import zarr

from icechunk_arrow.spark.reading.changed_chunks import arrays_changed
from icechunk_arrow.storage.open import open_storage
from tests.conformance.live_manifests import LiveManifests, place_of
from tests.replay.model import Array, Tree, fill_of, replayed, within

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.replay.model import Place as Coordinate
    from tests.replay.writers import Place

    Held = dict[int, set[Coordinate]]

__all__ = ["Found", "check"]

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ENTRY = rf"[{ALPHABET}]{{8}}\.json"
LAST = (1 << 40) - 1
HISTORY = 16


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a history was."""

    snapshots: int
    chunks: int
    rebased: int
    operations: Counter[str] = field(default_factory=Counter)
    """Rows of all logs, by operation."""


def check(place: Place, seen: Collection[str] = ()) -> Found:
    """Compare every snapshot that any branch or tag ever named with the model; raise where they differ.

    Those that a reader has ``seen`` are among them.
    """
    checking = _Check(place)
    found = checking.run()
    assert set(seen) <= checking.facts.keys(), "what no branch or tag ever named was seen"
    return found


class _Check:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.storage = open_storage(place.url, place.options)
        self.repo = place.open()
        self.source = (Path(place.folder) / "source" / "bytes").read_bytes()
        self.facts: dict[str, dict[str, Any]] = {}
        self.trees: dict[str, Tree] = {}
        self.held: dict[str, Held] = {}
        self.known: dict[str, Any] = {}
        self.operations: Counter[str] = Counter()
        self.rebased = 0

    def run(self) -> Found:
        named, committed = (
            self.entries() if self.place.catalog == "branches" else self.state()
        )  # fmt: skip
        for snapshot_id in named:
            self.read_history(snapshot_id)
        self.check_acknowledged(committed)
        for snapshot_id in sorted(
            self.facts, key=lambda each: int(self.facts[each]["total_parents"])
        ):
            self.check_snapshot(snapshot_id)
        self.check_refs()
        return Found(
            snapshots=len(self.facts),
            chunks=sum(len(places) for held in self.held.values() for places in held.values()),
            rebased=self.rebased,
            operations=self.operations,
        )

    def json(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.storage.get(key))
        return found

    # -- branches and tags

    def names(self, form: str) -> list[str]:
        """What has files of a form; a user's own, which may stand among them, are none of ours."""
        keys = [info.key for info in self.storage.list("refs/")]
        return sorted({found[1] for key in keys if (found := re.fullmatch(form, key))})

    def entries(self) -> tuple[set[str], list[str]]:
        """What branches and tags ever named, and the commits among it, each as often as it is named."""
        named, committed = set(), []
        for branch in self.names(rf"refs/branch\.([^/]+)/{ENTRY}"):
            entries = self.entries_of(branch)
            for number, entry in enumerate(entries):
                named.add(entry["snapshot"])
                if "write_id" in entry or (branch, number) == ("main", 0):
                    continue
                committed.append(entry["snapshot"])
                facts = self.facts_of(entry["snapshot"])
                assert (facts["branch"], facts["sequence"]) == (branch, number)
                assert number, "a branch begins with its creation"
                before = entries[number - 1]
                assert "deleted" not in before
                assert facts["parent"] == before["snapshot"], (
                    "a commit is not on what the branch named"
                )
        for tag in self.names(r"refs/tag\.([^/]+)/ref\.json"):
            named.add(self.json(f"refs/tag.{tag}/ref.json")["snapshot"])
        return named, committed

    def entries_of(self, branch: str) -> list[dict[str, Any]]:
        """All entries of a branch, from the first; there are no gaps, and each says where it stands."""
        folder = f"refs/branch.{branch}/"
        keys = [info.key for info in self.storage.list(folder)]
        hint = folder + "hint.json"
        ours = [key for key in keys if re.fullmatch(ENTRY, key.removeprefix(folder))]
        numbered = {number_of(key): self.json(key) for key in ours}
        assert sorted(numbered) == list(range(len(numbered))), f"{branch} has gaps"
        for number, entry in numbered.items():
            if "write_id" in entry:
                assert number_of(entry["key"]) == number
        if hint in keys:
            found = self.json(hint)
            assert numbered[found["sequence"]]["snapshot"] == found["snapshot"]
        elif branch == "main":
            assert len(numbered) <= HISTORY, "sixteen entries, and no hint"
        return [numbered[number] for number in range(len(numbered))]

    def state(self) -> tuple[set[str], list[str]]:
        """The same of a state file, which lists every commit ever made."""
        state = self.json("state.json")
        entries = self.entries_of("main")
        assert [entry.get("catalog") for entry in entries] == ["state"]
        listed = [each["snapshot-id"] for each in state["snapshots"]]
        assert len(listed) == len(set(listed))
        assert state["id"] == listed[0] == entries[0]["snapshot"]
        assert {ref["snapshot-id"] for ref in state["refs"].values()} <= set(listed)
        for each in state["snapshots"]:
            assert self.facts_of(each["snapshot-id"])["parent"] == each.get("parent-snapshot-id")
        return set(listed), listed[1:]

    def check_refs(self) -> None:
        """What the package says of branches and tags is what their files say."""
        for branch in self.repo.list_branches():
            tip = self.repo.lookup_branch(branch)
            ancestry = [info.id for info in self.repo.ancestry(branch=branch)]
            wanted = [tip]
            while (parent := self.facts[wanted[-1]]["parent"]) is not None:
                wanted.append(parent)
            assert ancestry == wanted
            if self.place.catalog == "branches":
                newest = self.entries_of(branch)[-1]
                assert (newest["snapshot"], newest.get("deleted")) == (tip, None)
            live = LiveManifests.read(self.storage.get, tip, self.known)
            folder = Path(self.place.folder) / f"counting-{tip}"
            folder.mkdir(exist_ok=True)
            count = sum(map(len, self.held[tip].values()))
            assert live.count_by_duckdb(self.storage.get, folder) == (count, count)
        for tag in self.repo.list_tags():
            assert self.repo.lookup_tag(tag) in self.facts

    def check_acknowledged(self, committed: list[str]) -> None:
        """Every commit that returned is there exactly once, and none besides."""
        made = {i for i, facts in self.facts.items() if facts["parent"] is not None}
        assert Counter(committed) == Counter(made), "commits, and entries that name them"
        acknowledged = Counter(self.told("acknowledged-*"))
        found = Counter(self.facts[i]["properties"]["replay"]["name"] for i in made)
        assert not found or max(found.values()) == 1, "a commit was made twice"
        left_open = set(self.told("open-*")) - acknowledged.keys()
        found = Counter({name: count for name, count in found.items() if name not in left_open})
        assert found == acknowledged, "commits that are there, and those that were acknowledged"

    def told(self, files: str) -> list[str]:
        """What writers wrote down of their commits."""
        found = Path(self.place.folder).glob(files)
        return [json.loads(line) for file in found for line in file.read_text().splitlines()]

    # -- facts

    def facts_of(self, snapshot_id: str) -> dict[str, Any]:
        found = self.facts.get(snapshot_id)
        if found is None:
            file = pq.ParquetFile(io.BytesIO(self.storage.get(f"s/{snapshot_id}.parquet")))
            found = json.loads(file.metadata.metadata[b"icechunk.snapshot"])
            history = found["short_term_history"]
            found["parent"] = history[0]["id"] if history else None
            found["nodes"] = file.read(columns=["id", "path", "type"]).to_pylist()
            self.facts[snapshot_id] = found
        return found

    def read_history(self, snapshot_id: str | None) -> None:
        while snapshot_id is not None and self.facts_of(snapshot_id).setdefault("seen", 0) == 0:
            self.facts[snapshot_id]["seen"] = 1
            snapshot_id = self.facts[snapshot_id]["parent"]

    def check_facts(self, snapshot_id: str) -> None:
        """Rules 20 to 23, and the identity."""
        facts = self.facts[snapshot_id]
        ids = [node["id"] for node in facts["nodes"]]
        paths = [node["path"] for node in facts["nodes"]]
        assert facts["metadata"]["id"] == snapshot_id
        assert facts["short_term_parents"] == len(facts["short_term_history"])
        assert facts["started_at"] <= facts["metadata"]["written_at"]
        assert paths == sorted(paths, key=str.encode)
        assert len(set(paths)) == len(paths)
        assert len(set(ids)) == len(ids)
        assert not ids or (min(ids) >= 1 and max(ids) < facts["next_node_id"])
        if facts["parent"] is None:
            assert (facts["repository"], facts["total_parents"], ids) == (snapshot_id, 0, [])
            return
        parent = self.facts[facts["parent"]]
        assert facts["repository"] == parent["repository"]
        assert facts["total_parents"] == parent["total_parents"] + 1
        history = [parent["metadata"], *parent["short_term_history"]][:HISTORY]
        assert facts["short_term_history"] == history
        assert facts["metadata"]["written_at"] > parent["metadata"]["written_at"]
        assert facts["next_node_id"] >= parent["next_node_id"]
        new = set(ids) - {node["id"] for node in parent["nodes"]}
        assert not new or min(new) >= parent["next_node_id"], "a node id was given out again"

    # -- snapshots

    def check_snapshot(self, snapshot_id: str) -> None:
        facts = self.facts[snapshot_id]
        self.check_facts(snapshot_id)
        before = Tree(source=self.source)
        if facts["parent"] is not None:
            before = self.trees[facts["parent"]]
        tree = self.expected(snapshot_id, before) if facts["parent"] is not None else before
        try:
            self.compare(snapshot_id, tree)
            if facts["parent"] is not None:
                self.check_log(snapshot_id, before, tree)
                self.check_stream(snapshot_id, tree)
        except AssertionError as error:
            note = json.dumps(facts["properties"].get("replay"))
            error.add_note(f"at snapshot {snapshot_id}, parent {facts['parent']}: {note}")
            raise
        self.trees[snapshot_id] = tree

    def expected(self, snapshot_id: str, before: Tree) -> Tree:
        """Replay what a commit did, with what a solver decided."""
        facts = self.facts[snapshot_id]
        note = facts["properties"]["replay"]
        base = note.get("base", facts["parent"])
        if base == facts["parent"]:
            return replayed(before, note["operations"])
        self.rebased += 1
        staged = replayed(self.trees[base], note["operations"])
        left = {node.node_id for node in before.nodes.values()}
        given = {
            path
            for path, _ in note.get("theirs", ())
            if (node := self.trees[base].nodes.get(path)) and node.node_id not in left
        }  # all of ours was given up, and later they deleted it
        standing = self._standing(note["operations"], self.trees[base], staged, given)
        tree = replayed(before, standing)
        for path, places in note.get("ours", ()):
            self._keep(tree.array(path), staged.array(path), places)
        for path, places in note.get("theirs", ()):
            if path in given:
                continue
            self._give(
                tree.array(path), before.array(path), places, self._cut_since(base, facts["parent"])
            )
        return tree

    def _standing(
        self, operations: list[Any], base: Tree, staged: Tree, given: set[str]
    ) -> list[Any]:
        """Leave out what does not stand: it is in nobody's way, whatever others did.

        That is a change of a document that was taken back, and all that was done to nodes before they were deleted.
        """
        standing: list[Any] = []
        gone = set(given)
        for operation in reversed(operations):
            if operation["op"] == "delete":
                gone |= {path for path, _ in operation["nodes"]}
                known = [node for node in operation["nodes"] if node[1] is not None]
                operation = {"op": "delete", "nodes": known}  # noqa: PLW2901 -- others know these alone
            elif operation["op"] == "move" and operation["to"] in gone:
                old, new = operation["path"], operation["to"]
                inside = {p for p in gone if p == new or p.startswith(new + "/")}
                gone = gone - inside | {old + p[len(new) :] for p in inside}
                continue
            elif operation["op"] in {"create_group", "create_array"} and operation["path"] in gone:
                gone.discard(operation["path"])
                continue
            elif operation["op"] == "forks":
                parts = [
                    [each for each in part if each["path"] not in gone]
                    for part in operation["parts"]
                ]
                between = [each for each in operation["between"] if each["path"] not in gone]
                standing.append({"op": "forks", "parts": parts, "between": between})
                continue
            elif operation["path"] in gone or not _changes(operation, base, staged):
                continue
            standing.append(operation)
        return standing[::-1]

    def _keep(self, array: Array, staged: Array, places: list[list[int]] | None) -> None:
        """What the session had over its own base stays, of chunks that both wrote."""
        for place in staged.touched if places is None else map(tuple, places):
            if place in staged.touched:
                array.put(place, staged.data.get(place))

    def _give(
        self,
        array: Array,
        before: Array,
        places: list[list[int]] | None,
        cut: dict[int, list[Coordinate]],
    ) -> None:
        """What others wrote stays, and what they cut off."""
        given = set(map(tuple, places or ()))
        if places is None and before.node_id is not None:
            for kept in cut.get(before.node_id, ()):
                given |= {place for place in array.touched if not within(place, kept)}
        for place in given:
            array.put(place, before.data.get(place))
        array.touched -= given

    def _cut_since(self, base: str, parent: str) -> dict[int, list[Coordinate]]:
        """What the commits behind a base cut off, by node."""
        found: dict[int, list[Coordinate]] = {}
        while parent != base:
            for _, array in self.trees[parent].arrays():
                if array.kept is not None and array.node_id is not None:
                    found.setdefault(array.node_id, []).append(array.kept)
            parent = self.facts[parent]["parent"]
        return found

    def compare(self, snapshot_id: str, tree: Tree) -> None:
        """Nodes, ids, documents, values, and where chunks are."""
        facts = self.facts[snapshot_id]
        ids = {node["path"]: node["id"] for node in facts["nodes"]}
        kinds = {node["path"]: node["type"] for node in facts["nodes"]}
        wanted = {p: "array" if isinstance(n, Array) else "group" for p, n in tree.nodes.items()}
        assert kinds == wanted
        for path, node in tree.nodes.items():
            assert node.node_id in {None, ids[path]}, f"{path} has another id"
            node.node_id = ids[path]
        session = self.repo.readonly_session(snapshot_id=snapshot_id)
        for path, node in tree.nodes.items():
            found = session.find_node(path)
            assert found is not None
            document = json.loads(session.document(found))
            assert document["attributes"] == node.attributes, path
            if isinstance(node, Array):
                assert tuple(document["shape"]) == node.shape, path
                assert document["data_type"] == node.dtype
                values = zarr.open_array(session.store, path=path[1:], mode="r")[...]
                self.compare_values(path, node, np.asarray(values))
        live = LiveManifests.read(self.storage.get, snapshot_id, self.known)
        live.check({path: set(array.data) for path, array in tree.arrays()})
        self.held[snapshot_id] = {ids[path]: set(array.data) for path, array in tree.arrays()}

    def compare_values(self, path: str, array: Array, found: np.ndarray) -> None:
        wanted = array.values()
        assert found.shape == wanted.shape
        if found.tobytes() != wanted.tobytes():
            differ = found.view() != wanted
            if found.dtype.kind == "f":
                differ &= ~(np.isnan(found) & np.isnan(wanted))
            where = [tuple(map(int, each)) for each in np.argwhere(differ)[:5]]
            assert not where, (
                f"{path} at {where}: {[found[each] for each in where]}, "
                f"and the model says {[wanted[each] for each in where]} (filler {fill_of(array)})"
            )

    # -- logs

    def check_log(self, snapshot_id: str, before: Tree, after: Tree) -> None:
        """A log turns the parent's nodes and chunks into the snapshot's, and says what was touched."""
        rows = pq.read_table(io.BytesIO(self.storage.get(f"t/{snapshot_id}.parquet"))).to_pylist()
        assert [row["id"] for row in rows] == list(range(len(rows)))
        self.operations.update(row["operation"] for row in rows)
        self.check_nodes_of_log(rows, before, after)
        held = {
            i: set(places) for i, places in self.held[self.facts[snapshot_id]["parent"]].items()
        }
        parents = {i: frozenset(places) for i, places in held.items()}
        touched: Held = {}
        made = {row["node_id"] for row in rows if row["operation"] == "create_node"}
        for row in rows:
            self.apply(row, held, parents, touched, made)
        assert {i: p for i, p in held.items() if p} == {
            i: p for i, p in self.held[snapshot_id].items() if p
        }, "the log does not lead from the parent's chunks to the snapshot's"
        wanted = {
            array.node_id: array.touched & set(array.data)
            if array.node_id in made
            else array.touched
            for _, array in after.arrays()
        }
        assert touched == {i: places for i, places in wanted.items() if places}, "what was touched"

    def check_stream(self, snapshot_id: str, after: Tree) -> None:
        """Who follows commits is told of every chunk that was written or went, each once."""
        written = {array.node_id: array.touched & set(array.data) for _, array in after.arrays()}
        left = self.held[snapshot_id]
        before = self.held[self.facts[snapshot_id]["parent"]]
        wanted = {
            "write_chunk": {i: places for i, places in written.items() if places},
            "delete_chunk": {
                i: gone for i, places in before.items() if (gone := places - left.get(i, set()))
            },
        }
        found: dict[str, Held] = {kind: {} for kind in wanted}
        for changes in arrays_changed(self.repo._context, snapshot_id):
            for piece in changes.pieces(7):
                places = [tuple(p) for some in changes.coordinates(piece) for p in some.tolist()]
                known = found[piece.operation].setdefault(piece.node.id, set())
                assert not known & set(places), "told twice"
                assert len(set(places)) == len(places)
                known |= set(places)
        for kind, told in found.items():
            assert {i: p for i, p in told.items() if p} == wanted[kind], f"{kind}: what is told"

    def check_nodes_of_log(self, rows: list[dict[str, Any]], before: Tree, after: Tree) -> None:
        old = {node.node_id: (path, node) for path, node in before.nodes.items()}
        new = {node.node_id: (path, node) for path, node in after.nodes.items()}
        both = old.keys() & new.keys()
        of = {kind: {row["node_id"]: row for row in rows if row["operation"] == kind} for kind in (
            "create_node", "delete_node", "move_node", "update_attributes", "update_metadata",
            "resize_array")}  # fmt: skip
        assert of["create_node"].keys() == new.keys() - old.keys()
        assert of["delete_node"].keys() == old.keys() - new.keys()
        moved = {i for i in both if old[i][0] != new[i][0]}
        assert of["move_node"].keys() == moved
        assert all(row["from_path"] == old[i][0] for i, row in of["move_node"].items())
        changed = {}
        for node_id in both:
            a, b = old[node_id][1].attributes, new[node_id][1].attributes
            keys = {k for k in a.keys() | b.keys() if (k in a, a.get(k)) != (k in b, b.get(k))}
            if keys:
                changed[node_id] = sorted(keys)
        assert {i: sorted(row["keys"]) for i, row in of["update_attributes"].items()} == changed
        assert not of["update_metadata"]
        shapes = {
            i: (list(one.shape), list(other.shape))
            for i in both
            if isinstance(one := old[i][1], Array)
            and isinstance(other := new[i][1], Array)
            and one.shape != other.shape
        }
        said = {
            i: (row["shape_before"], row["shape_after"]) for i, row in of["resize_array"].items()
        }
        assert said == shapes

    def apply(
        self,
        row: dict[str, Any],
        held: Held,
        parents: dict[int, frozenset[Coordinate]],
        touched: Held,
        made: set[int],
    ) -> None:
        """Do to chunks what a row of a log says."""
        kind, node_id = row["operation"], row["node_id"]
        if kind == "delete_node":
            held.pop(node_id, None)  # groups have none
        elif kind == "create_node":
            held[node_id] = set()
        elif kind == "truncate_chunks":
            assert node_id not in made
            assert all(start == 0 for start, _ in row["extent"])
            held[node_id] = {p for p in held[node_id] if in_box(p, row["extent"])}
        elif kind in {"write_chunk", "write_chunks", "relocate_chunks"}:
            places = self.places_of(row)
            assert row["effect"] == ("placement" if kind == "relocate_chunks" else "content")
            if kind == "relocate_chunks":
                assert places <= held[node_id], "what is not there was placed elsewhere"
                return
            assert not touched.setdefault(node_id, set()) & places, "written twice in one log"
            held[node_id] |= places
            touched[node_id] |= places
        elif kind in {"delete_chunk", "delete_chunks"}:
            assert node_id not in made, "nobody knew that array"
            places = self.places_of(row)
            if kind == "delete_chunks":
                assert row["chunk_count"] == len(places & parents[node_id]), "how many were there"
            held[node_id] -= places
            touched.setdefault(node_id, set()).update(places)
        else:
            assert kind in {"snapshot", "move_node", "update_attributes", "resize_array"}, kind

    def places_of(self, row: dict[str, Any]) -> set[Coordinate]:
        """The chunks of which a row of a log speaks."""
        if row["extent"] is None:
            return {place_of(row["coord"])}
        box = set(itertools.product(*(range(start, stop) for start, stop in row["extent"])))
        if row["operation"] == "delete_chunks" or row["chunk_count"] == len(box):
            return box
        table = pq.read_table(
            io.BytesIO(self.storage.get(f"i/{row['manifest']}")), columns=["array_id", "coord"]
        )
        found = {
            place_of(data)
            for owner, data in zip(
                table["array_id"].to_pylist(), table["coord"].to_pylist(), strict=True
            )
            if owner == row["node_id"]
        }
        assert len(found) == row["chunk_count"]
        extent = [[min(axis), max(axis) + 1] for axis in zip(*found, strict=True)]
        assert extent == [list(each) for each in row["extent"]]
        return found


def _changes(operation: dict[str, Any], base: Tree, staged: Tree) -> bool:
    """Whether a change of a document is there at the end."""
    old, new = base.nodes.get(operation["path"]), staged.nodes.get(operation["path"])
    if old is None or new is None or old.node_id != new.node_id:
        return True
    if operation["op"] == "attributes":
        return old.attributes != new.attributes
    if operation["op"] == "resize" and isinstance(old, Array) and isinstance(new, Array):
        return old.shape != new.shape or new.kept is not None
    return True


def in_box(place: Coordinate, extent: list[list[int]]) -> bool:
    return all(start <= i < stop for i, (start, stop) in zip(place, extent, strict=True))


def number_of(key: str) -> int:
    """The number of an entry, of its key."""
    name = key.rpartition("/")[2].removesuffix(".json")
    number = 0
    for letter in name:
        number = number * 32 + ALPHABET.index(letter)
    return LAST - number
