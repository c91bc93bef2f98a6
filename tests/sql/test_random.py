"""On random histories every table and every inspection is what the slow model says, for any two snapshots."""

from __future__ import annotations

import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_arrow.duckdb import attach, sql_script
from icechunk_arrow.tables.schemas import TABLES
from tests.sql.answers import ANSWERS, LONGEST, in_files
from tests.sql.model import Model, in_order
from tests.sql.repositories import add_array, new_repository, refer
from tests.sql.test_tables import NOT_OF_THE_MODEL, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_arrow import Repository, Session
    from tests.sql.model import Row

SHAPES = [(), (0,), (7,), (3, 4), (2, 3, 2), (70, 2), (2, 2, 2, 2), (2**40, 3)]
NAMES = ["a", "b", "c", "it's", 'ß🎈 "', "semi;colon--", "two/parts", "glob/[*]?"]
LATER = timedelta(seconds=1)


@dataclass
class History:
    """A repository that somebody did anything with."""

    repository: Repository
    root: Path
    chance: random.Random
    snapshots: list[str] = field(default_factory=list)


def act(session: Session, chance: random.Random) -> None:
    """Do one thing, whatever is possible."""
    paths = [path for path in session.node_paths() if session.find_array(path) is not None]
    what = chance.choice(
        ["create", "write", "write", "refer", "refer", "delete chunk", "delete", "move"]
    )
    if what == "create" or not paths:
        name = chance.choice(NAMES)
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
        far = chance.random() < 0.2
        places = sorted(
            {
                tuple(chance.randrange(n if far else min(n, 80)) for n in counts)
                for _ in range(chance.randrange(1, 30))
            }
        )
        if what == "refer":
            refer(session, path, places, **parts_of_files(len(places), chance))
            return
        for place in places:
            if what == "write":
                session.write_chunk(path, place, chance.randbytes(chance.choice([0, 5, 20, 100])))
            else:
                session.delete_chunk(path, place)


def parts_of_files(count: int, chance: random.Random) -> dict[str, Any]:
    """Ranges that repeat and overlap; some too large for narrow files, some with what was seen of the file."""
    start = chance.choice([0, 0, 2**33])
    found: dict[str, Any] = {
        "offset": pa.array([start + chance.randrange(30) for _ in range(count)], pa.int64())
    }
    if chance.random() < 0.2:
        found["length"] = pa.array([2**32 + chance.randrange(3) for _ in range(count)], pa.int64())
    if chance.random() < 0.3:
        moment = datetime(2024, 5, 6, 7, 8, 9, chance.choice([0, 500_000]), tzinfo=UTC)
        times = [chance.choice([None, moment]) for _ in range(count)]
        found["etag"] = pa.array(chance.choices([None, "one", 'tw"o'], k=count), pa.string())
        found["last_modified"] = pa.array(times, pa.timestamp("us", "UTC"))
    return found


