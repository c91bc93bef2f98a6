"""Random histories of whole repositories: arrays, chunks in any number, branches, commits and rebases.

Constants and limits are so small that everything happens: manifests overflow, are cut, merged, dropped and
rewritten; references go through runs. After every commit the files themselves are looked at.
"""

from __future__ import annotations

import copy
import itertools
import json
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from icechunk_arrow import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    VersionSelection,
)
from icechunk_arrow.core import placement
from icechunk_arrow.core.manifest_settings import ManifestRule, ManifestSet, ManifestSettings
from icechunk_arrow.engine import plan, references, session
from icechunk_arrow.engine.bulk import BulkSettings
from icechunk_arrow.storage.open import open_storage
from tests.conformance.history_model import ArrayModel, Changes, Model, rebased
from tests.conformance.live_manifests import LiveManifests
from tests.faults.repositories import through
from tests.faults.storage_wrappers import WrappedStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hypothesis.strategies import DataObject

    from icechunk_arrow import Session
    from icechunk_arrow.core.chunks import ChunkRef
    from tests.conformance.history_model import Place, Value

__all__ = ["LAYOUTS", "Hand", "HistoryMachine", "document", "make_tiny"]

FAN = 3
BULK = BulkSettings(
    slice_rows=7,
    held_rows=6,
    held_rows_in_all=9,
    gather_rows=12,
    gather_bytes=1 << 30,
    run_batch_rows=3,
)
LAYOUTS = {
    "one set": ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=7),), rules=()),
    "three sets": ManifestSettings(
        sets=(
            ManifestSet(name="scalars", max_manifest_size=3, cardinality=1, overflow_to="small"),
            ManifestSet(name="small", max_manifest_size=8, cardinality=2),
            ManifestSet(name="default", max_manifest_size=12, split_along=1),
        ),
        rules=(
            ManifestRule(target="scalars", metadata_chunks=(0, 4)),
            ManifestRule(target="small", path="/g/.*"),
        ),
    ),
    "by number": ManifestSettings(
        sets=(
            ManifestSet(name="pairs", max_manifest_size=None, arrays_per_manifest=2,
                        overflow_to=None),
            ManifestSet(name="default", max_manifest_size=5, split_along=2),
        ),
        rules=(
            ManifestRule(target="pairs", path="/.", initialized_chunks=(0, 20)),
            ManifestRule(target="default", initialized_chunks=(30, None)),
        ),
    ),
    "as it comes": ManifestSettings(),
}  # fmt: skip
GROUP = json.dumps({"zarr_format": 3, "node_type": "group"}).encode()
PATHS = ("/a", "/b", "/g/a", "/g/b")
few = st.integers(3, 6)
shapes = (
    st.tuples(few, few)
    | st.tuples(few, few)
    | st.lists(st.integers(0, 30), max_size=1).map(tuple)
    | st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
)


def make_tiny(patch: pytest.MonkeyPatch) -> None:
    """Make every limit of the engine small."""
    patch.setattr(placement, "SMALL_ROWS", 4)
    patch.setattr(placement, "MERGE_FAN", FAN)
    patch.setattr(placement, "MAX_MANIFEST_ROWS", 20)
    patch.setattr(plan, "LOGGED_COORDS", 3)
    patch.setattr(session, "_MOST_SINGLES", 8)
    patch.setattr(session, "_SINGLES_CHECKED", 3)
    defaults = references.stage_rows.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "settings", BULK)


