"""Damaging files of a repository, looking at it then, and judging what was seen.

Owns what is looked at for each kind of file. Runs in a process of its own, with little memory, so
that a crash of the interpreter and an unbounded allocation are seen.
"""

from __future__ import annotations

import random
import resource
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icechunk_arrow import IcechunkArrowError, Repository
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.repositories import (
    CONFIG,
    PACKED,
    array_document,
    contents,
    group_document,
    payload,
    write_many,
)
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

__all__ = ["KINDS", "Sample", "cuts", "flips", "judge", "make_sample", "run_apart"]

SPARE_BYTES = 512 << 20
"""How much more memory than at the beginning a process may take that reads damaged files."""
BIG_CHUNKS = 20_000
"""Two row groups, and more bytes than are read of a file's end at first."""

Objects = dict[str, bytes]
Changes = Mapping[str, bytes | None]
"""Objects that are others than in the sample, or, where None, not there."""


@dataclass(frozen=True)
class Sample:
    """A sound repository as objects, and which of them are of which kind."""

    name: str
    objects: Objects
    keys: dict[str, list[str]]
    """By kind: the key to be damaged, then another of the kind where there is one."""
    snapshots: dict[str, str]


def make_sample(catalog: str = "branches") -> Sample:
    """Make a repository that has every kind of file, two of each where there can be two."""
    name = secrets.token_hex(6)
    url = f"memory://{name}"
    repo = Repository.create(url, config=CONFIG, storage_settings=UNSYNCED, catalog=catalog)
    session = repo.writable_session("main")
    session.set_document("/", group_document(title="sample"))
    session.set_document("/a", array_document(12, attributes={"note": "x" * 300}))
    session.set_document("/g", group_document(short=1))
    for index in range(0, 12, 2):
        session.write_chunk("/a", (index,), payload(f"a {index}", PACKED))
    small = session.commit("small", {"by": "sample"})
    session = repo.writable_session("main")
    session.set_document("/b", array_document(12, attributes={"note": "y" * 300}))
    for index in range(6):
        session.write_chunk("/b", (index,), payload(f"b {index}", PACKED))
    session.commit("second")
    session = repo.writable_session("main")
    session.set_document("/big", array_document(3 * BIG_CHUNKS))
    write_many(session, "/big", 3, BIG_CHUNKS)
    big = session.commit("big")
    repo.create_tag("v1", small)
    repo.create_tag("v2", big)
    repo.create_branch("side", small)
    files = repo._context.files
    first, second, third = (i.id for i in reversed(list(repo.ancestry(branch="main"))[:3]))
    manifests = [
        next(iter(files.read_snapshot(at).find_node(path).inventories)).manifest  # type: ignore[union-attr]
        for at, path in ((first, "/a"), (second, "/b"), (third, "/big"))
    ]
    attributes = [
        files.read_snapshot(at).find_node(path).attributes_ref.identifier  # type: ignore[union-attr]
        for at, path in ((first, "/a"), (second, "/b"))
    ]
    chunks = [files.read_manifest(m)["chunk_file"][0].as_py() for m in manifests[:2]]
    place = MemoryStorage(name)
    keys = {
        "structure": [key_of(FileKind.STRUCTURE, i) for i in (first, second)],
        "manifest": [key_of(FileKind.MANIFEST, m) for m in manifests[:2]],
        "big manifest": [key_of(FileKind.MANIFEST, m) for m in (manifests[2], manifests[0])],
        "attributes": [key_of(FileKind.ATTRIBUTES, a) for a in attributes],
        "log": [key_of(FileKind.TRANSACTION, i) for i in (first, second)],
        "chunk": [f"c/{c}" for c in chunks],
        "config": ["config.yaml"],
    }
    if catalog == "state":
        keys["state"] = ["state.json"]
    else:
        keys["branch"] = [f"refs/branch.main/{sequence_name(n)}.json" for n in (3, 2)]
        keys["tag"] = ["refs/tag.v1/ref.json", "refs/tag.v2/ref.json"]
    objects = {info.key: place.get(info.key) for info in place.list()}
    assert all(key in objects for pair in keys.values() for key in pair)
    assert len(objects[keys["big manifest"][0]]) > 1 << 16
    return Sample(
        f"sample-{name}", objects, keys, {"first": first, "second": second, "third": third}
    )


def look_at_first(repo: Repository, sample: Sample) -> Any:
    """All of the first snapshot."""
    return contents(repo.readonly_session(snapshot_id=sample.snapshots["first"]))


def look_at_config(repo: Repository, sample: Sample) -> Any:
    """Whoever writes asks for the settings, and what is read does not depend on them."""
    assert repo.writable_session("main").config is not None
    return look_at_first(repo, sample)


def look_at_structure(repo: Repository, sample: Sample) -> Any:
    """The first snapshot's nodes, and its facts as the history of a later one."""
    history = [
        (info.id, info.message, info.parent_id, info.written_at, dict(info.metadata))
        for info in Repository.open(repo.url, config=CONFIG).ancestry(
            snapshot_id=sample.snapshots["second"]
        )
    ]
    session = repo.readonly_session(snapshot_id=sample.snapshots["first"])
    nodes = [session.find_node(path) for path in session.node_paths()]
    documents = [session.document(node) for node in nodes if node is not None]
    inventories = [list(node.inventories) for node in nodes if node is not None]
    return history, documents, inventories