@contextmanager
def random_history(seed: int, rows: int) -> Iterator[History]:
    """Make a repository, with manifests of at most so many rows."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "r"
        history = History(new_repository(root, rows=rows), root, chance)
        repository = history.repository
        history.snapshots.append(repository.lookup_branch("main"))
        for number in range(chance.randrange(1, 6)):
            session = repository.writable_session("main")
            for _ in range(chance.randrange(1, 12)):
                act(session, chance)
            history.snapshots.append(session.commit(f"{number}", allow_empty=True))
        yield history


seeds = st.integers(0, 2**32)
limits = st.sampled_from([3, 12, 1000])


@given(seeds, limits)
@settings(max_examples=8)
def test_random_histories(seed: int, rows: int) -> None:
    """Arrow tables and views of every snapshot, and changes between two of them; the script has all of it too."""
    with random_history(seed, rows) as history, duckdb.connect() as con:
        repository, chance = history.repository, history.chance
        model = Model(history.root)
        some, before = chance.choice(history.snapshots), chance.choice(history.snapshots)
        attach(con, repository, "w", snapshot_id=some)
        con.execute(sql_script(repository, "script", snapshot_id=some, since=before))
        for name in TABLES:
            query = f"{name}('{before}', '{some}')" if name == "changes" else name
            expected = in_order(model.table(name, some, before))
            since = before if name == "changes" else None
            table = repository.tables(name, snapshot_id=some, since=since)
            assert rows_of(table) == expected, name
            for schema in ("w", "script"):
                view = con.sql(f"SELECT * FROM {schema}.{query}").to_arrow_table()
                assert rows_of(view.cast(TABLES[name])) == expected, (schema, name)
        assert set(NOT_OF_THE_MODEL) < set(TABLES["manifests"].names)


@given(seeds, limits)
@settings(max_examples=5)
def test_random_questions(seed: int, rows: int) -> None:
    """Every inspection, with parameters as they come."""
    with random_history(seed, rows) as history:
        repository, chance = history.repository, history.chance
        some = chance.choice(history.snapshots)
        model = Model(history.root)
        repository.create_tag("some", some)
        stray = history.root / "c" / "stray; [*]"
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"abc")
        for name, answer in ANSWERS.items():
            for asked in questions(name, model, history, some):
                found = repository.inspect(name, snapshot_id=some, **asked).to_pylist()
                expected = list(answer(model, some, **asked))
                if name == "gaps":
                    found, expected = (short_ones(each, model, some) for each in (found, expected))
                missing = {*NOT_OF_THE_MODEL, "last_modified"}
                plain = [{k: v for k, v in row.items() if k not in missing} for row in found]
                assert in_order(plain) == in_order(expected), (name, asked)


def short_ones(rows: list[Row], model: Model, snapshot: str) -> list[Row]:
    """Rows of arrays that the model looks through."""
    lengths = {row["path"]: max(row["shape"] or [0], default=0) for row in model.nodes(snapshot)}
    return [row for row in rows if lengths[row["path"]] < LONGEST]


def questions(name: str, model: Model, history: History, some: str) -> list[dict[str, Any]]:
    """Parameters to ask a query with."""
    chance = history.chance
    arrays = [row["path"] for row in model.nodes(some) if row["type"] == "array"]
    deep = [row["path"] for row in model.nodes(some) if row["shape"]]
    locations = [row["location"] for row in in_files(model, some)]
    match name:
        case "coverage_by_file":
            return [{"path": path} for path in chance.sample(deep, min(2, len(deep)))]
        case "gaps":
            return [{}, {"dimension": chance.randrange(1, 4)}]
        case "missing_chunks":
            return [{}, *({"path": path} for path in arrays[:1])]
        case "largest_chunks":
            return [{}, {"count": 3}, *({"path": path} for path in arrays[:1])]
        case "small_files" | "fragmentation":
            return [{"smaller_than_bytes": chance.choice([0, 1, 30, 200])}]
        case "virtual_storage":
            return [{"depth": chance.randrange(4)}]
        case "references_to":
            some_of = [chance.choice(each)[: chance.randrange(300)] for each in [locations] if each]
            return [{"location": each} for each in ("s3://", *some_of)]
        case "changes_by_array":
            return [{"since": chance.choice(history.snapshots)}]
        case "changed_sources":
            return [{"observed_files": observed(locations, chance)}]
    return [{}]


def observed(locations: list[str], chance: random.Random) -> pa.Table:
    """What might be seen of files; of each once."""
    files = [*sorted(set(locations)), "s3://nobody/asked"]
    moment = datetime(2024, 5, 6, 7, 8, 9, 400_000, tzinfo=UTC)
    times = [chance.choice([None, moment, moment + LATER]) for _ in files]
    sizes = [chance.choice([None, 0, 20, 2**40]) for _ in files]
    return pa.table(
        {
            "location": files,
            "etag": pa.array(chance.choices([None, '"one"', "two"], k=len(files)), pa.string()),
            "last_modified": pa.array(times, pa.timestamp("us", "UTC")),
            "size_bytes": pa.array(sizes, pa.int64()),
        }
    )
