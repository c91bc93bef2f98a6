"""A source that is rewritten in place after it was taken is an error that names it, by whatever door it came."""

from __future__ import annotations

import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import zarr

from icechunk_arrow import ingest
from icechunk_arrow.errors import (
    IcechunkArrowError,
    InvalidInputError,
    ObjectNotFoundError,
    SourceChangedError,
    StorageError,
)
from icechunk_arrow.ingest.executor import Threads
from icechunk_arrow.ingest.source import ask_files
from icechunk_arrow.storage.source_files import SourceFiles
from tests.ingest.files import new_repository, opened, weather_file
from tests.ingest.test_references import (
    VALUES,
    data_file,
    manifest_array,
    parquet_folder,
    refs_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow import Repository

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]
SPEC: dict[str, Any] = {"shape": (4, 6), "chunks": (2, 3), "dtype": "<f4", "compressors": None}


def as_arrays(url: str) -> dict[str, Any]:
    """Give what VirtualiZarr has in memory."""
    paths = np.array([[url, url], ["", url]], np.dtypes.StringDType())
    made = zarr.create_array(zarr.storage.MemoryStore(), fill_value=-1, **SPEC)
    return {"t": manifest_array(paths, made.metadata)}


def by_frame(spark: Any, url: str, repo: Repository, **words: Any) -> None:
    """Take a frame that says nothing of the file."""
    rows = [("/t", [0, 0], url, 4, 24), ("/t", [1, 1], url, 76, 24)]
    frame = spark.createDataFrame(
        rows, "path string, index array<int>, location string, offset long, length long"
    )
    ingest.references(spark, frame, repo, arrays={"/t": SPEC}, **words)


def by_json(spark: Any, url: str, repo: Repository, **words: Any) -> None:
    """Take a kerchunk file."""
    path = Path(url.removeprefix("file://") + ".json")
    path.write_text(json.dumps(refs_of(url)))
    ingest.references(spark, path, repo, **words)


def by_content(spark: Any, url: str, repo: Repository, **words: Any) -> None:
    """Take what a kerchunk file holds."""
    ingest.references(spark, refs_of(url), repo, **words)


def by_parquet(spark: Any, url: str, repo: Repository, **words: Any) -> None:
    """Take a folder of kerchunk's Parquet files."""
    folder = Path(url.removeprefix("file://") + ".parq")
    shutil.rmtree(folder, ignore_errors=True)
    ingest.references(spark, parquet_folder(folder, url, 3), repo, **words)


def by_manifests(spark: Any, url: str, repo: Repository, **words: Any) -> None:
    """Take what VirtualiZarr has in memory."""
    ingest.references(spark, as_arrays(url), repo, **words)


DOORS = [by_frame, by_json, by_content, by_parquet, by_manifests]


def rewrite_in_place(path: Path) -> None:
    """Write other bytes of the same number, within the same second."""
    before = path.stat()
    path.write_bytes(bytes(255 - each for each in path.read_bytes()))
    second = before.st_mtime_ns // 10**9 * 10**9
    within = (before.st_mtime_ns - second + 1000) % 10**9
    os.utime(path, ns=(before.st_atime_ns, second + within))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns // 10**9 == before.st_mtime_ns // 10**9


@pytest.mark.parametrize("door", DOORS)
def test_references_notice_a_source_that_was_rewritten(
    spark: Any, tmp_path: Path, door: Callable[..., None]
) -> None:
    """Same name, same size, same second, other bytes: an error that names the file, and never other values."""
    folder = tmp_path / "a folder, 100% ?"
    folder.mkdir()
    path = data_file(folder)
    repo = new_repository(tmp_path / "repo", tmp_path)
    door(spark, f"file://{path}", repo)
    array = opened(repo, "t")
    np.testing.assert_array_equal(array[:2, :3], VALUES[:2, :3])

    rewrite_in_place(path)

    with pytest.raises(SourceChangedError, match=r"data\.bin"):
        _ = opened(repo, "t")[:2, :3]