def look_at_big_manifest(repo: Repository, sample: Sample) -> Any:
    """Chunks in either row group, found one by one; once in a while all rows."""
    session = repo.readonly_session(snapshot_id=sample.snapshots["third"])
    view = session.get_array("/big")
    found = []
    for index in (0, 3, 4, 3 * 16_383, 3 * 16_384, 3 * (BIG_CHUNKS - 1)):
        chunk = session.find_chunk(view, (index,))
        assert chunk is None or not isinstance(chunk, bytes)
        found.append(None if chunk is None else chunk.inline)
    return found


def look_at_all_of_big_manifest(repo: Repository, sample: Sample) -> Any:
    """All rows of a large manifest, as a commit reads them."""
    name = sample.keys["big manifest"][0][2:-8]
    return repo._context.files.read_manifest(name).to_pydict()


def look_at_log(repo: Repository, sample: Sample) -> Any:
    """What the first commit did."""
    return repo._context.files.read_log(sample.snapshots["first"])


def look_at_references(repo: Repository, sample: Sample) -> Any:
    """Where branches and tags point, with the documents there."""
    branches = {name: repo.lookup_branch(name) for name in repo.list_branches()}
    tags = {name: repo.lookup_tag(name) for name in repo.list_tags()}
    for snapshot_id in (*branches.values(), *tags.values()):
        repo.lookup_snapshot(snapshot_id)
    return branches, tags


KINDS: dict[str, Callable[[Repository, Sample], Any]] = {
    "structure": look_at_structure,
    "manifest": look_at_first,
    "big manifest": look_at_big_manifest,
    "attributes": look_at_first,
    "log": look_at_log,
    "chunk": look_at_first,
    "branch": look_at_references,
    "tag": look_at_references,
    "state": look_at_references,
    "config": look_at_config,
}


def look(sample: Sample, kind: str, changes: Changes | None = None) -> Any:
    """Open a repository anew in which some objects are others, and look at what a kind carries."""
    place = MemoryStorage(sample.name)
    if not any(place.list(limit=1)):
        for key, data in sample.objects.items():
            place.put(key, data)
    _exchange(place, changes or {})
    try:
        config = None if kind == "config" else CONFIG  # quicker than reading it each time
        return KINDS[kind](
            Repository.open(place.url, config=config, storage_settings=UNSYNCED), sample
        )
    finally:
        _exchange(place, {key: sample.objects.get(key) for key in changes or {}})


def _exchange(place: MemoryStorage, changes: Changes) -> None:
    place.delete(list(changes))
    for key, data in changes.items():
        if data is not None:
            place.put(key, data)


def judge(
    sample: Sample, kind: str, expected: Any, changes: Changes, names: tuple[str, ...]
) -> str:
    """Say "right", or what error there was, or what else was wrong."""
    try:
        found = look(sample, kind, changes)
    except IcechunkArrowError as error:
        text = str(error)
        if not any(name in text for name in names):
            return f"nameless {type(error).__name__}: {text}"
        return f"error {type(error).__name__}: {text}"
    except BaseException as error:
        return f"crash {error!r}"
    return "right" if found == expected else f"wrong: {found!r:.300}"


def cuts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut at every 64th byte."""
    for at in range(0, len(data), 64):
        yield f"cut at {at}", data[:at]


def flips(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Flip single bits at 500 random places, or at all where there are fewer."""
    places = range(8 * len(data))
    chosen = places if len(places) <= 500 else random.Random(len(data)).sample(places, 500)
    for place in chosen:
        flipped = bytearray(data)
        flipped[place >> 3] ^= 1 << (place & 7)
        yield f"bit {place & 7} of byte {place >> 3} flipped", bytes(flipped)


HARMS = {"cut": cuts, "flip": flips}


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _judge_all(sample: Sample, kind: str, harm: str, answer: Connection) -> None:
    key = sample.keys[kind][0]
    expected = look(sample, kind)
    names: tuple[str, ...] = (key,)
    if kind in {"branch", "tag"}:  # a flipped digit of an id gives another id, and so another file
        names = (key, "there is no snapshot", "list_branches()", "list_tags()")
    limit = _memory_bytes() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for what, data in HARMS[harm](sample.objects[key]):
        answer.send(("before", what))
        verdict = judge(sample, kind, expected, {key: data}, names)
        answer.send((what, verdict))
    answer.send(("over", ""))


def run_apart(sample: Sample, kind: str, harm: str) -> dict[str, str]:
    """Judge all damages of a sort, in a process of their own; give the verdict on each."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.damage"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_judge_all, args=(sample, kind, harm, theirs), daemon=True)
    process.start()
    theirs.close()
    verdicts: dict[str, str] = {}
    last = "the beginning"
    try:
        while True:
            what, verdict = ours.recv()
            if what == "over":
                return verdicts
            if what == "before":
                last = verdict
            else:
                verdicts[what] = verdict
    except EOFError:
        process.join(10)
        return {**verdicts, last: f"crash of the interpreter, exit code {process.exitcode}"}
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
