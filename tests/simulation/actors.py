"""What actors do, and what each of them may expect of the answers."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from icechunk_arrow import ConflictDetector, Repository
from icechunk_arrow.core.manifest_settings import ManifestPreload, ManifestSettings
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcechunkArrowError,
    NotFoundError,
    ReadOnlyError,
    RefNotFoundError,
    StorageError,
)
from tests.simulation.model import Attempt, payload
from tests.simulation.schedule import SHAPE
from tests.simulation.storage import URL
from tests.simulation.world import Died, Process, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.session import ForkSession, OpenSession, Session
    from tests.simulation.model import Contents, Model
    from tests.simulation.storage import Shared
    from tests.simulation.watching import Watch
    from tests.simulation.world import Thread

__all__ = ["CONFIG", "Actor", "contents", "perform"]

Operation = dict[str, Any]
CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=8,
    packed_chunk_threshold_bytes=64,
    chunk_file_size_bytes=1000,
    chunk_manifests=ManifestSettings(preload=ManifestPreload(max_manifests=0)),
)
GROUP = {"zarr_format": 3, "node_type": "group"}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [SHAPE],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}


def perform(session: OpenSession, op: Operation) -> None:
    """Do one thing in a session."""
    match op["op"]:
        case "put" if op["size"] is None:
            session.delete_chunk(op["path"], (op["place"],))
        case "put":
            session.write_chunk(op["path"], (op["place"],), payload(op["uid"], op["size"]))
        case "create":
            session.set_document(op["path"], _document(ARRAY, {}))
        case "create_group":
            session.set_document(op["path"], _document(GROUP, {}))
        case "attributes":
            session.set_document(op["path"], _document(GROUP, op["set"]))
        case "delete":
            session.delete_nodes([path for path, _ in op["nodes"]])


def _document(base: dict[str, Any], attributes: dict[str, Any]) -> bytes:
    return json.dumps({**base, "attributes": attributes}).encode()


def contents(session: OpenSession) -> Contents:
    """All that a session shows."""
    found: Contents = {}
    for path in session.node_paths():
        view = session.find_array(path)
        if view is None:
            node = session.find_node(path)
            assert node is not None
            found[path] = json.loads(session.document(node))["attributes"]
            continue
        found[path] = chunks = {}
        for batch in session.chunk_coordinates(path):
            for (place,) in batch.tolist():
                chunk = session.find_chunk(view, (place,))
                if chunk is None:
                    raise Violation("content", f"chunk {place} of {path} is listed and not there")
                size = len(chunk) if isinstance(chunk, bytes) else _length(chunk)
                chunks[place] = bytes(session.read_chunk(chunk, 0, size))
    return found


def _length(ref: Any) -> int:
    return len(ref.inline) if ref.inline is not None else ref.length


class Actor:
    """One who works with the repository, as a process of its own."""

    def __init__(
        self,
        number: int,
        operations: list[Operation],
        shared: Shared,
        model: Model,
        watch: Watch,
        remake: Callable[[Operation], None],
    ) -> None:
        self._operations = operations
        self._number = number
        self._shared = shared
        self._model = model
        self._watch = watch
        self._remake = remake
        self._world = shared.world
        self.acknowledged: list[str] = []
        self._thread: Thread
        self._forget()

    def _forget(self) -> None:
        self._repo: Repository | None = None
        self._opened = -1
        self._leave()
        self._reader: Session | None = None

    def _leave(self) -> None:
        self._session: Session | None = None
        self._staged: list[Operation] = []
        self._group = ""
        self._tries = 0
        self._unknown: list[str] = []
        """Attempts of which it is not known whether they came to be."""

    def act(self, thread: Thread) -> None:
        """Do one operation after the other, whatever comes between."""
        self._thread = thread
        for operation in self._operations:
            thread.begin(operation["id"])
            try:
                self._world.between(thread)
                self._begun = self._world.tick
                self._try(operation)
            except Died:
                thread.process = Process(thread.name)
                self._forget()

    def _try(self, op: Operation) -> None:
        try:
            getattr(self, "_" + op["op"])(op)
        except (IcechunkArrowError, KeyboardInterrupt) as error:
            self._judge(error)

    def _judge(self, error: BaseException) -> None:
        """Look whether something happened that an error may come of."""
        suffered = self._thread.suffered
        if isinstance(error, KeyboardInterrupt) and suffered & {"interrupt", "interrupt after"}:
            return
        if self._is_stale or isinstance(
            error, ConflictError | AlreadyExistsError | RefNotFoundError
        ):
            return
        if isinstance(error, StorageError):
            if suffered & {"fail", "lost", "late", "double", "cut"}:
                return
            if self._unknown and "may still arrive" in str(error):
                return
            if "clock says" in str(error) and self._world.faults.keys() & {"clock", "delay"}:
                return
        elif isinstance(error, FormatError | NotFoundError):
            if "cut" in suffered:
                return
        elif isinstance(error, ReadOnlyError) and self._session is not None and self._unknown:
            self._was_made(self._session)
            return
        text = f"{type(error).__name__}, although nothing happened but {sorted(suffered)}: {error}"
        raise Violation("error", text) from error

    @property
    def _is_stale(self) -> bool:
        """Whether the place was made anew since it was opened."""
        return self._opened <= self._watch.wiped

    # -- the repository

    def _open_repository(self) -> Repository:
        if self._repo is None:
            self._opened = self._world.tick
            self._repo = Repository.open(URL, config=CONFIG)
        return self._repo

    def _reopen(self, _: Operation) -> None:
        self._forget()
        self._open_repository()

    def _check_place(self, kind: str, name: str, snapshot_id: str) -> None:
        """Whoever begins sees what was acknowledged before."""
        if self._is_stale or "stale" in self._thread.suffered:
            return
        since = self._watch.tips_since if kind == "branch" else self._watch.tags_since
        known = since(name, self._begun)
        if snapshot_id not in known:
            fact = f"the {kind} {name} was opened at {snapshot_id}, and stood at {sorted(map(str, known))}"
            raise Violation("currency", fact)

    # -- sessions

    def _begin(self, op: Operation) -> None:
        self._leave()
        session = self._open_repository().writable_session(op["branch"])
        self._check_place("branch", op["branch"], session.snapshot_id)
        self._session = session
        self._group = f"{self._thread.name}-{op['id']}"

    def _at_work(self, op: Operation) -> Session:
        if self._session is None:
            self._begin({"id": op["id"], "branch": "main"})
        assert self._session is not None
        return self._session

    def _drop(self, _: Operation) -> None:
        self._leave()

    def _uid(self, op: Operation, part: int = 0) -> int:
        number: int = op["id"]
        return 100 + self._number * 1000 + number * 10 + part

    def _stage(self, session: Session, op: Operation) -> None:
        """Do something, and remember it when it was done."""
        try:
            perform(session, op)
        except ReadOnlyError:
            self._was_made(session)
        else:
            self._staged.append({**op, "base": session._staging.base.id})

    def _tree(self, session: Session) -> Any:
        return self._model.with_staged(session._staging.base.id, self._staged)

    def _put(self, op: Operation) -> None:
        session = self._at_work(op)
        tree = self._tree(session)
        path = op["path"] if op["path"] in tree.nodes else "/a"
        if path in tree.nodes:
            self._stage(session, {**op, "path": path, "uid": self._uid(op)})

    def _create(self, op: Operation) -> None:
        session = self._at_work(op)
        if op["path"] not in self._tree(session).nodes:
            self._stage(session, {**op, "uid": self._uid(op)})

    def _remove(self, op: Operation) -> None:
        session = self._at_work(op)
        path = op["path"]
        node = self._tree(session).nodes.get(path)
        if node is None:
            return
        before = list(self._staged)
        self._stage(session, {"op": "delete", "nodes": [[path, node.node_id]]})
        if self._session is session:  # what was done to the node before does not count
            rest = [each for each in before if each.get("path") != path]
            is_new = any(each.get("uid") == node.node_id for each in before)
            self._staged = rest if is_new else [*rest, self._staged[-1]]

    def _attributes(self, op: Operation) -> None:
        session = self._at_work(op)
        value = {"path": op["path"], "set": {"by": self._uid(op)}}
        self._stage(session, {"op": "attributes", **value})

    def _read(self, op: Operation) -> None:
        session = self._at_work(op)
        self._compare(session, self._tree(session).contents())

    def _compare(self, session: OpenSession, wanted: Contents) -> None:
        found = contents(session)
        if found != wanted:
            raise Violation("content", f"{session.snapshot_id} shows {found}, and has {wanted}")

    def _rebase(self, op: Operation) -> None:
        session = self._at_work(op)
        try:
            session.rebase(ConflictDetector())
        except ReadOnlyError:
            self._was_made(session)

    def _fork(self, op: Operation) -> None:
        session = self._at_work(op)
        tree = self._tree(session)
        parts = [[each for each in part if each["path"] in tree.nodes] for part in op["parts"]]
        workers, results = [], {}
        for number, part in enumerate(parts):
            data = pickle.dumps(session.fork())
            done = [{**each, "uid": self._uid(op, number + 1)} for each in part]
            name = f"{self._thread.name}.{op['id']}.{number}"
            results[name] = child = _Child(self, data, done)
            workers.append(self._world.spawn(name, child.act))
        self._thread.wait(workers)
        for worker in workers:
            self._thread.suffered |= worker.suffered
        finished = [child for child in results.values() if child.result]
        forks: list[ForkSession] = [pickle.loads(child.result) for child in finished]
        session.merge(*forks)
        base = session._staging.base.id
        for child in finished:
            self._staged += [{**each, "base": base} for each in child.operations]

    # -- commits

    def _commit(self, op: Operation) -> None:
        if not self._staged:
            self._put({**op, "op": "put", "path": "/a"})
        session = self._session
        if session is None or not self._staged:
            return
        solver = ConflictDetector() if op["rebase"] else None
        for left in range(op["tries"], 0, -1):
            self._tries += 1
            name = f"{self._group}.{self._tries}"
            self._model.attempts[name] = Attempt(self._group, list(self._staged))
            self._unknown.append(name)
            try:
                snapshot_id = session.commit("by simulation", {"sim": name}, rebase_with=solver)
            except ConflictError:
                self._was_refused()
                return
            except ReadOnlyError:
                self._was_made(session)
                return
            except (IcechunkArrowError, KeyboardInterrupt) as error:
                self._judge(error)
                if left == 1:
                    raise
            else:
                self._was_acknowledged(snapshot_id)
                return

    def _was_refused(self) -> None:
        """A session was told that it lost: none of what it tried is there, or ever will be."""
        for name in self._unknown:
            self._model.attempts[name].is_refused = True
        if not self._is_stale:
            made = self._watch.groups.get(self._group)
            if made is not None:
                raise Violation("refused", f"{self._group} is told that it lost, and made {made}")
        self._unknown = []

    def _was_made(self, session: Session) -> None:
        """A session says that it has committed: one of the attempts came to be."""
        self._was_acknowledged(session.snapshot_id)

    def _was_acknowledged(self, snapshot_id: str) -> None:
        name = self._model.name_of(snapshot_id)
        if name not in self._unknown:
            raise Violation(
                "history", f"{self._group} is told that it made {snapshot_id}, which is {name!r}"
            )
        if self._begun <= self._watch.wiped:  # it may have been before that
            self._leave()
            return
        if snapshot_id not in self._watch.commits:
            raise Violation(
                "acknowledged", f"{name} was acknowledged as {snapshot_id}, which no branch has"
            )
        self.acknowledged.append(snapshot_id)
        self._leave()

    # -- readers

    def _open(self, op: Operation) -> None:
        self._reader = None
        repo = self._open_repository()
        if op.get("tag"):
            reader = repo.readonly_session(tag=op["tag"])
            self._check_place("tag", op["tag"], reader.snapshot_id)
        else:
            reader = repo.readonly_session(op["branch"])
            self._check_place("branch", op["branch"], reader.snapshot_id)
        self._reader, self._read_id = reader, reader.snapshot_id

    def _look(self, op: Operation) -> None:
        if self._reader is None:
            self._open({"branch": "main"})
        assert self._reader is not None
        self._compare(self._reader, self._model.tree_of(self._read_id).contents())
        if self._reader.snapshot_id != self._read_id:
            raise Violation(
                "moved", f"a reader of {self._read_id} stands at {self._reader.snapshot_id}"
            )

    def _history(self, op: Operation) -> None:
        found = [info.id for info in self._open_repository().ancestry(branch=op["branch"])]
        self._check_place("branch", op["branch"], found[0])
        if found != list(self._model.ancestors(found[0])):
            raise Violation("history", f"the ancestry of {found[0]} is {found}")

    # -- branches and tags

    def _branch(self, op: Operation) -> None:
        repo, name = self._open_repository(), op["branch"]
        history = [info.id for info in repo.ancestry(branch="main")][:-1]
        chosen = history[min(op["back"], len(history) - 1)]
        match op["do"]:
            case "create":
                repo.create_branch(name, chosen)
            case "reset":
                repo.reset_branch(name, chosen)
            case "expect":
                repo.reset_branch(name, chosen, history[0])
            case "delete" if name != "main":
                repo.delete_branch(name)
            case _:
                return
        wanted = None if op["do"] == "delete" else chosen
        if not self._is_stale and wanted not in self._watch.tips_since(name, self._begun):
            raise Violation("acknowledged", f"{name} was to be at {wanted} after {op['do']}")
        if op["do"] == "expect" and not self._is_stale:
            stood_at = self._watch.left_since(name, chosen, self._begun)
            if chosen == history[0]:  # where it stands already no move is seen
                stood_at = self._watch.tips_since(name, self._begun)
            if history[0] not in stood_at:
                fact = f"{name} was moved to {chosen} and had not stood at {history[0]}"
                raise Violation("expected", fact)

    def _tag(self, op: Operation) -> None:
        repo, name = self._open_repository(), op["tag"]
        chosen = None
        if op["do"] == "create":
            chosen = repo.lookup_branch("main")
            repo.create_tag(name, chosen)
        else:
            repo.delete_tag(name)
        if not self._is_stale and chosen not in self._watch.tags_since(name, self._begun):
            raise Violation("acknowledged", f"the tag {name} was to be at {chosen}")

    # -- housekeeping

    def _compact(self, op: Operation) -> None:
        self._housekeep(op, self._open_repository().compact_chunks)

    def _rewrite(self, op: Operation) -> None:
        self._housekeep(op, self._open_repository().rewrite_manifests)

    def _housekeep(self, op: Operation, run: Callable[..., Any]) -> None:
        name = f"{self._thread.name}-{op['id']}.h"
        self._model.attempts[name] = Attempt(name, [])
        done = run(op["branch"], "housekeeping", metadata={"sim": name})
        if done.snapshot_id is None or self._begun <= self._watch.wiped:
            return
        if done.snapshot_id not in self._watch.commits:
            raise Violation("acknowledged", f"{name} was acknowledged, and no branch has it")
        self.acknowledged.append(done.snapshot_id)


class _Child:
    """Another process that works on a fork."""

    def __init__(self, parent: Actor, data: bytes, operations: list[Operation]) -> None:
        self._parent = parent
        self._opened = parent._opened  # who may crash and open another one meanwhile
        self._data = data
        self.operations = operations
        self.result = b""

    def act(self, thread: Thread) -> None:
        thread.begin(0)
        try:
            fork: ForkSession = pickle.loads(self._data)
            for operation in self.operations:
                perform(fork, operation)
            self.result = pickle.dumps(fork)
        except Died:
            return
        except (IcechunkArrowError, KeyboardInterrupt) as error:
            is_stale = self._opened <= self._parent._watch.wiped
            if not (thread.suffered - {"clock", "delay"}) and not is_stale:
                raise Violation(
                    "error", f"{error!r} in a fork to which nothing happened"
                ) from error
