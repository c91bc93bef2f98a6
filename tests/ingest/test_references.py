"""Tables and files that say where chunks are: frames, kerchunk's JSON and Parquet, GRIB indexes, manifests."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

from icechunk_arrow import ingest
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from tests.ingest.files import equal_trees, new_repository, opened, reopened

if TYPE_CHECKING:
    from icechunk_arrow import Repository

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]
VALUES = np.arange(24, dtype="<f4").reshape(4, 6)
ZARRAY = {
    "zarr_format": 2,
    "shape": [4, 6],
    "chunks": [2, 3],
    "dtype": "<f4",
    "fill_value": -1.0,
    "order": "C",
    "filters": None,
    "compressor": None,
}


def data_file(folder: Path) -> Path:
    """Write four chunks one behind the other, and something in front."""
    path = folder / "data.bin"
    parts = [VALUES[r : r + 2, c : c + 3].tobytes() for r in (0, 2) for c in (0, 3)]
    path.write_bytes(b"head" + b"".join(parts))
    return path


def refs_of(url: str) -> dict[str, Any]:
    """Give references of version 0: ranges, a whole file, text and base64 within, and a chunk that is not there."""
    lat = np.array([1.0, 2.0, 3.0, 4.0])
    line = {"shape": [4], "chunks": [4], "dtype": "<f8", "fill_value": None}
    return {
        ".zgroup": json.dumps({"zarr_format": 2}),
        ".zattrs": {"title": "k"},
        "t/.zarray": json.dumps(ZARRAY),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}),
        "t/0.0": [url, 4, 24],
        "t/0.1": [url, 28, 24],
        "t/1.1": [url, 76, 24],
        "y/.zarray": json.dumps(ZARRAY | line),
        "y/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y"]}),
        "y/0": "base64:" + base64.b64encode(lat.tobytes()).decode(),
        "sub/.zgroup": {"zarr_format": 2},
        "sub/flag/.zarray": json.dumps(
            ZARRAY | {"shape": [3], "chunks": [3], "dtype": "|u1", "fill_value": None}
        ),
        "sub/flag/0": "abc",
        "sub/whole/.zarray": json.dumps(
            ZARRAY | {"shape": [100], "chunks": [100], "dtype": "|u1", "fill_value": None}
        ),
        "sub/whole/0": [url],
    }


def as_fsspec_reads(refs: Any, group: str | None = None) -> xr.Dataset:
    """Read references with fsspec and xarray, without this package."""
    fs = fsspec.filesystem("reference", fo=refs, asynchronous=True, remote_protocol="file")
    store = zarr.storage.FsspecStore(fs, read_only=True)
    found: xr.Dataset = xr.open_zarr(
        store, group=group, consolidated=False, chunks=None, zarr_format=2
    )
    return found.load()


def check(repo: Repository, refs: Any, group: str = "") -> None:
    """Compare what came in with what fsspec reads."""
    equal_trees(reopened(repo, group or None), as_fsspec_reads(refs))
    root = opened(repo, group)
    assert bytes(root["sub/flag"][...]) == b"abc"
    assert bytes(root["sub/whole"][:4]) == b"head"


@pytest.mark.parametrize("virtual", [True, False])
def test_kerchunk_json_of_both_versions(spark: Any, tmp_path: Path, virtual: bool) -> None:
    """Ranges, whole files, text, base64, templates, nested groups and missing chunks, as fsspec reads them."""
    path = data_file(tmp_path)
    old = refs_of(f"file://{path}")
    new = {
        "version": 1,
        "templates": {"u": f"file://{tmp_path}"},
        "refs": refs_of("{{u}}/data.bin"),
    }
    for name, content in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.references(
        spark, [tmp_path / "old.json", tmp_path / "new.json"], repo, virtual=virtual
    )

    assert result.file_count == 2
    assert result.chunk_count == 12
    for group in ("old", "new"):
        check(repo, old, group)
    kinds = {row["location"] for row in repo.tables("chunks").to_pylist() if row["location"]}
    assert any(each == f"file://{path}" for each in kinds) == virtual


def test_a_dictionary_with_places_that_are_not_absolute(spark: Any, tmp_path: Path) -> None:
    """What kerchunk holds may be given as it is; ``base`` says where its places begin."""
    data_file(tmp_path)
    repo = new_repository(tmp_path / "repo", tmp_path)

    with pytest.raises(InvalidInputError, match="base="):
        ingest.references(spark, refs_of("data.bin"), repo)
    ingest.references(spark, refs_of("data.bin"), repo, base=f"file://{tmp_path}")

    check(repo, refs_of(f"file://{tmp_path}/data.bin"))


def parquet_folder(folder: Path, url: str, record_size: int) -> Path:
    """Write references as kerchunk does: a file for so many chunks, whose rows are numbered by place."""
    refs = refs_of(url)
    metadata = {
        key: json.loads(value) if isinstance(value, str) else value
        for key, value in refs.items()
        if "/." in key or key.startswith(".")
    }
    folder.mkdir()
    document = {"metadata": metadata, "record_size": record_size}
    (folder / ".zmetadata").write_text(json.dumps(document))
    for field, counts in (("t", (2, 2)), ("y", (1,)), ("sub/flag", (1,)), ("sub/whole", (1,))):
        (folder / field).mkdir(parents=True)
        rows = []
        for index in np.ndindex(*counts):
            value = refs.get(f"{field}/{'.'.join(map(str, index))}")
            if isinstance(value, str):
                text = value.encode()
                raw = base64.b64decode(text[7:]) if text.startswith(b"base64:") else text
                rows.append((None, 0, 0, raw))
            else:
                rows.append((*[*(value or [None]), 0, 0][:3], None))
        for record in range(0, len(rows), record_size):
            paths, offset, size, data = zip(*rows[record : record + record_size], strict=True)
            if field == "t" and not any(paths):
                continue
            columns = {"path": pa.array(paths, pa.string()), "offset": offset, "size": size}
            columns["path"] = columns["path"].dictionary_encode()
            if any(data):
                columns["raw"] = pa.array(data, pa.binary())
            pq.write_table(pa.table(columns), folder / field / f"refs.{record // record_size}.parq")
    return folder


@pytest.mark.parametrize("record_size", [1, 3])
def test_kerchunk_parquet(spark: Any, tmp_path: Path, record_size: int) -> None:
    """Rows are chunks by their places, over several files, some of which are not there."""
    url = f"file://{data_file(tmp_path)}"
    folder = parquet_folder(tmp_path / "refs.parq", url, record_size)
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.references(spark, folder, repo)

    assert result.chunk_count == 6
    check(repo, refs_of(url))


def test_reference_files_that_cannot_be_read_are_named(spark: Any, tmp_path: Path) -> None:
    """Text that is no JSON, generated references, a Zarr store; by option the rest is committed."""
    url = f"file://{data_file(tmp_path)}"
    good, broken, generated = (tmp_path / f"{name}.json" for name in ("good", "broken", "gen"))
    good.write_text(json.dumps(refs_of(url)))
    broken.write_text("{")
    generated.write_text(json.dumps({"version": 1, "refs": {}, "gen": [{"key": "a"}]}))
    repo = new_repository(tmp_path / "repo", tmp_path)
    sources = [broken, good, generated, tmp_path / "none.json"]

    with pytest.raises(IcechunkArrowError, match=r"broken\.json is not JSON"):
        ingest.references(spark, [good, broken], repo)
    assert len(list(repo.ancestry(branch="main"))) == 1
    result = ingest.references(spark, sources, repo, failures="report")

    assert [Path(each.source).name for each in result.failures] == [
        "broken.json",
        "gen.json",
        "none.json",
    ]
    assert result.file_count == 1
    check(repo, refs_of(url), "good")


@pytest.mark.parametrize("virtual", [True, False])
def test_a_frame_of_references(spark: Any, tmp_path: Path, virtual: bool) -> None:
    """A table of ranges, and of bytes where there is no range, into arrays that are made."""
    url = f"file://{data_file(tmp_path)}"
    rows = [
        ("/a/t", [0, 0], url, 4, 24, None),
        ("/a/t", [0, 1], url, 28, 24, None),
        ("/a/t", [1, 0], None, None, None, VALUES[2:, :3].tobytes()),
        ("/a/t", [1, 1], url, 76, 24, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "path string, index array<int>, location string, offset long, length long, data binary",
    )
    spec = {"shape": (4, 6), "chunks": (2, 3), "dtype": "<f4", "compressors": None}
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.references(spark, frame, repo, arrays={"/a/t": spec}, virtual=virtual)

    assert result.arrays == ("/a/t",)
    assert result.chunk_count == 4
    found = opened(repo, "a/t")
    np.testing.assert_array_equal(found[...], VALUES)


def test_rows_that_would_be_lost_or_changed_are_refused(spark: Any, tmp_path: Path) -> None:
    """A row without a place, one with two, a chunk here and there, and numbers that would be cut."""
    url = f"file://{data_file(tmp_path)}"
    spec = {"/t": {"shape": (4, 6), "chunks": (2, 3), "dtype": "<f4", "compressors": None}}
    good, data = ("/t", [0, 0], url, 4, 24, None), VALUES[:2, :3].tobytes()
    typed = "path string, index array<int>, location string, offset long, length long, data binary"
    repo = new_repository(tmp_path / "repo", tmp_path)
    before = repo.lookup_branch("main")
    for odd, fault in (
        (("/t", [0, 1], None, None, None, None), "1 rows have neither a location nor data"),
        (("/t", [0, 1], url, 4, 24, data), "or both"),
        (("/t", [0, 0], None, None, None, data), r"the chunk \[0, 0\] of '/t' comes twice"),
    ):
        for virtual in (True, False):
            frame = spark.createDataFrame([good, odd], typed)
            with pytest.raises(InvalidInputError, match=fault):
                ingest.references(spark, frame, repo, arrays=spec, virtual=virtual)
    for column, kind, value in (
        ("index", "array<double>", [0.5, 1.0]),
        ("offset", "double", 4.5),
        ("length", "decimal(5,1)", Decimal("24.5")),
        ("last_modified", "string", "2024-01-01"),
        ("etag", "long", 7),
    ):
        plain = spark.createDataFrame([good], typed)
        one = spark.createDataFrame([(value,)], f"x {kind}")
        frame = plain.drop(column).crossJoin(one.withColumnRenamed("x", column))
        with pytest.raises(InvalidInputError, match=f"the column '{column}'"):
            ingest.references(spark, frame, repo, arrays=spec)
    assert repo.lookup_branch("main") == before


def test_grib_messages_by_their_index(spark: Any, tmp_path: Path) -> None:
    """An index of ``wgrib2`` is a table; what is which chunk is said in SQL."""
    rng = np.random.default_rng(1)
    fields = rng.random((2, 2, 3, 4)).astype("<f4")  # hours, levels, then the grid
    for hour in range(2):
        path = tmp_path / f"gfs.f00{hour}"
        path.write_bytes(b"".join(fields[hour, level].tobytes() for level in range(2)))
        lines = [
            f"{level + 1}:{level * 48}:d=2024010106:TMP:{850 - 350 * level} mb:{hour} hour fcst:"
            for level in range(2)
        ]
        Path(f"{path}.idx").write_text("\n".join(lines) + "\n")
    messages = ingest.grib_index(spark, [tmp_path / "gfs.f000.idx", tmp_path / "gfs.f001.idx"])

    first = messages.orderBy("location", "offset").toArrow().to_pylist()
    messages.createOrReplaceTempView("messages")
    frame = spark.sql("""
        SELECT '/TMP' AS path,
               array(int(split_part(forecast, ' ', 1)), if(level = '850 mb', 0, 1), 0, 0) AS index,
               location, offset, length, last_modified
        FROM messages WHERE variable = 'TMP'""")
    spec = {"shape": (2, 2, 3, 4), "chunks": (1, 1, 3, 4), "dtype": "<f4", "compressors": None}
    repo = new_repository(tmp_path / "repo", tmp_path)
    ingest.references(spark, frame, repo, arrays={"/TMP": spec})

    assert [row["length"] for row in first] == [48] * 4
    assert [row["level"] for row in first[:2]] == ["850 mb", "500 mb"]
    assert first[0]["reference_time"].isoformat() == "2024-01-01T06:00:00+00:00"
    found = opened(repo, "TMP")
    np.testing.assert_array_equal(found[...], fields)


def test_messages_of_several_fields_and_bad_indexes(spark: Any, tmp_path: Path) -> None:
    """Fields of one message have one range; a line that is none, and an index of another file, are named."""
    (tmp_path / "a.grib").write_bytes(bytes(100))
    index = tmp_path / "a.grib.idx"
    index.write_text(
        "1:0:d=2024010106:TMP:surface:anl:\n"
        "2.1:40:d=2024010106:UGRD:surface:anl:ENS=+1\n"
        "2.2:40:d=2024010106:VGRD:surface:anl:ENS=+1:x\n"
    )
    found = ingest.grib_index(spark, index).orderBy("message", "field").collect()
    assert [(row.message, row.field, row.offset, row.length) for row in found] == [
        (1, 1, 0, 40),
        (2, 1, 40, 60),
        (2, 2, 40, 60),
    ]
    assert found[2].rest == "ENS=+1:x"
    for text, fault in (("1:0:TMP", "line 1"), ("1:100:d=2024010106:T:s:anl:", "100 bytes")):
        index.write_text(text)
        with pytest.raises(Exception, match=fault):
            ingest.grib_index(spark, index).collect()


def manifest_array(paths: Any, metadata: Any) -> Any:
    """Make what has what a ``ManifestArray`` of VirtualiZarr 2 has."""
    shape = paths.shape
    offsets = np.array([[4, 28], [52, 76]], "uint64").reshape(shape)
    manifest = SimpleNamespace(
        _paths=paths, _offsets=offsets, _lengths=np.full(shape, 24, "uint64")
    )
    return SimpleNamespace(manifest=manifest, metadata=metadata)


def test_manifests_in_memory(spark: Any, tmp_path: Path) -> None:
    """Columns of paths, offsets and lengths in the shape of the grid; an empty path is a missing chunk."""
    url = f"file://{data_file(tmp_path)}"
    paths = np.array([[url, url], ["", url]], np.dtypes.StringDType())
    store = zarr.storage.MemoryStore()
    made = zarr.create_array(
        store, shape=(4, 6), chunks=(2, 3), dtype="<f4", compressors=None, fill_value=-1
    )
    repo = new_repository(tmp_path / "repo", tmp_path)

    result = ingest.references(
        spark, {"t": manifest_array(paths, made.metadata)}, repo, group="sub"
    )

    assert result.chunk_count == 3
    found = opened(repo, "sub/t")
    wanted = VALUES.copy()
    wanted[2:, :3] = -1
    np.testing.assert_array_equal(found[...], wanted)
    paths[1, 0] = "__inlined__"
    with pytest.raises(InvalidInputError, match="some chunks of '/t' stand in its manifest itself"):
        ingest.references(spark, {"t": manifest_array(paths, made.metadata)}, repo)