def document(counts: Place) -> bytes:
    """An array with chunks of one byte."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(counts),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(counts)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


class Hand:
    """Somebody who changes a branch: a session, and what it should show."""

    def __init__(self, made: Session, model: Model, numbers: Iterator[int]) -> None:
        self.session = made
        self.model = copy.deepcopy(model)
        self.changes = Changes()
        self._numbers = numbers

    # -- arrays

    def create(self, path: str, counts: Place) -> None:
        self.session.set_document(path, document(counts))
        array = ArrayModel(next(self._numbers), counts)
        self.model[path] = array
        self.changes.created[array.uid] = path

    def delete(self, path: str) -> None:
        self.session.delete_nodes([path])
        uid = self.model.pop(path).uid
        if self.changes.created.pop(uid, None) is None:
            self.changes.deleted.add(uid)
        for each in (self.changes.resized, self.changes.kept, self.changes.touched):
            each.pop(uid, None)

    def resize(self, path: str, counts: Place) -> None:
        self.session.set_document(path, document(counts))
        array, changes = self.model[path], self.changes
        if array.uid not in changes.created:
            changes.resized.setdefault(array.uid, array.counts)
            if any(new < old for new, old in zip(counts, array.counts, strict=True)):
                before = changes.kept.get(array.uid, array.counts)
                changes.kept[array.uid] = tuple(map(min, before, counts))
        array.counts = counts
        places = set(array.places)
        array.chunks = {p: v for p, v in array.chunks.items() if p in places}
        touched = changes.touched.get(array.uid, {})
        changes.touched[array.uid] = {p: v for p, v in touched.items() if p in places}

    def move(self, path: str, to: str) -> None:
        self.session.move(path, to)
        self.model[to] = self.model.pop(path)
        uid = self.model[to].uid
        if uid in self.changes.created:
            self.changes.created[uid] = to
        else:
            self.changes.moved.setdefault(uid, path)

    # -- chunks

    def _note(self, path: str, place: Place, value: Value | None) -> None:
        array = self.model[path]
        if value is None:
            del array.chunks[place]
        else:
            array.chunks[place] = value
        self.changes.touched.setdefault(array.uid, {})[place] = value

    def write(self, path: str, places: Sequence[Place]) -> None:
        for place in places:
            number = next(self._numbers)
            value = number.to_bytes(3, "big") * (1 + number % 4)
            self.session.write_chunk(path, place, value)
            self._note(path, place, value)

    def delete_chunks(self, path: str, places: Sequence[Place]) -> None:
        for place in places:
            self.session.delete_chunk(path, place)
            if place in self.model[path].chunks:
                self._note(path, place, None)

    def refer(self, paths: Sequence[str], places: Sequence[Sequence[Place]], *, last: bool) -> None:
        """Set references of one or several arrays at once; with ``last`` some stand there twice."""
        rows = [(p, place) for p, mine in zip(paths, places, strict=True) for place in mine]
        rows += rows[: len(rows) // 3] if last else []
        values = [(f"s3://bucket/{next(self._numbers) % 5}", next(self._numbers), 1) for _ in rows]
        columns: dict[str, Any] = {
            "index": pa.array([list(place) for _, place in rows], pa.list_(pa.int64())),
            "location": pa.array([location for location, _, _ in values], pa.string()),
            "offset": pa.array([offset for _, offset, _ in values], pa.int64()),
            "length": pa.array([length for _, _, length in values], pa.int64()),
        }
        path = paths[0] if len(paths) == 1 else None
        if path is None:
            columns["path"] = pa.array([p for p, _ in rows], pa.string())
        duplicates = "last" if last else "error"
        self.session.set_references(path, pa.table(columns), duplicates=duplicates)
        for (p, place), value in zip(rows, values, strict=True):
            self._note(p, place, value)

    # -- what is compared

    def compare(self) -> None:
        compare(self.session, self.model)

    def draw_some(self, data: DataObject, path: str, *, held: bool = False) -> list[Place]:
        """A few places, a block of neighbours, every second one, or all of an array in any order."""
        array = self.model[path]
        places = sorted(array.chunks) if held else array.places
        if not places:
            return []
        kind = data.draw(st.integers(0, 5))
        if kind == 0:
            return data.draw(st.lists(st.sampled_from(places), max_size=3, unique=True))
        if kind == 1:
            return data.draw(st.permutations(places))
        if kind == 2:
            return places[data.draw(st.integers(0, 1)) :: 2]
        start = data.draw(st.integers(0, len(places) - 1))
        return places[start : start + data.draw(st.integers(1, 20))]

    def act(self, data: DataObject) -> None:
        """Do something to chunks or arrays, whatever comes."""
        kinds = ["refer"] * 4 + ["write"] * 2 + ["delete", "resize", "create", "drop"]
        kind = data.draw(st.sampled_from(kinds))
        free = [path for path in PATHS if path not in self.model]
        if kind == "create" or not self.model:
            if free:
                self.create(data.draw(st.sampled_from(free)), data.draw(shapes))
            return
        path = data.draw(st.sampled_from(sorted(self.model)))
        if kind == "write":
            self.write(path, self.draw_some(data, path))
        elif kind == "refer":
            self.refer([path], [self.draw_some(data, path)], last=data.draw(st.booleans()))
        elif kind == "delete":
            self.delete_chunks(path, self.draw_some(data, path, held=True))
        elif kind == "resize":
            old = self.model[path].counts
            self.resize(path, tuple(data.draw(st.integers(max(n - 3, 0), n + 2)) for n in old))
        else:
            self.delete(path)


def compare(shown: Session, model: Model) -> None:
    """Whether a session shows a model: every chunk where it should be, and none besides."""
    found = [p for p in shown.node_paths() if p not in {"/", "/g"}]
    assert found == sorted(model)
    for path, array in model.items():
        view = shown.get_array(path)
        batches = list(shown.chunk_coordinates(path))
        assert all(batch.dtype == np.uint64 for batch in batches)
        listed = [tuple(place) for batch in batches for place in batch.tolist()]
        assert len(listed) == len(set(listed)), f"a chunk of {path} is listed twice"
        assert set(listed) == array.chunks.keys(), path
        for place in array.places:
            chunk = shown.find_chunk(view, place)
            assert _value(shown, chunk) == array.chunks.get(place), (path, place)


def _value(shown: Session, chunk: ChunkRef | bytes | None) -> Value | None:
    if chunk is None or isinstance(chunk, bytes):
        return chunk
    if chunk.kind == "virtual":
        assert chunk.file is not None
        return chunk.file, chunk.offset, chunk.length
    return bytes(shown.read_chunk(chunk, 0, chunk.length))


class ReadingStorage(WrappedStorage):
    """Keeps the keys that were read."""

    def __init__(self, inner: Any, read: list[str]) -> None:
        super().__init__(inner)
        self.read = read

    def _run(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        if operation.startswith("get"):
            self.read.append(key)
        return effect()


class HistoryMachine(RuleBasedStateMachine):
    """A repository with branches, against dictionaries."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_tiny(self.patch)
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"memory://{secrets.token_hex(8)}"
        if self.on_disk:
            self.url = f"{self.folder.name}/repo"
        self.numbers = itertools.count(1)
        self.read: list[str] = []
        self.known: dict[str, list[tuple[int, Place]]] = {}
        self.snapshots: dict[str, Model] = {}
        self.parents: dict[str, tuple[str, Changes]] = {}
        self.branch = "main"

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)), counts=shapes)
    def begin(self, layout: str, counts: Place) -> None:
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=4,
            packed_chunk_threshold_bytes=10,
            chunk_file_size_bytes=40,
            chunk_manifests=LAYOUTS[layout],
        )
        Repository.create(self.url, config=config)
        first = self.open().writable_session("main")
        for path in ("/", "/g"):
            first.set_document(path, GROUP)
        self.snapshots[first.commit("groups")] = {}
        self.begin_anew()
        self.hand.create("/a", counts)

    def open(self) -> Repository:
        """The repository as a new process would open it."""
        with through(lambda inner: ReadingStorage(inner, self.read)):
            return Repository.open(self.url)

    def get(self, key: str) -> bytes:
        return open_storage(self.url).get(key)

    def begin_anew(self) -> None:
        made = self.open().writable_session(self.branch)
        self.hand = Hand(made, self.snapshots[made.snapshot_id], self.numbers)

    def teardown(self) -> None:
        try:
            self.check_everything()
        finally:
            self.patch.undo()
            self.folder.cleanup()

    def check_everything(self) -> None:
        """Every snapshot still shows what it showed, and DuckDB counts the chunks of each branch."""
        repository = self.open()
        for snapshot_id, model in self.snapshots.items():
            compare(repository.readonly_session(snapshot_id=snapshot_id), model)
        for branch in sorted(repository.list_branches() if self.snapshots else ()):
            snapshot_id = repository.lookup_branch(branch)
            live = LiveManifests.read(self.get, snapshot_id, self.known)
            folder = Path(self.folder.name) / secrets.token_hex(4)
            folder.mkdir()
            count = sum(len(array.chunks) for array in self.snapshots[snapshot_id].values())
            assert live.count_by_duckdb(self.get, folder) == (count, count)

    @invariant()
    def the_session_shows_the_model(self) -> None:
        if self.snapshots:
            self.hand.compare()

    # -- one session

    @rule(data=st.data(), times=st.integers(1, 3))
    def act(self, data: DataObject, times: int) -> None:
        for _ in range(times):
            self.hand.act(data)
            self.hand.compare()

    @rule(data=st.data())
    def act_aside(self, data: DataObject) -> None:
        """What would end most histories early if it came as often as the rest."""
        asides = [self.status, self.switch, self.discard, self.branch_off, self.move]
        data.draw(st.sampled_from([self.rebase_nothing, *asides]))(data)

    @precondition(lambda self: len(self.hand.model) > 1)
    @rule(data=st.data())
    def refer_to_several_arrays(self, data: DataObject) -> None:
        paths = data.draw(st.permutations(sorted(self.hand.model)))[:3]
        places = [self.hand.draw_some(data, path) for path in paths]
        self.hand.refer(paths, places, last=data.draw(st.booleans()))

    def move(self, data: DataObject) -> None:
        free = [path for path in PATHS if path not in self.hand.model]
        if free and self.hand.model:
            path = data.draw(st.sampled_from(sorted(self.hand.model)))
            self.hand.move(path, data.draw(st.sampled_from(free)))

    def discard(self, _: DataObject) -> None:
        self.hand.session.discard_changes()
        model = self.snapshots[self.hand.session.snapshot_id]
        self.hand = Hand(self.hand.session, model, self.numbers)
        assert not self.hand.session.has_uncommitted_changes

    def status(self, _: DataObject) -> None:
        """Telling the changes changes nothing, though it merges segments."""
        assert str(self.hand.session.status()) is not None

    # -- commits

    def note_commit(self, snapshot_id: str, parent: str, hand: Hand) -> None:
        self.snapshots[snapshot_id] = copy.deepcopy(hand.model)
        self.parents[snapshot_id] = parent, hand.changes
        counts = {array.uid: array.counts for array in hand.model.values()}
        resized = hand.changes.resized.items()
        hand.changes.resized = {uid: before for uid, before in resized if counts[uid] != before}
        live = LiveManifests.read(self.get, snapshot_id, self.known)
        live.check({path: set(array.chunks) for path, array in hand.model.items()})
        self.check_what_was_read(snapshot_id, parent, hand, live)

    def check_what_was_read(
        self, snapshot_id: str, parent: str, hand: Hand, live: LiveManifests
    ) -> None:
        """A commit that only adds reads no manifest and leaves every one as it is."""
        before = LiveManifests.read(self.get, parent, self.known)
        shown = {array.uid: path for path, array in self.snapshots[parent].items()}
        changes = hand.changes
        adds = (
            not changes.deleted
            and not changes.kept
            and len(before.rows) < FAN
            and not any(
                before.meets(shown[uid], places)
                for uid, places in changes.touched.items()
                if uid in shown and places
            )
        )
        if adds:
            assert before.rows.keys() <= live.rows.keys()
            assert not {f"i/{name}" for name in before.rows} & set(self.read)

    def commit_by(self, hand: Hand, **how: Any) -> str | None:
        parent = hand.session.snapshot_id
        self.read.clear()
        snapshot_id = hand.session.commit("a step", **how)
        self.note_commit(snapshot_id, parent, hand)
        return snapshot_id

    @rule(keep_ours=st.booleans())
    def commit(self, keep_ours: bool) -> None:
        if self.hand.session.has_uncommitted_changes:
            try:
                self.commit_by(self.hand)
            except ConflictError:
                self.rebase(keep_ours)
                if not self.hand.session.has_uncommitted_changes:
                    return
                self.commit_by(self.hand)
        self.begin_anew()
        self.hand.compare()

    @rule(data=st.data(), times=st.integers(1, 4))
    def somebody_else_commits(self, data: DataObject, times: int) -> None:
        other = self.open().writable_session(self.branch)
        hand = Hand(other, self.snapshots[other.snapshot_id], self.numbers)
        for _ in range(times):
            hand.act(data)
        if hand.session.has_uncommitted_changes:
            self.commit_by(hand)

    @rule(message=st.just("repacked"))
    def rewrite_manifests(self, message: str) -> None:
        """An ordinary commit in which nothing changes but where references stand."""
        repository = self.open()
        parent = repository.lookup_branch(self.branch)
        done = repository.rewrite_manifests(self.branch, message)
        if done.snapshot_id is None:
            return
        self.snapshots[done.snapshot_id] = copy.deepcopy(self.snapshots[parent])
        self.parents[done.snapshot_id] = parent, Changes()
        live = LiveManifests.read(self.get, done.snapshot_id, self.known)
        chunks = {p: set(array.chunks) for p, array in self.snapshots[parent].items()}
        live.check(chunks)
        assert self.open().rewrite_manifests(self.branch, message, dry_run=True).replaced == 0

    # -- rebases and branches

    def commits_since(self, snapshot_id: str) -> list[Changes]:
        tip = self.open().lookup_branch(self.branch)
        found = []
        while tip != snapshot_id:
            tip, changes = self.parents[tip]
            found.append(changes)
        return found[::-1]

    @rule(keep_ours=st.booleans())
    def rebase(self, keep_ours: bool) -> None:
        ours = self.hand
        theirs = self.commits_since(ours.session.snapshot_id)
        tip = self.snapshots[self.open().lookup_branch(self.branch)]
        selection = VersionSelection.UseOurs if keep_ours else VersionSelection.UseTheirs
        expected = rebased(ours.changes, ours.model, theirs, tip, keep_ours=keep_ours)
        solver = BasicConflictSolver(on_chunk_conflict=selection)
        if expected is None:
            with pytest.raises(RebaseFailedError):
                ours.session.rebase(solver)
            self.begin_anew()
            return
        ours.session.rebase(solver)
        ours.model = expected
        if theirs:
            base = {array.uid: array.counts for array in tip.values()}
            ours.changes.resized = {u: base[u] for u in ours.changes.resized if u in base}
        ours.compare()

    def branch_off(self, data: DataObject) -> None:
        start = data.draw(
            st.sampled_from(list(self.snapshots))
        )  # ids are random, their order is not
        name = f"b{len(self.open().list_branches())}"
        self.open().create_branch(name, start)
        self.branch = name
        self.begin_anew()

    def switch(self, data: DataObject) -> None:
        self.branch = data.draw(st.sampled_from(sorted(self.open().list_branches())))
        self.begin_anew()

    def rebase_nothing(self, _: DataObject) -> None:
        """On the newest commit a rebase does nothing."""
        if not self.commits_since(self.hand.session.snapshot_id):
            self.hand.session.rebase(ConflictDetector())
