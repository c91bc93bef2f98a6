"""On random histories every table is what the slow model says, and so are changes between any two snapshots."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow.duckdb import attach
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.model import Model, in_order
from tests.sql.repositories import add_array, new_repository, refer
from tests.sql.test_tables import NOT_OF_THE_MODEL, rows_of

if TYPE_CHECKING:
    from icechunk_arrow import Session

SHAPES = [(), (0,), (7,), (3, 4), (2, 3, 2), (70, 2), (2, 2, 2, 2)]


def act(session: Session, chance: random.Random) -> None:
    """Do one thing, whatever is possible."""
    paths = [path for path in session.node_paths() if session.find_array(path) is not None]
    what = chance.choice(
        ["create", "write", "write", "refer", "refer", "delete chunk", "delete", "move"]
    )
    if what == "create" or not paths:
        name = chance.choice("abcdef") + chance.choice(["", "'", "/x", "/[*]"])
        taken = session.node_paths()
        if f"/{name}" not in taken and f"/{name.split('/')[0]}" not in taken:
            add_array(session, name, chance.choice(SHAPES))
        return
    path = chance.choice(paths)
    view = session.get_array(path)
    counts = view.grid.chunk_counts
    if what == "delete":
        session.delete_nodes([path])
    elif what == "move":
        target = f"/moved-{chance.randrange(100)}"
        if session.find_node(target) is None:
            session.move(path, target)
    elif 0 not in counts:
        places = sorted(
            {tuple(map(chance.randrange, counts)) for _ in range(chance.randrange(1, 30))}
        )
        if what == "refer":
            refer(session, path, places, offset=[chance.randrange(99)] * len(places))
            return
        for place in places:
            if what == "write":
                session.write_chunk(path, place, chance.randbytes(chance.choice([0, 5, 20, 100])))
            else:
                session.delete_chunk(path, place)


@given(st.integers(0, 2**32), st.sampled_from([3, 12, 1000]))
@settings(max_examples=8)
def test_random_histories(seed: int, rows: int) -> None:
    """Arrow tables and views of every snapshot, and changes between two of them."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as con:
        repository = new_repository(Path(folder) / "r", rows=rows)
        snapshots = [repository.lookup_branch("main")]
        for number in range(chance.randrange(1, 6)):
            session = repository.writable_session("main")
            for _ in range(chance.randrange(1, 12)):
                act(session, chance)
            snapshots.append(session.commit(f"{number}", allow_empty=True))
        model = Model(Path(folder) / "r")
        some = chance.choice(snapshots)
        attach(con, repository, "w", snapshot_id=some)
        for name in TABLES:
            if name == "changes":
                continue
            expected = in_order(model.table(name, some))
            assert rows_of(repository.tables(name, snapshot_id=some)) == expected, name
            view = con.sql(f"SELECT * FROM w.{name}").to_arrow_table().cast(TABLES[name])
            assert rows_of(view) == expected, name
        before, after = chance.choice(snapshots), chance.choice(snapshots)
        changes = repository.tables("changes", snapshot_id=after, since=before)
        assert rows_of(changes) == in_order(model.changes(before, after))
        assert set(NOT_OF_THE_MODEL) < set(TABLES["manifests"].names)
