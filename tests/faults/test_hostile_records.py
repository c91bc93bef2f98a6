"""Logs, the ledger, the state file and tables of files that are sealed rightly and say odd things.

Each was found by ``tests.fuzzing``; the shortest file that shows it stands here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icechunk_arrow import CorruptFileError, Repository
from icechunk_arrow.engine.files import find_ledger
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.kit.writing import FOLDER
from tests.faults.forms import Columns, with_log
from tests.faults.hostile import Victim, state_victim
from tests.faults.repositories import group_document
from tests.fuzzing.sheets import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


def refuse_log(victim: Victim) -> None:
    """See the log of the commit refused, by who reads it and by its table."""
    repo = Repository.open(victim.root)
    for see in (
        lambda: repo._context.files.read_log(victim.snapshot_id),
        lambda: repo.tables("operations"),
    ):
        with pytest.raises(CorruptFileError, match=victim.snapshot_id):
            see()


@pytest.mark.parametrize("name", ["node_type", "path", "node_id", "coord"])
def test_operations_that_lack_what_they_need(victim: Victim, name: str) -> None:
    """A row of a log without a value that its operation needs is refused, also by the table of operations (R34)."""

    def alter(columns: Columns) -> Columns:
        values = columns[name].to_pylist()
        values[-1] = None
        return columns | {name: pa.array(values, columns[name].type)}

    with_log(victim, alter)
    refuse_log(victim)


def test_the_table_of_operations_refuses_another_order(victim: Victim) -> None:
    """It reads logs as everybody does (R34)."""

    def alter(columns: Columns) -> Columns:
        count = len(columns["id"])
        order = pa.array([*range(count - 2), count - 1, count - 2])
        return {n: v if n == "id" else v.take(order) for n, v in columns.items()}

    with_log(victim, alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        Repository.open(victim.root).tables("operations")


def test_coordinates_of_a_log(victim: Victim) -> None:
    """One that is none is damage of the log (R30), and for its table; in other operations it is passed over."""

    def alter(place: int) -> Callable[[Columns], Columns]:
        def altered(columns: Columns) -> Columns:
            values = columns["coord"].to_pylist()
            values[place] = b"\x81"
            return columns | {"coord": pa.array(values, pa.binary())}

        return altered

    repo = Repository.open(victim.root)
    before = repo.tables("operations")
    with_log(victim, alter(1))
    again = Repository.open(victim.root).tables("operations")
    assert again.drop(["coord"]) == before.drop(["coord"])
    with_log(victim, alter(-1))
    refuse_log(victim)


def test_tables_name_the_file_of_an_odd_node(victim: Victim) -> None:
    """A grid that is none, and attributes in a file with another name, are damage of the structure file."""

    def no_edges(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["path"] == "/b":
                row["array_metadata"]["chunk_grid"]["configuration"]["chunk_shape"] = [0]

    def no_id(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["attrs_reference"] is not None:
                row["attrs_reference"]["attrs_file"] = "x.parquet"

    key = key_of(FileKind.STRUCTURE, victim.snapshot_id)
    sound = (victim.root / key).read_bytes()
    for alter in (no_edges, no_id):
        victim.write(key, sound)
        victim.alter_structure(alter)
        with pytest.raises(CorruptFileError, match=victim.snapshot_id):
            Repository.open(victim.root).tables("nodes")


def test_references_to_what_the_ledger_knows() -> None:
    """A tag may name a snapshot that was retired or rewritten: the table of references shows it (R81)."""
    place = MemoryStorage("hostile-forms-ledger")
    root = FOLDER / "ledger" / "repository"
    for path in root.rglob("*"):
        if path.is_file():
            place.put(path.relative_to(root).as_posix(), path.read_bytes())
    rows = Repository.open(place.url).tables("refs").to_pylist()

    assert {row["name"] for row in rows} == {"main", "old", "retired"}


def test_rows_of_the_ledger_have_numbers() -> None:
    """A null where there may be none is damage there too (R11)."""
    place = MemoryStorage("hostile-forms-ledger-null")
    root = FOLDER / "ledger" / "repository"
    for path in root.rglob("*"):
        if path.is_file():
            place.put(path.relative_to(root).as_posix(), path.read_bytes())
    newest = min(info.key for info in place.list("refs/ledger/"))
    log = json.loads(place.get(newest))["log"]
    key = key_of(FileKind.TRANSACTION, log)
    sheet = Sheet.of(place.get(key), log, ())
    sheet.column("id")[1] = None
    place.delete([key])
    place.put(key, sheet.write())

    with pytest.raises(CorruptFileError, match=f"{log}.*'id'"):
        find_ledger(place, None)


@pytest.mark.parametrize(
    "alter",
    [
        lambda state: state["snapshots"][0].update({"timestamp-ms": 1 << 60}),
        lambda state: state["snapshots"][0].update(properties=[]),
        lambda state: state["snapshots"][0].update(properties={"metadata": ""}),
    ],
    ids=["a time", "properties", "metadata"],
)
def test_state_files_that_say_odd_things(
    tmp_path: Path, alter: Callable[[dict[str, Any]], None]
) -> None:
    """A time is one that can be, and what should be an object is one."""
    root = state_victim(tmp_path)
    state = json.loads((root / "state.json").read_bytes())
    del state["crc32c"]
    (root / "state.json").write_text(json.dumps(state))
    Repository.open(root).readonly_session("main")
    alter(state)
    (root / "state.json").write_text(json.dumps(state))

    with pytest.raises(CorruptFileError, match=r"state\.json"):
        Repository.open(root).readonly_session("main")


def test_no_generation_comes_after_the_last(tmp_path: Path) -> None:
    """A commit does not write a state file that nobody can read."""
    root = state_victim(tmp_path)
    state = json.loads((root / "state.json").read_bytes())
    del state["crc32c"]
    state["generation"] = (1 << 63) - 1
    (root / "state.json").write_text(json.dumps(state))
    session = Repository.open(root).writable_session("main")
    session.set_document("/more", group_document())

    with pytest.raises(CorruptFileError, match=r"state.*generation"):
        session.commit("too late")
    Repository.open(root).readonly_session("main")


def test_packed_numbers_are_base_64(victim: Victim) -> None:
    """Other characters are not passed over (R22)."""

    def alter(facts: dict[str, Any]) -> None:
        facts["manifest_files"]["size_bytes"] = "." + facts["manifest_files"]["size_bytes"]

    victim.alter_structure(facts=alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()
