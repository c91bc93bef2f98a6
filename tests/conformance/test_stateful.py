"""zarr's state machines: random operations on a store, compared with a dictionary and a memory store.

Owns the rules added to them: commits, after which everything goes on in a repository opened anew.
"""

from __future__ import annotations

import secrets
from inspect import signature
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from zarr.core.buffer import cpu
from zarr.testing import strategies
from zarr.testing.stateful import (
    MAX_BINARY_SIZE,
    SyncStoreWrapper,
    ZarrHierarchyStateMachine,
    ZarrStoreStateMachine,
)

from icechunk_arrow import IcechunkStore
from icechunk_arrow.core.documents import decode_json, encode_document
from tests.conformance.places import Place
from tests.conformance.suite_replacements import array_document

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject
    from zarr.abc.store import Store

REPLACED = {
    "ZarrStoreStateMachine.set": "zarr writes any bytes under any key. Here the keys are those of a "
    "fixed hierarchy: documents with random attributes, and random bytes as chunks of arrays that "
    "are there. Nothing else of the rule is changed.",
    "ZarrStoreStateMachine.delete": "an array's chunks go with its document, in the model as well: "
    "chunks without an array are no Zarr v3.",
    "ZarrHierarchyStateMachine.add_array": "zarr up to 3.1.6 draws chunks of length 0, which are no "
    "Zarr v3 and which later versions refuse; length 1 stands for them.",
}
"""Rules of zarr's machines that are replaced, and why. Everything else runs as it is."""

GROUPS = ("", "a", "a/b", "a.b")
ARRAYS = {
    "x": array_document((3,), "default", "/"),
    "a/x": array_document((2, 11), "default", "/"),
    "a/x.": array_document((2, 2), "default", "."),
    "a/b/v": array_document((2, 2), "v2", "."),
    "a/b/w": array_document((2, 2), "v2", "/"),
    "a/s": array_document((), "default", "/"),
    "a.b/s": array_document((), "v2", "."),
}
CHUNKS = {
    "x": ("c/0", "c/1", "c/2"),
    "a/x": ("c/0/0", "c/1/1", "c/1/10"),
    "a/x.": ("c.0.0", "c.1.1"),
    "a/b/v": ("0.0", "1.0"),
    "a/b/w": ("0/0", "0/1", "1/1"),
    "a/s": ("c",),
    "a.b/s": ("0",),
}


def document_key(path: str) -> str:
    return f"{path}/zarr.json" if path else "zarr.json"


def chunk_keys(path: str) -> set[str]:
    return {f"{path}/{chunk}" for chunk in CHUNKS[path]}


class Continued:
    """Commits a store's session, and gives the store of a session opened anew."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.create(inline_chunk_threshold_bytes=20)

    def store(self) -> IcechunkStore:
        return self.place.session().store

    def commit(self, store: Store) -> IcechunkStore:
        assert isinstance(store, IcechunkStore)
        session = store.session
        if session.has_uncommitted_changes:
            session.commit("a step")
        return self.store()


class StoreMachine(ZarrStoreStateMachine):
    """Keys and bytes, against a dictionary."""

    def __init__(self) -> None:
        self.continued = Continued(Place(url=f"memory://{secrets.token_hex(8)}"))
        super().__init__(self.continued.store())

    @rule(
        path=st.sampled_from([*GROUPS, *ARRAYS]),
        data=st.binary(max_size=MAX_BINARY_SIZE),
        choice=st.data(),
    )
    def set(self, path: str, data: bytes, choice: DataObject) -> None:
        key = document_key(path)
        if path in CHUNKS and key in self.model:
            key = choice.draw(st.sampled_from([key, *sorted(chunk_keys(path))]))
        if key.endswith("zarr.json"):
            document = {"zarr_format": 3, "node_type": "group", "attributes": {"data": data.hex()}}
            if path in ARRAYS:
                document = {**decode_json(ARRAYS[path]), "attributes": {"data": data.hex()}}
            data = encode_document(document)
        note(f"(set) Setting {key!r} with {data!r}")
        assert not self.store.read_only
        data_buf = cpu.Buffer.from_bytes(data)
        self.store.set(key, data_buf)
        self.model[key] = data_buf

    @precondition(lambda self: self.store.supports_deletes)
    @precondition(lambda self: len(self.model.keys()) > 0)
    @rule(data=st.data())
    def delete(self, data: DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.keys())))
        note(f"(delete) Deleting {key=}")
        self.store.delete(key)
        del self.model[key]
        path = key.removesuffix("zarr.json").rstrip("/")
        if key.endswith("zarr.json") and path in ARRAYS:
            for chunk in [each for each in self.model if each in chunk_keys(path)]:
                del self.model[chunk]

    @rule()
    def commit(self) -> None:
        """Commit, and open the repository anew."""
        note("(commit)")
        self.store = SyncStoreWrapper(self.continued.commit(self.store.store))


CHUNKS_OF_LENGTH_0 = "array_and_chunks" in signature(ZarrHierarchyStateMachine.add_array).parameters


class HierarchyMachine(ZarrHierarchyStateMachine):
    """Arrays and groups through zarr, against zarr's memory store."""

    def __init__(self) -> None:
        self.continued = Continued(Place(url=f"memory://{secrets.token_hex(8)}"))
        super().__init__(self.continued.store())

    @rule()
    def commit(self) -> None:
        """Commit, and open the repository anew."""
        note("(commit)")
        self.store = self.continued.commit(self.store)

    if CHUNKS_OF_LENGTH_0:

        @rule(
            data=st.data(),
            name=strategies.node_names,
            array_and_chunks=strategies.np_array_and_chunks().map(
                lambda drawn: (drawn[0], tuple(max(1, edge) for edge in drawn[1]))
            ),
        )
        def add_array(self, data: DataObject, name: str, array_and_chunks: Any) -> None:
            super().add_array(data=data, name=name, array_and_chunks=array_and_chunks)

    @rule()
    def reopen(self) -> None:
        """Nothing that is uncommitted is lost by a store of its own for the same session."""
        assert isinstance(self.store, IcechunkStore)
        self.store = IcechunkStore(self.store.session)


BOUNDED = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def test_a_store_is_a_dictionary_of_its_keys() -> None:
    """zarr's ZarrStoreStateMachine holds for this store, across commits."""
    run_state_machine_as_test(StoreMachine, settings=BOUNDED)


@pytest.mark.filterwarnings("ignore:The data type")
def test_a_hierarchy_is_what_zarr_makes_of_it() -> None:
    """zarr's ZarrHierarchyStateMachine holds for this store, across commits."""
    run_state_machine_as_test(HierarchyMachine, settings=BOUNDED)


@pytest.mark.parametrize("machine", [StoreMachine, HierarchyMachine])
def test_every_replaced_rule_is_in_the_table(machine: type) -> None:
    """A rule or invariant of zarr's machines is overridden only with an entry in the table."""
    theirs = machine.__mro__[1]
    ours = {f"{theirs.__name__}.{name}" for name in vars(machine) if name in vars(theirs)}
    public = {name for name in ours if "._" not in name}
    table = {name for name in REPLACED if name.startswith(theirs.__name__)}
    if not CHUNKS_OF_LENGTH_0:
        table.discard("ZarrHierarchyStateMachine.add_array")
    assert public == table
