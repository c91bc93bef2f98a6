"""The macros are the package's own functions, for every coordinate and grid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icechunk_arrow.duckdb
from icechunk_arrow.core.coords import MAX_INDEX, encode_one
from icechunk_arrow.core.grid import grid_of
from icechunk_arrow.duckdb.definitions import coordinate_macros
from tests.core.zarr_documents import plain
from tests.sql.repositories import new_repository

if TYPE_CHECKING:
    from icechunk_arrow import Repository

EDGES = [0, 1, 63, 64, 65, 16_383, 16_384, 2**30 - 1, 2**30, 2**32, MAX_INDEX]
indices = st.one_of(st.integers(0, 300), st.sampled_from(EDGES), st.integers(0, MAX_INDEX))


@pytest.fixture(scope="module")
def con() -> Any:
    with duckdb.connect() as connection:
        connection.execute(";\n".join(coordinate_macros("main")))
        yield connection


@given(
    st.integers(0, 9).flatmap(
        lambda n: st.lists(st.lists(indices, min_size=n, max_size=n), min_size=1)
    )
)
@settings(max_examples=30)
def test_coordinates_are_encoded_and_decoded(con: Any, places: list[list[int]]) -> None:
    """Of every rank and all widths, with the rank named and without, as in ``core.coords``."""
    ndim = len(places[0])
    table = pa.table(
        {"place": pa.array(places, pa.list_(pa.int64())), "coord": [encode_one(p) for p in places]}
    )
    con.register("given", table)
    query = (
        f"SELECT coord_encode(place), coord_decode(coord), coord_decode(coord, {ndim}), "
        f"coord_decode(coord, (SELECT {ndim})), _decode_text(coord) FROM given"
    )

    assert con.execute(query).fetchall() == [
        (encode_one(place), place, place, place, place) for place in places
    ]


@pytest.mark.parametrize(
    "wrong", ["[-1]", "[4611686018427387904]", "[1, NULL]", "[9223372036854775807]"]
)
def test_an_index_that_cannot_be_is_an_error(con: Any, wrong: str) -> None:
    """Encoding refuses what no coordinate can hold, and names it."""
    with pytest.raises(duckdb.ConversionException, match="a chunk index is a number from 0 to"):
        con.execute(f"SELECT coord_encode({wrong})")


def test_null_is_no_coordinate(con: Any) -> None:
    """Nothing is encoded as nothing."""
    assert con.execute("SELECT coord_encode(NULL), coord_decode(NULL::BLOB)").fetchall() == [
        (None, None)
    ]


def test_bytes_compare_as_indices_do(con: Any) -> None:
    """The order of encoded coordinates is that of their indices."""
    places = [[a, b] for a in EDGES for b in EDGES]
    con.register("given", pa.table({"place": pa.array(places, pa.list_(pa.int64()))}))

    assert con.execute("SELECT place FROM given ORDER BY coord_encode(place)").fetchall() == [
        (place,) for place in sorted(places)
    ]


GRIDS = {
    "/plain": ([10, 7], {"name": "regular", "configuration": {"chunk_shape": [3, 7]}}),
    "/scalar": ([], {"name": "regular", "configuration": {"chunk_shape": []}}),
    "/nothing": ([0, 5], {"name": "regular", "configuration": {"chunk_shape": [1, 2]}}),
    "/huge": ([2**62], {"name": "regular", "configuration": {"chunk_shape": [3]}}),
    "/unequal": (
        [10, 7],
        {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[1, 2, [3, 2], 5], 3]},
        },
    ),
}


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = new_repository(tmp_path_factory.mktemp("grids") / "r")
    session = repository.writable_session("main")
    for path, (shape, grid) in GRIDS.items():
        document = plain(shape=shape, chunk_grid=grid)
        session.set_document(path, json.dumps(document).encode())
    session.commit("grids")
    return repository


@pytest.mark.parametrize("path", GRIDS)
def test_elements_are_in_their_chunks(grids: Repository, path: str) -> None:
    """``chunk_of`` says for each element what the grid says, also where chunks are unequal."""
    shape, chunk_grid = GRIDS[path]
    grid = grid_of({"shape": shape, "chunk_grid": chunk_grid})
    places: list[list[int]] = [[]]
    for length in shape:
        some = range(length) if length < 100 else (0, 2, 3, length // 2, length - 1)
        places = [[*place, position] for place in places for position in some]
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, grids, "w")
        con.register("given", pa.table({"place": pa.array(places, pa.list_(pa.int64()))}))
        found = con.execute(f"SELECT place, w.chunk_of('{path}', place) FROM given").fetchall()
        once = [
            con.execute(f"SELECT w.chunk_of('{path}', {p}::BIGINT[])").fetchall()[0][0]
            for p in places[:5]
        ]

    assert {tuple(p): tuple(c) for p, c in found} == {tuple(p): grid.chunk_of(p) for p in places}
    assert once == [list(grid.chunk_of(place)) for place in places[:5]]


@pytest.mark.parametrize(
    "call",
    [
        "'/plain', [10, 0]",
        "'/plain', [-1, 0]",
        "'/plain', [1]",
        "'/plain', [1, NULL]",
        "'/plain', NULL",
        "'/nothing', [0, 0]",
        "'/none', [0]",
        "NULL, [0]",
    ],
)
def test_elements_that_are_not_there_have_no_chunk(grids: Repository, call: str) -> None:
    """Outside an array, or of none, ``chunk_of`` is null."""
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, grids, "w")
        assert con.execute(f"SELECT w.chunk_of({call})").fetchone() == (None,)


bounds = st.one_of(st.none(), st.integers(-2, 9), st.sampled_from([2**62 - 1, 2**62, 2**63 - 1]))


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A connection to arrays of several ranks, half of whose chunks are there."""
    from tests.sql.repositories import add_array, refer

    repository = new_repository(tmp_path_factory.mktemp("boxes") / "r", rows=5)
    session = repository.writable_session("main")
    for ndim in range(5):
        add_array(session, f"a{ndim}", (4,) * ndim)
        places = [tuple(n // 4**d % 4 for d in range(ndim)) for n in range(0, 4**ndim, 2)]
        refer(session, f"/a{ndim}", places)
    session.commit("chunks")
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, repository, "w")
        yield con


@given(st.integers(0, 4), st.lists(bounds, max_size=4), st.lists(bounds, max_size=4))
@settings(max_examples=40)
def test_boxes_hold_their_chunks(boxes: Any, ndim: int, lower: list[Any], upper: list[Any]) -> None:
    """``chunks_in`` gives what a filter on ``index`` gives; a missing bound is none, one too many fits no chunk."""
    conditions = ["len(index) >= " + str(max(len(lower), len(upper)))]
    conditions += [f"index[{d + 1}] >= {low}" for d, low in enumerate(lower) if low is not None]
    conditions += [f"index[{d + 1}] < {high}" for d, high in enumerate(upper) if high is not None]
    slow = f"SELECT * FROM w.chunks WHERE path = '/a{ndim}' AND {' AND '.join(conditions)} ORDER BY coord"
    literals = [
        "[" + ", ".join("NULL" if x is None else str(x) for x in each) + "]::BIGINT[]"
        for each in (lower, upper)
    ]
    quick = f"SELECT * FROM w.chunks_in('/a{ndim}', {literals[0]}, {literals[1]}) ORDER BY coord"

    assert boxes.execute(quick).fetchall() == boxes.execute(slow).fetchall()