@pytest.mark.parametrize("door", DOORS)
def test_files_that_cannot_be_asked_are_named(
    spark: Any, tmp_path: Path, door: Callable[..., None]
) -> None:
    """A file that is not there is an error with the way out, nothing is committed; by option it is no matter."""
    repo = new_repository(tmp_path / "repo", tmp_path)
    before = repo.lookup_branch("main")
    url = f"file://{tmp_path}/none.bin"

    with pytest.raises(IcechunkArrowError, match=r"none\.bin") as caught:
        door(spark, url, repo)
    assert repo.lookup_branch("main") == before
    if door in {by_json, by_content, by_parquet}:
        return  # one of their references is a whole file, whose length must be known
    assert "detect_changes=False" in caught.value.message
    door(spark, url, repo, detect_changes=False)
    assert all(row["etag"] is None for row in repo.tables("chunks").to_pylist())


def test_netcdf_and_zarr_notice_a_source_that_was_rewritten(spark: Any, tmp_path: Path) -> None:
    """Files of HDF5 and the chunks of Zarr stores carry what they were."""
    path = weather_file(tmp_path / "w.nc")
    store = tmp_path / "a b.zarr"
    for version in (2, 3):
        made = zarr.create_array(
            store / f"v{version}", shape=(4,), chunks=(2,), dtype="i4", zarr_format=version
        )
        made[:] = [1, 2, 3, 4]
    zarr.create_group(store, zarr_format=2)
    repo = new_repository(tmp_path / "repo", tmp_path)
    ingest.netcdf(spark, path, repo, group="w")
    for version in (2, 3):
        ingest.zarr(spark, store / f"v{version}", repo, group=f"v{version}", virtual=True)
        assert opened(repo, f"v{version}")[:].tolist() == [1, 2, 3, 4]
    rows = [row for row in repo.tables("chunks").to_pylist() if row["location"] is not None]
    assert all(row["etag"] is not None for row in rows)
    assert all(row["last_modified"] is None for row in rows)

    chunks = [store / "v2/0", store / "v3/c/0"]
    for each in (path, *chunks):
        rewrite_in_place(each)

    with pytest.raises(SourceChangedError, match=r"w\.nc"):
        _ = opened(repo, "w/t2m")[...]
    for version, name in ((2, "v2/0"), (3, "v3/c/0")):
        with pytest.raises(SourceChangedError, match=name):
            _ = opened(repo, f"v{version}")[...]
    ingest.netcdf(spark, path_again(tmp_path), repo, group="n", detect_changes=False)
    kinds = [row for row in repo.tables("chunks").to_pylist() if row["path"].startswith("/n/")]
    assert all(row["etag"] is None for row in kinds)


def path_again(folder: Path) -> Path:
    """Make another file."""
    return weather_file(folder / "again.nc")


