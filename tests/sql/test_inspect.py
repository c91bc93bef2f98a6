"""Every inspection query gives what a slow count over the files gives; wrong parameters are explained."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icechunk_arrow import InvalidInputError, NodeNotFoundError
from icechunk_arrow.errors import CorruptFileError
from icechunk_arrow.tables.inspecting import reached_by
from tests.sql.answers import ANSWERS
from tests.sql.model import Model, Row, in_order
from tests.sql.repositories import STRANGE, Filled, add_array, fill, new_repository, refer

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = f"s3://bucket/{STRANGE}/".replace("\n", "")
PACKED = f"/{STRANGE}/packed"
SECOND = timedelta(seconds=1)
LARGE = {"/far", "/too many"}
"""Grids that cannot be looked through index by index."""


@pytest.fixture(scope="module", params=["narrow", "wide"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("inspect") / "it's [a] *; folder"
    return fill(folder, wide=request.param == "wide")


def rows(filled: Filled, name: str, **given: Any) -> list[Row]:
    """Run a query; the columns and types are those declared."""
    table = filled.repository.inspect(name, **given)
    table.validate(full=True)
    [listed] = [
        each for each in filled.repository.inspections().to_pylist() if each["name"] == name
    ]
    assert table.column_names == listed["columns"]
    return in_order(table.to_pylist())


def answer(filled: Filled, name: str, **given: Any) -> list[Row]:
    """What the slow model says."""
    return in_order(list(ANSWERS[name](Model(filled.root), filled.snapshots[-1], **given)))


def check(filled: Filled, name: str, **given: Any) -> list[Row]:
    """Compare a query with the slow model, and give its rows."""
    found = rows(filled, name, **given)
    assert found == answer(filled, name, **given)
    return found


# -- one snapshot


def test_sizes(filled: Filled) -> None:
    """array_sizes and missing_chunks say what the table of arrays says, and shares of it."""
    assert len(check(filled, "array_sizes")) > 8
    assert len(check(filled, "missing_chunks")) > 4
    assert [row["missing"] for row in check(filled, "missing_chunks", path="/sparse")] == [4995]
    assert check(filled, "missing_chunks", path=PACKED) == []


@pytest.mark.parametrize("dimension", [0, 1, 4])
def test_gaps(filled: Filled, dimension: int) -> None:
    """Indices along a dimension that lack chunks, found one by one and put together where neighbours are alike."""
    found = [row for row in rows(filled, "gaps", dimension=dimension) if row["path"] not in LARGE]
    assert found
    assert found == [
        row for row in answer(filled, "gaps", dimension=dimension) if row["path"] not in LARGE
    ]
    if dimension == 0:
        assert {row["state"] for row in found} == {"missing", "partial"}
        [gap] = rows(filled, "gaps", path="/virtual")
        assert (gap["first_index"], gap["stop_index"], gap["missing_chunks"]) == (7, 8, 30)


def test_gaps_of_huge_grids(tmp_path: Path) -> None:
    """A gap costs nothing to be long, and a grid beyond 64 bits has no number of missing chunks."""
    filled = fill(tmp_path / "r", wide=True)
    runs = [
        (row["state"], row["first_index"], row["stop_index"], row["missing_chunks"])
        for row in rows(filled, "gaps", path="/far")
    ]
    assert sorted(runs) == [
        ("missing", 1, 70_000, 69_999 * 100),
        ("missing", 70_001, 2**31 - 1, (2**31 - 70_002) * 100),
        ("partial", 0, 1, 99),
        ("partial", 70_000, 70_001, 99),
        ("partial", 2**31 - 1, 2**31, 99),
    ]
    huge = rows(filled, "gaps", path="/too many", dimension=2)
    assert [(row["first_index"], row["stop_index"], row["missing_chunks"]) for row in huge] == [
        (0, 2**39, None),
        (2**39, 2**39 + 1, None),
        (2**39 + 1, 2**40, None),
    ]


@pytest.mark.parametrize(
    ("path", "dimension"), [("/virtual", 0), ("/virtual", 1), (PACKED, 0), ("/inline", 0)]
)
def test_coverage_by_file(filled: Filled, path: str, dimension: int) -> None:
    """Which indices each file has."""
    assert check(filled, "coverage_by_file", path=path, dimension=dimension)


def test_compression(filled: Filled) -> None:
    """Stored against logical bytes of each array, and of all arrays with the same codecs."""
    assert len(check(filled, "compression")) > 8
    assert len(check(filled, "compression_by_codec")) > 2


@pytest.mark.parametrize("limit", [0, 100, 101, 1 << 20])
def test_small_files(filled: Filled, limit: int) -> None:
    """Files of which less is in use than the limit, and how arrays lie in them."""
    assert bool(check(filled, "small_files", smaller_than_bytes=limit)) == (limit > 100)
    assert check(filled, "fragmentation", smaller_than_bytes=limit)


@pytest.mark.parametrize("depth", [0, 1, 2, 100])
def test_virtual_storage(filled: Filled, depth: int) -> None:
    """Virtual chunks by bucket and so many folders."""
    prefixes = {row["prefix"] for row in check(filled, "virtual_storage", depth=depth)}
    assert ("s3://bucket/" if depth == 0 else BUCKET) in prefixes


def test_ranges(filled: Filled) -> None:
    """Ranges of files that come twice, and ranges that share bytes, compared each with each."""
    assert check(filled, "duplicate_ranges")
    assert check(filled, "overlapping_ranges")


@pytest.mark.parametrize("given", [{}, {"count": 3}, {"count": 1000000}, {"path": "/virtual"}])
def test_largest_chunks(filled: Filled, given: dict[str, Any]) -> None:
    """The longest chunks, in order."""
    assert check(filled, "largest_chunks", **given)


def test_manifest_health(filled: Filled) -> None:
    """Boxes of manifests that meet, and manifests that begin before an earlier one ends."""
    fills = {
        row["manifest"]: row["fill"] for row in filled.repository.tables("manifests").to_pylist()
    }
    found = rows(filled, "manifest_health")
    for row in found:
        assert row.pop("manifest_set") == "default"
        assert row.pop("fill") == fills[row["manifest"]]
    assert found
    assert in_order(found) == answer(filled, "manifest_health")


def test_manifests_that_overlap(tmp_path: Path) -> None:
    """A commit into the middle of an array leaves a manifest that overlaps another and is out of order."""
    repository = new_repository(tmp_path / "r", rows=4)
    for places in ([0, 9], [4, 5]):
        session = repository.writable_session("main")
        if places[0] == 0:
            add_array(session, "a", (10,))
            refer(session, "/a", [(place,) for place in (0, 1, 8, 9)])
        else:
            refer(session, "/a", [(place,) for place in places])
        session.commit("more")
    found = repository.inspect("manifest_health").to_pylist()

    assert sorted((row["row_count"], row["overlapping"], row["out_of_order"]) for row in found) == [
        (2, 1, 1),
        (4, 1, 0),
    ]


# -- several snapshots


def test_growth(filled: Filled) -> None:
    """What each snapshot has, and has more than its parent, as a whole and array by array."""
    assert len(check(filled, "growth")) == len(filled.snapshots)
    assert min(row["added_chunks"] for row in check(filled, "growth_by_array")) < 0


@pytest.mark.parametrize(("since", "place"), [(None, -2), ("after chunks", 2), ("side; drop", 3)])
def test_changes_by_array(filled: Filled, since: str | None, place: int) -> None:
    """What changed since a snapshot, counted."""
    found = rows(filled, "changes_by_array", since=since)
    assert found
    assert found == answer(filled, "changes_by_array", since=filled.snapshots[place])


def test_who_refers(filled: Filled) -> None:
    """Every branch and tag whose history refers to a file or prefix, also where the tip does no more."""
    model, snapshot = Model(filled.root), filled.snapshots[-1]
    gone = {
        row["location"] for row in model.chunks(filled.snapshots[2]) if row["path"] == "/moving"
    }
    assert "/moving" not in {row["path"] for row in model.chunks(snapshot)}
    native = f"file://{filled.root}/c/"
    for location in (
        BUCKET,
        f"{BUCKET}1.nc",
        native,
        *gone,
        "",
        "s3://other/",
        "' OR 1=1 --",
        "s3://%",
    ):
        check(filled, "references_to", location=location)
    tips = {
        (row["name"], row["path"]): row["at_tip"]
        for row in rows(filled, "references_to", location=native)
    }
    assert tips["main", PACKED]
    assert tips["main", "/moving"] is False
    assert tips["after chunks", "/moving"]


def test_time_travel(filled: Filled) -> None:
    """A question is about the snapshot that is named."""
    model = Model(filled.root)
    repository = filled.repository
    named: list[tuple[int, dict[str, Any]]] = [
        (2, {"tag": "after chunks"}),
        (3, {"branch": "side; drop"}),
        (1, {"snapshot_id": filled.snapshots[1]}),
    ]
    for place, given in named:
        found = repository.inspect("array_sizes", **given).to_pylist()
        arrays = model.arrays(filled.snapshots[place])
        assert {row["path"]: row["chunk_count"] for row in found} == {
            row["path"]: row["chunk_count"] for row in arrays
        }
    first = model.snapshots(filled.snapshots[-1])[-1]["written_at"]
    assert repository.inspect("array_sizes", branch="main", as_of=first).num_rows == 0


def test_each_manifest_is_read_once(filled: Filled) -> None:
    """However many snapshots have a manifest, and whatever its form, it is in one scan."""
    model = Model(filled.root)
    expected = [row["manifest"] for each in filled.snapshots for row in model.manifests(each)]
    held = reached_by(filled.repository._context, [*filled.snapshots, *filled.snapshots])
    names = [name for scan in held.scans for name in scan.manifests]

    assert len(expected) > len(set(expected)) == len(names)
    assert set(names) == set(expected)


@pytest.mark.parametrize("name", ["array_sizes", "references_to"])
def test_a_manifest_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    """There are no rows without it."""
    filled = fill(tmp_path / "r", wide=False)
    lost = Model(filled.root).manifests(filled.snapshots[-1])[0]["manifest"]
    (filled.root / f"i/{lost}.parquet").unlink()
    given: dict[str, Any] = {"location": "s3://"} if name == "references_to" else {}
    with pytest.raises(CorruptFileError, match=f"{lost}.* of (the|a) snapshot"):
        filled.repository.inspect(name, **given)


def test_growth_opens_no_manifest(tmp_path: Path) -> None:
    """Structure files say it all: the answers are the same when every manifest is gone."""
    filled = fill(tmp_path / "r", wide=False)
    names = ("growth", "growth_by_array")
    expected = {name: rows(filled, name) for name in names}
    shutil.rmtree(filled.root / "i")

    assert {name: rows(filled, name) for name in names} == expected
    assert all(expected.values())


# -- what is really there


def observed(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_changed_sources(filled: Filled) -> None:
    """Etags, times and lengths that do not fit are found; what was not recorded or observed is not compared."""
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    files = [f"{BUCKET}{number}.nc" for number in range(3)]
    table = pa.table(
        {
            "location": pa.array(files),
            "etag": pa.array(["\"an 'etag'\"", "another", None]),
            "last_modified": pa.array(
                [moment, moment + SECOND, moment - SECOND], pa.timestamp("us", "UTC")
            ),
            "size_bytes": pa.array([200, None, 8000], pa.int64()),
        }
    )
    found = check(filled, "changed_sources", observed_files=table)
    assert {row["problem"] for row in found} == {"etag", "time", "length"}
    assert {row["location"] for row in found} == set(files)
    unknown = observed(location=["s3://elsewhere/x"], size_bytes=[0])
    assert rows(filled, "changed_sources", observed_files=unknown) == []


def test_times_of_whole_seconds(tmp_path: Path) -> None:
    """A record of whole seconds is compared in seconds, as reading does."""
    repository = new_repository(tmp_path / "r")
    session = repository.writable_session("main")
    add_array(session, "a", (1,))
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    kind = pa.timestamp("us", "UTC")
    refer(session, "/a", [(0,)], location=["s3://b/f"], last_modified=pa.array([moment], kind))
    session.commit("one")
    for later, count in ((SECOND / 2, 0), (SECOND, 1)):
        table = pa.table(
            {"location": ["s3://b/f"], "last_modified": pa.array([moment + later], kind)}
        )
        assert repository.inspect("changed_sources", observed_files=table).num_rows == count


def test_unreferenced_files(tmp_path: Path) -> None:
    """Files of a branch that is gone, and of nobody, are found, and no others; a listing may be given."""
    filled = fill(tmp_path / "it's [a] *", wide=True)
    repository, root = filled.repository, filled.root
    assert rows(filled, "unreferenced_files") == []
    folders = "cista"

    def on_disk() -> set[Path]:
        return {path for each in folders for path in (root / each).glob("*") if path.is_file()}

    before = on_disk()
    repository.create_branch("gone", filled.snapshots[-1])
    session = repository.writable_session("gone")
    add_array(session, "large", (4,), chunks=(1,), attributes={"big": "y" * 50_000})
    session.write_chunk("/large", (0,), b"x" * 500)
    session.commit("in vain")
    made = on_disk() - before
    assert rows(filled, "unreferenced_files") == []

    repository.delete_branch("gone")
    stray = root / "c" / "it's; [a] stray"
    stray.write_bytes(b"abc")
    found = {row["location"]: row for row in rows(filled, "unreferenced_files")}
    sizes = [{name: row[name] for name in ("location", "size_bytes")} for row in found.values()]
    assert in_order(sizes) == answer(filled, "unreferenced_files")
    assert set(found) == {f"file://{path}" for path in made | {stray}}
    assert {path.parent.name for path in made} >= set("cist")
    assert found[f"file://{stray}"]["size_bytes"] == 3
    assert found[f"file://{stray}"]["last_modified"].timestamp() == pytest.approx(
        stray.stat().st_mtime, abs=0.001
    )
    listing = observed(location=[f"file://{stray}", f"file://{min(before)}"])
    assert [
        row["location"] for row in rows(filled, "unreferenced_files", observed_files=listing)
    ] == [f"file://{stray}"]


def test_a_repository_without_anything(tmp_path: Path) -> None:
    """Each question about nothing has an answer, which is the first snapshot or nothing."""
    repository = new_repository(tmp_path / "r")
    needed = {
        "references_to": {"location": "s3://"},
        "changed_sources": {"observed_files": observed(location=["s3://a"])},
    }
    names = repository.inspections()["name"].to_pylist()
    counts = {
        name: repository.inspect(name, **needed.get(name, {})).num_rows
        for name in names
        if name != "coverage_by_file"
    }
    assert {name for name, count in counts.items() if count} == {"growth"}


def test_places_that_are_not_disks() -> None:
    """Questions about all snapshots read manifests through the storage as well, and list it."""
    repository = new_repository("memory://inspect")
    for number in range(2):
        session = repository.writable_session("main")
        if number == 0:
            add_array(session, "a", (3,))
        session.write_chunk("/a", (number,), b"x" * 200)
        session.commit("one more")
    found = repository.inspect("growth_by_array").to_pylist()

    assert sorted((row["chunk_count"], row["added_bytes"]) for row in found) == [(1, 200), (2, 200)]
    [who] = repository.inspect("references_to", location="memory://inspect/c/").to_pylist()
    assert (who["name"], who["snapshot_count"], who["bytes"]) == ("main", 2, 400)
    assert repository.inspect("unreferenced_files").num_rows == 0
    [gap] = repository.inspect("gaps", path="/a").to_pylist()
    assert (gap["first_index"], gap["stop_index"]) == (2, 3)


# -- parameters


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("sizes", {}, "no inspection 'sizes'; there are array_sizes, "),
        ("../tables/chunks", {}, "no inspection"),
        ("gaps", {"dimensions": 1}, "no parameter 'dimensions'; it has path, dimension"),
        ("growth", {"path": "/a"}, "no parameter 'path'; it has none"),
        ("references_to", {}, "needs the parameter 'location': URI of a file"),
        ("references_to", {"location": None}, "a text, not None"),
        ("references_to", {"location": b"s3://"}, "a text, not b's3://'"),
        ("references_to", {"location": "\ud800"}, "lone surrogate"),
        ("gaps", {"dimension": "0"}, "'dimension' .* an integer, .* not '0'"),
        ("gaps", {"dimension": True}, "not True"),
        ("gaps", {"dimension": -1}, "from 0 to .*, not -1"),
        ("gaps", {"path": "/virtual", "dimension": 2}, "has 2 dimensions"),
        ("virtual_storage", {"depth": 101}, "from 0 to 100, not 101"),
        ("largest_chunks", {"count": 0}, "from 1 to 1000000, not 0"),
        ("largest_chunks", {"count": None}, "not None"),
        ("small_files", {"smaller_than_bytes": 2**63}, "from 0 to"),
        ("small_files", {"smaller_than_bytes": 1.5}, "not 1.5"),
        ("changed_sources", {}, "needs the parameter 'observed_files'"),
        ("changed_sources", {"observed_files": []}, "an Arrow table .* not list"),
        ("changed_sources", {"observed_files": pa.table({"etag": ["a"]})}, "no column location"),
        (
            "changed_sources",
            {"observed_files": pa.table({"location": ["a"], "size": [1]})},
            "strange size",
        ),
        (
            "changed_sources",
            {"observed_files": pa.table({"location": ["a"], "size_bytes": ["x"]})},
            "string in 'size_bytes'",
        ),
    ],
)
def test_wrong_parameters(filled: Filled, name: str, given: dict[str, Any], message: str) -> None:
    """What is unknown, missing, of another type or out of bounds is refused, and the message says what fits."""
    with pytest.raises(InvalidInputError, match=message):
        filled.repository.inspect(name, **given)


def test_paths_are_arrays(filled: Filled) -> None:
    """A path that is no array's is no empty answer, and names are never more than names."""
    for path in ("/none", "/", "' OR 1=1 --", "$path", "{chunks}"):
        with pytest.raises(NodeNotFoundError) as caught:
            filled.repository.inspect("gaps", path=path)
        assert repr("/" + path.strip("/")) in str(caught.value)
    with pytest.raises(InvalidInputError, match="contains the character NUL"):
        filled.repository.inspect("gaps", path="/virtual\0")
    with pytest.raises(InvalidInputError, match="'/scalar' has 0 dimensions"):
        filled.repository.inspect("coverage_by_file", path="/scalar")
