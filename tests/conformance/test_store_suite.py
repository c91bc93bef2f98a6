"""zarr's own suite for stores, on every kind of storage, before and after a commit."""

from __future__ import annotations

import ast
import inspect
import pickle
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from zarr.abc.store import SupportsDeleteSync, SupportsGetSync, SupportsSetSync
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.testing.store import StoreTests

from icechunk_arrow import IcechunkArrowError, IcechunkStore, ReadOnlyError, Repository
from icechunk_arrow.engine.keyspace import Keyspace
from tests.conformance.suite_replacements import HOMES, REPLACED, REWRITTEN, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zarr.core.buffer import Buffer

    from icechunk_arrow import Session
    from tests.conformance.places import Place


class CommittedKeyspace(Keyspace):
    """Commits every change at once, and goes on with a session of the repository opened anew."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.session())
        self._place = place
        self._one_at_a_time = threading.Lock()

    def _commit(self) -> None:
        if self._session.has_uncommitted_changes:
            self._session.commit("a change")
        self._session = self._place.session()

    def write(self, key: str, data: bytes | memoryview) -> None:
        with self._one_at_a_time:
            super().write(key, data)
            self._commit()

    def delete(self, key: str) -> None:
        with self._one_at_a_time:
            super().delete(key)
            self._commit()

    def delete_folder(self, prefix: str) -> None:
        with self._one_at_a_time:
            super().delete_folder(prefix)
            self._commit()


class CommittedStore(IcechunkStore):
    """A store whose every change is committed at once: all that is read stands in committed files."""

    def __init__(self, session: Session, place: Place, *, read_only: bool = False) -> None:
        super().__init__(session, read_only=read_only)
        self.place = place
        self._keys = CommittedKeyspace(place)

    def with_read_only(self, read_only: bool = False) -> CommittedStore:
        return CommittedStore(self.place.session(), self.place, read_only=read_only)


class Suite(StoreTests[IcechunkStore, cpu.Buffer]):
    """What both variants share. The tests are zarr's; see the table in suite_replacements."""

    store_cls: type[IcechunkStore] = IcechunkStore
    buffer_cls = cpu.Buffer

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        home = HOMES.get(key)
        if home is not None:
            path, document = home
            self._write(store, f"{path}/zarr.json".lstrip("/"), document)
        self._write(store, key, value.to_bytes())

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        keys = self._reader(store)
        found = keys.find(key)
        assert found is not None
        return self.buffer_cls.from_bytes(bytes(keys.read(found, lambda size: (0, size))))

    def _write(self, store: IcechunkStore, key: str, data: bytes) -> None:
        """Write a key without the store's methods."""
        store._keys.write(key, data)

    def _reader(self, store: IcechunkStore) -> Keyspace:
        """Read keys without the store's methods."""
        return Keyspace(store.session)

    @pytest.fixture
    def store_kwargs(self, place: Place) -> dict[str, Any]:
        return {"session": place.create().writable_session("main")}

    @pytest.fixture(autouse=True)
    def homes(self, request: pytest.FixtureRequest, store_kwargs: dict[str, Any]) -> None:
        """Arrays that a test's chunk keys belong to."""
        entry = REPLACED.get(request.node.originalname)
        store = self.store_cls(**store_kwargs)
        for path, document in dict(HOMES[key] for key in (entry.homes if entry else ())).items():
            self._write(store, f"{path}/zarr.json".lstrip("/"), document)

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> IcechunkStore:
        opened: IcechunkStore = sync(self.store_cls.open(**open_kwargs))
        return opened

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        return self.store_cls(**store_kwargs)

    # -- abstract in zarr's suite

    def test_store_repr(self, store: IcechunkStore) -> None:
        """A store says of which session it is."""
        assert repr(store) == str(store)
        assert repr(store.session) in repr(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        """A store can be written."""
        assert store.supports_writes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        """A store can be listed."""
        assert store.supports_listing

    # -- rewritten

    async def test_serializable_store(  # type: ignore[override]  # a fixture more
        self, store: IcechunkStore, place: Place
    ) -> None:
        """A writable store refuses to be pickled and says why; a read-only one survives it."""
        with pytest.raises(ReadOnlyError, match="Commit first"):
            pickle.dumps(store)
        data = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        await self.set(store, "c/0", self.buffer_cls.from_bytes(b"another"))
        await store.set("c/0", data)
        assert await store.get("c/0", prototype=default_buffer_prototype()) == data

        if store.session.has_uncommitted_changes:
            store.session.commit("to be read by a copy")
        reader = place.open().readonly_session("main").store
        copy = pickle.loads(pickle.dumps(reader))
        assert copy == reader
        assert copy.read_only == reader.read_only is True
        assert await copy.get("c/0", prototype=default_buffer_prototype()) == data


for _name in REPLACED:
    if (_test := rewritten(_name)) is not None:
        setattr(Suite, _name, _test)


class TestUncommitted(Suite):
    """A session reads its own changes."""


class TestCommitted(Suite):
    """All is committed before it is read, and read by a session that was opened after the commit."""

    store_cls = CommittedStore

    def _reader(self, store: IcechunkStore) -> Keyspace:
        assert isinstance(store, CommittedStore)
        return Keyspace(store.place.session())

    @pytest.fixture
    def store_kwargs(self, place: Place) -> dict[str, Any]:
        # no chunk inline, so that all stand in files
        repository = place.create(inline_chunk_threshold_bytes=0)
        return {"session": repository.writable_session("main"), "place": place}


def _assertions(function: Any) -> list[str]:
    """What a test asserts, in its own words, without the keys and values."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = "…"
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append(ast.unparse(node.test))
        elif isinstance(node, ast.With):
            found += [ast.unparse(item.context_expr) for item in node.items]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("assert_"):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_every_assertion_is_kept(name: str) -> None:
    """What is replaced in a test leaves each of its assertions, and the order, as zarr wrote them."""
    original = vars(StoreTests).get(name)
    if original is None:
        assert not hasattr(Suite, name)  # of another version of zarr
        return
    assert _assertions(getattr(Suite, name)) == _assertions(original) != []


def test_every_override_is_in_the_table() -> None:
    """No test of zarr's suite is overridden without an entry that says what was replaced and why."""
    theirs = {name for name in dir(StoreTests) if name.startswith("test_")}
    for variant in (Suite, TestUncommitted, TestCommitted):
        ours = {name for name in vars(variant) if name.startswith("test_")}
        assert ours & theirs <= {*REPLACED, *REWRITTEN}
    assert set(REWRITTEN) <= set(vars(Suite))
    assert all(entry.why for entry in REPLACED.values())


def test_every_test_of_the_suite_runs() -> None:
    """Each test that the installed zarr has is there to be collected, unmarked, in both variants."""
    theirs = {name for name in dir(StoreTests) if name.startswith("test_")}
    assert len(theirs) > 35
    for variant in (TestUncommitted, TestCommitted):
        for name in theirs:
            test = getattr(variant, name)
            assert inspect.isfunction(test), name
            marks = {mark.name for mark in getattr(test, "pytestmark", [])}
            assert marks <= {"parametrize"}, name


def test_the_store_has_what_the_suite_would_skip() -> None:
    """The suite skips the synchronous tests and deletions of a store that lacks them: ours has them."""
    assert issubclass(IcechunkStore, SupportsGetSync)
    assert issubclass(IcechunkStore, SupportsSetSync)
    assert issubclass(IcechunkStore, SupportsDeleteSync)
    assert IcechunkStore.supports_deletes


def test_a_store_that_only_reads_refuses_in_our_words_and_in_zarrs(tmp_path: Path) -> None:
    """Every way to write to it raises one error, which is ours and the ``ValueError`` that zarr promises."""
    repo = Repository.create(tmp_path / "r")
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    found = repo.readonly_session("main").store
    data = cpu.Buffer.from_bytes(b"x")
    for store in (found, repo.writable_session("main").store.with_read_only(read_only=True)):
        writes: tuple[Callable[[], object], ...] = (
            lambda store=store: sync(store.set("a/c/0", data)),  # type: ignore[misc]
            lambda store=store: sync(store.set_if_not_exists("a/c/0", data)),  # type: ignore[misc]
            lambda store=store: sync(store.delete("a/c/0")),  # type: ignore[misc]
            lambda store=store: sync(store.delete_dir("a")),  # type: ignore[misc]
            lambda store=store: sync(store.clear()),  # type: ignore[misc]
            lambda store=store: store.set_sync("a/c/0", data),  # type: ignore[misc]
            lambda store=store: store.delete_sync("a/c/0"),  # type: ignore[misc]
            lambda store=store: store.set_virtual_ref("a/c/0", "file:///x", offset=0, length=1),  # type: ignore[misc]
        )
        for write in writes:
            with pytest.raises(ReadOnlyError) as raised:
                write()
            assert isinstance(raised.value, ValueError)
            assert isinstance(raised.value, IcechunkArrowError)