def test_rows_that_say_what_their_file_was_keep_it(spark: Any, tmp_path: Path) -> None:
    """The person's own ETags and times stay, also those of a file that has changed since."""
    path = data_file(tmp_path)
    (tmp_path / "other.bin").write_bytes(path.read_bytes())
    rows = [
        ("/t", [0, 0], f"file://{path}", 4, 24, "own", None),
        ("/t", [0, 1], f"file://{path}", 28, 24, None, "2001-02-03 04:05:06"),
        ("/t", [1, 0], f"file://{path}", 52, 24, None, None),
        ("/t", [1, 1], f"file://{tmp_path}/other.bin", 76, 24, None, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "path string, index array<int>, location string, offset long, length long, etag string, t string",
    )
    repo = new_repository(tmp_path / "repo", tmp_path)
    frame = frame.selectExpr("*", "CAST(t AS TIMESTAMP_NTZ) AS last_modified").drop("t")

    ingest.references(spark, frame, repo, arrays={"/t": SPEC})

    found = {tuple(row["coord"]): row for row in repo.tables("chunks").to_pylist()}
    stat = path.stat()
    assert found[0, 0]["etag"] == "own"
    assert found[0, 1]["etag"] is None
    assert found[0, 1]["last_modified"].isoformat() == "2001-02-03T04:05:06+00:00"
    assert found[1, 0]["etag"] == f"{stat.st_mtime_ns:x}-{stat.st_size:x}"
    assert found[1, 1]["etag"] is not None


def test_names_that_virtualizarr_percent_encodes(spark: Any, tmp_path: Path) -> None:
    """Its paths of local files are encoded, and locations are not: the file that is there is meant."""
    folder = tmp_path / "a b"
    folder.mkdir()
    path = data_file(folder)
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.references(spark, as_arrays(path.as_uri()), repo)

    assert {row["location"] for row in repo.tables("chunks").to_pylist()} == {f"file://{path}"}
    np.testing.assert_array_equal(opened(repo, "t")[:2], VALUES[:2])


def test_many_files_are_asked_by_executors(spark: Any, tmp_path: Path) -> None:
    """Each distinct file is asked once; of many that are not there a few are named, and all are counted."""
    path = data_file(tmp_path)
    count = 300
    urls = []
    for number in range(count):
        name = tmp_path / f"{number}.bin"
        os.link(path, name)
        urls.append(f"file://{name}")
    paths = np.array(urls, np.dtypes.StringDType())
    spec: dict[str, Any] = SPEC | {"shape": (count,), "chunks": (1,)}
    made = zarr.create_array(zarr.storage.MemoryStore(), fill_value=-1, **spec)
    array = manifest_array(np.array([[urls[0]] * 2] * 2, np.dtypes.StringDType()), made.metadata)
    array.manifest._paths = paths
    array.manifest._offsets = np.full(count, 4, "uint64")
    array.manifest._lengths = np.full(count, 4, "uint64")
    repo = new_repository(tmp_path / "repo", tmp_path)

    ingest.references(spark, {"t": array}, repo)
    assert (opened(repo, "t")[:] == VALUES[0, 0]).all()
    for number in range(5):
        (tmp_path / f"{number}.bin").unlink()
    with pytest.raises(InvalidInputError, match="5 of 300 files") as caught:
        ingest.references(spark, {"t": array}, repo, group="again")
    assert "and 2 more" in caught.value.message


def test_what_places_say_of_a_file(tmp_path: Path) -> None:
    """Names stand as they are: percent signs, question marks, hashes; a folder and a pipe are no files."""
    path = tmp_path / "a%20b?c#d ü.bin"
    path.write_bytes(b"abc")
    files = SourceFiles({})
    found = files.facts(f"file://{path}")
    assert (found.size_bytes, found.last_modified) == (3, None)
    assert found.etag == f"{path.stat().st_mtime_ns:x}-3"
    assert files.read(f"file://{path}") == b"abc"
    listing = files.below(f"file://{tmp_path}")
    assert (listing.names, listing.etags) == ([path.name], [found.etag])
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ""):
        with pytest.raises(InvalidInputError, match="where a file was expected"):
            files.facts(f"file://{tmp_path}/{name}")


class Files(SimpleHTTPRequestHandler):
    """Files of a folder, with the headers that a test wants, or a refusal."""

    extra: ClassVar[dict[str, str]] = {}
    status = 200
    seen: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.seen.append(self.path)
        if self.status != 200:
            self.send_error(self.status)
            return
        super().do_HEAD()

    def do_GET(self) -> None:
        if self.status != 200:
            self.send_error(self.status)
            return
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Last-Modified":
            for name, said in self.extra.items():
                super().send_header(name, said)
            return
        super().send_header(keyword, value)

    def log_message(self, *_: Any) -> None:
        pass


def test_what_web_servers_say_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ETags without quotes, weak ones as such; else the time; URLs as they stand; a refusal is no absence."""
    (tmp_path / "a b.bin").write_bytes(b"abc")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/a%20b.bin?sig=a%2Fb"
    files = SourceFiles({})
    stamp = "Tue, 02 Jan 2024 03:04:05 GMT"
    try:
        for said, etag, moment in (
            ({"ETag": '"x-1"'}, "x-1", None),
            ({"ETag": 'W/"x-1"', "Last-Modified": stamp}, "W/x-1", None),
            ({"Last-Modified": stamp}, None, 1_704_164_645_000_000),
            ({"Last-Modified": "no date"}, None, None),
            ({}, None, None),
        ):
            monkeypatch.setattr(Files, "extra", said)
            found = files.facts(url)
            assert (found.size_bytes, found.etag, found.last_modified) == (3, etag, moment)
            assert found.can_be_compared == (etag is not None or moment is not None)
        assert set(Files.seen) == {"/a%20b.bin?sig=a%2Fb"}
        with pytest.raises(InvalidInputError, match="neither an ETag nor a time"):
            ask_files(Threads(), files, [url])
        assert isinstance(files.facts_of_all([url + "x", url])[1].size_bytes, int)  # type: ignore[union-attr]
        for status, kind in ((404, ObjectNotFoundError), (403, StorageError), (500, StorageError)):
            monkeypatch.setattr(Files, "status", status)
            with pytest.raises(kind, match="127"):
                files.facts(url)
    finally:
        server.shutdown()
        server.server_close()
