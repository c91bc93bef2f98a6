"""Files that break a rule which costs nothing to check: refused by every reader, with the file's name.

Every file here is sealed rightly, and was written by somebody who broke one rule of the specification.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow import CorruptFileError, InvalidInputError, Repository, SnapshotNotFoundError
from icechunk_arrow.core.keys import LONGEST_PATH_BYTES, check_node_path
from icechunk_arrow.core.paths import fault_of_paths
from icechunk_arrow.formats.layout import FileKind, key_of
from tests.faults.bombs import old, write
from tests.faults.hostile import Victim
from tests.faults.repositories import array_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


PATHS = [
    "/a/../../ESCAPED",
    "/../x",
    "/..",
    "/.",
    "/x/.",
    "/a//b",
    "/a/",
    "//",
    "",
    "a",
    "/a\0b",
    "/x/zarr.json",
    "/zarr.json/x",
    "/" + "x" * LONGEST_PATH_BYTES,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path[:20]))
def test_paths_that_are_none(victim: Victim, path: str) -> None:
    """A path that could lead out of a folder, or stands for nothing, is damage; so is writing one refused (R15)."""

    def alter(rows: list[dict[str, Any]]) -> None:
        rows[0]["path"] = path
        rows.sort(key=lambda row: row["path"].encode())

    victim.alter_structure(alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()
    with pytest.raises(InvalidInputError):
        check_node_path(path)


@pytest.mark.parametrize(
    "paths",
    [
        ["/a", "/a/b"],
        ["/a", "/a-b", "/a/b"],
        ["/a", "/a!", "/a-b", "/a.c/d", "/a/b/c"],
        ["/", "/x"],
        ["/b", "/a"],
        ["/a", "/a"],
    ],
    ids=str,
)
def test_hierarchies_that_are_none(victim: Victim, paths: list[str]) -> None:
    """Nothing stands below an array, rows are in order, and no path comes twice (R14, R15)."""

    def alter(rows: list[dict[str, Any]]) -> None:
        (array,) = [row for row in rows if row["path"] == "/b"]
        made = [
            {**array, "id": number, "path": path, "inventories": []}
            for number, path in enumerate(paths, 1)
        ]
        rows[:] = made

    victim.alter_structure(
        alter,
        lambda facts: facts.update(
            next_node_id=100,
            manifest_files={
                "count": 0,
                "entries": 0,
                **dict.fromkeys(("size_bytes", "row_counts", "stored_bytes"), "KLUv/SAAAQAA"),
            },
        ),
    )

    with pytest.raises(CorruptFileError, match=f"{victim.snapshot_id}.*(below|order|twice)"):
        victim.read()


NAMES = st.sampled_from(["a", "b", "a-", "a.", "ab", "a0", "-", "é"])


@given(
    st.dictionaries(
        st.lists(NAMES, max_size=3).map(lambda names: "/" + "/".join(names)), st.booleans()
    )
)
def test_what_stands_below_arrays(nodes: dict[str, bool]) -> None:
    """All at once finds what looking at each path and those above it finds."""
    paths = sorted(nodes, key=str.encode)
    above = {path: [other for other in paths if _is_below(path, other)] for path in paths}
    wrong = any(nodes[other] for path in paths for other in above[path])
    found = fault_of_paths(
        pa.array(paths, pa.string()), paths, np.array([nodes[p] for p in paths], bool)
    )

    assert (found is not None) == wrong


def _is_below(path: str, other: str) -> bool:
    return path != other and path.startswith(other.rstrip("/") + "/")


@pytest.mark.parametrize("number", [1, 2])
def test_ids_that_were_not_given_out(victim: Victim, number: int) -> None:
    """An id at or above next_node_id would be given to another node, and an array vanish (R23)."""
    victim.alter_structure(facts=lambda facts: facts.update(next_node_id=number))

    with pytest.raises(CorruptFileError, match=f"{victim.snapshot_id}.*next_node_id"):
        victim.read()


def first(facts: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = facts["short_term_history"][0]
    return entry


NEVER = "9999-12-31T23:59:59.999999+00:00"
FACTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no history": lambda facts: facts.update(short_term_history=[]),
    "a shorter count": lambda facts: facts.update(short_term_parents=0),
    "more ancestors": lambda facts: facts.update(total_parents=5),
    "fewer ancestors": lambda facts: facts.update(total_parents=0),
    "more than 64 bits": lambda facts: facts.update(total_parents=2**64),
    "a parent from later": lambda facts: first(facts).update(written_at="2500-01-01T00:00:00.000000+00:00"),
    "a parent of that time": lambda facts: first(facts).update(written_at=facts["metadata"]["written_at"]),
    "begun after it ended": lambda facts: facts.update(started_at="2500-01-01T00:00:00.000000+00:00"),
    "the end of time": lambda facts: facts["metadata"].update(written_at=NEVER),
    "before clocks": lambda facts: first(facts).update(written_at="0001-01-01T00:00:00.000000+00:00"),
    "another zone": lambda facts: facts.update(started_at="2020-01-01T00:00:00.000000+23:59"),
    "a number without end": lambda facts: facts["properties"].update(x=float("inf")),
    "no number": lambda facts: facts["properties"].update(x=float("nan")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FACTS)
def test_facts_that_cannot_be(victim: Victim, fault: str) -> None:
    """Histories and times that contradict themselves are damage, for sessions and for tables (R20, R21)."""
    victim.alter_structure(facts=FACTS[fault])
    repo = Repository.open(victim.root)
    for read in (
        victim.read,
        lambda: repo.tables("snapshots"),
        lambda: list(repo.ancestry(branch="main")),
    ):
        with pytest.raises(CorruptFileError, match=victim.snapshot_id):
            read()


def long_history(root: Path, count: int) -> tuple[Repository, list[str]]:
    repo = Repository.create(root)
    snapshots = []
    for number in range(count):
        session = repo.writable_session("main")
        session.set_document(f"/n{number:03}", array_document(1))
        snapshots.append(session.commit("more"))
    return repo, snapshots


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("loop", ["itself", "a later one"])
def test_histories_that_never_end(tmp_path: Path, count: int, loop: str) -> None:
    """A snapshot that comes again among its own ancestors is damage, and every walk ends."""
    repo, snapshots = long_history(tmp_path / "repository", count)
    victim = Victim.__new__(Victim)
    victim.root, victim.snapshot_id = tmp_path / "repository", snapshots[0]
    other = snapshots[0] if loop == "itself" else snapshots[-1]
    victim.alter_structure(facts=lambda facts: first(facts).update(id=other))
    repo = Repository.open(victim.root)
    long_ago = datetime(1999, 1, 1, tzinfo=UTC)
    for walk in (
        lambda: list(islice(repo.ancestry(branch="main"), 1000)),
        lambda: repo.tables("snapshots"),
        lambda: repo.tables("operations"),
    ):
        with pytest.raises(CorruptFileError, match="ancestor"):
            walk()
    with pytest.raises((CorruptFileError, SnapshotNotFoundError)):  # or it never comes to that file
        repo.readonly_session("main", as_of=long_ago)


def test_pages_of_another_codec(victim: Victim) -> None:
    """Pages are zstd or plain, as the header says; others are damage."""
    table, facts = old(victim, FileKind.STRUCTURE, victim.snapshot_id)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for codec in ("zstd", "snappy", "gzip"):
        write(victim, FileKind.STRUCTURE, victim.snapshot_id, columns, facts, compression=codec)
        if codec == "zstd":
            assert victim.read()
        else:
            with pytest.raises(CorruptFileError, match=f"{victim.snapshot_id}.*{codec.upper()}"):
                victim.read()


def test_the_way_out_is_named(victim: Victim) -> None:
    """An error is about the file, by its key."""
    victim.alter_structure(facts=lambda facts: facts.update(next_node_id=1))

    with pytest.raises(CorruptFileError) as caught:
        victim.read()
    assert caught.value.key == key_of(FileKind.STRUCTURE, victim.snapshot_id)  # type: ignore[attr-defined]


def pack(*numbers: int) -> str:
    data = np.array(numbers, "<u8").tobytes()
    return base64.b64encode(pa.compress(data, codec="zstd", asbytes=True)).decode()


def list_chunks(victim: Victim) -> list[int]:
    session = Repository.open(victim.root).readonly_session("main")
    return [len(batch) for batch in session.chunk_coordinates("/a")]


def look_up(victim: Victim, index: int) -> object:
    session = Repository.open(victim.root).readonly_session("main")
    return session.find_chunk(session.get_array("/a"), (index,))


def test_rows_that_are_not_sorted(victim: Victim) -> None:
    """An absence rests on the order of rows: where they have none, it is damage and not the fill value (R24)."""
    assert look_up(victim, 2) is None
    table, facts = old(victim, FileKind.MANIFEST, victim.manifest)
    mine = np.flatnonzero(np.array(table["array_id"].to_pylist()) == victim.array_id)
    order = np.arange(table.num_rows)
    order[mine] = mine[::-1]
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    columns["coord"] = columns["coord"].take(pa.array(order))
    write(victim, FileKind.MANIFEST, victim.manifest, columns, facts, use_dictionary=False)

    for index in (0, 2):
        with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*not sorted"):
            look_up(victim, index)


def test_more_rows_than_the_snapshot_says(victim: Victim) -> None:
    """A row count that is too small does not hide chunks that stand beside what was read (R18)."""
    victim.alter_structure(
        facts=lambda facts: facts["manifest_files"].update(row_counts=pack(2, 4))
    )

    with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*more rows"):
        look_up(victim, 3)


def test_rows_outside_of_their_extent(victim: Victim) -> None:
    """Chunks that an extent does not contain are damage for whoever reads their rows (R18)."""
    assert sum(list_chunks(victim)) == 3

    def alter(rows: list[dict[str, Any]]) -> None:
        (row,) = [row for row in rows if row["path"] == "/a"]
        row["inventories"][0]["extent"] = [[0, 3]]

    victim.alter_structure(alter)

    with pytest.raises(CorruptFileError, match=f"{victim.manifest}.*outside"):
        list_chunks(victim)
