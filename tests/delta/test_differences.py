"""Rows of manifests come and go together: what publishing writes, against the rows themselves, without Spark."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.delta.publishing import everything, replacement
from tests.places import make_array

if TYPE_CHECKING:
    from pathlib import Path

    from icechunk_arrow import Session


def change(session: Session, random: Random) -> None:
    """Do something to some array."""
    paths = session.array_paths()
    what = random.choice(["write", "write", "write", "make", "move", "delete", "clear"])
    if what == "make" or not paths:
        name = f"g{random.randrange(3)}/a{random.randrange(1000)}"
        make_array(session.store, name)[: random.choice([2, 8])] = 1
        return
    path = random.choice(paths)
    if what == "write":
        array: Any = zarr.open_array(session.store, path=path)
        array[random.randrange(8), random.randrange(8) :] = random.randrange(1, 1000)
    elif what == "move":
        session.move(path, f"/moved{random.randrange(10**9)}")
    elif what == "delete":
        session.delete_nodes([path])
    else:
        session.clear_array(path)


def rows_of(repo: Repository, snapshot_id: str) -> list[tuple[Any, ...]]:
    """Give the rows of the inventory without the snapshot."""
    table = repo.tables("chunks", snapshot_id=snapshot_id).drop_columns(["snapshot"])
    return [tuple(map(str, row.values())) for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(3))
def test_replacing_manifests_makes_one_snapshot_of_another(tmp_path: Path, seed: int) -> None:
    """Between any two snapshots, ancestors or not, the rows that stay and those that come are the later rows."""
    random = Random(seed)
    repo = Repository.create(tmp_path / "r")
    snapshots = [repo.lookup_branch("main")]
    for step in range(12):
        if step == 6:
            repo.reset_branch("main", snapshots[3])
        session = repo.writable_session("main")
        for _ in range(random.randrange(1, 4)):
            change(session, random)
        snapshots.append(session.commit(f"step {step}", allow_empty=True))
    place = repo.tables("chunks").drop_columns(["snapshot"]).schema.names.index("manifest")
    rows = {each: rows_of(repo, each) for each in random.sample(snapshots, 6)}
    for before, after in permutations(rows, 2):
        files = repo._context.files
        found = replacement(files.read_snapshot(before), files.read_snapshot(after))
        new = [row for row in rows[after] if row[place] in found.new]
        kept = [row for row in rows[before] if row[place] not in found.gone]

        assert Counter(kept + new) == Counter(rows[after])
        assert len(new) == found.row_count


def test_an_append_costs_what_it_appends(tmp_path: Path) -> None:
    """New chunks beside old ones come, and nothing else."""
    repo = Repository.create(tmp_path / "r")
    with repo.transaction("main", message="make") as store:
        make_array(store, shape=(100, 2))[:50] = 1
    before = repo._context.files.read_snapshot(repo.lookup_branch("main"))
    with repo.transaction("main", message="append") as store:
        array: Any = zarr.open_array(store, path="a")
        array[50:60] = np.ones((10, 2), "i4")
    after = repo._context.files.read_snapshot(repo.lookup_branch("main"))

    found = replacement(before, after)

    assert found.gone == frozenset()
    assert found.row_count == 5
    assert everything(after).row_count == 30
