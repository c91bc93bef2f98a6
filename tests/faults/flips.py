"""Flipping single bits of a repository's files, and looking at it in every way there is.

Owns a repository that has every kind of file and of chunk, and what is asked of it in each way. An answer is the
one from before, or an error of ours; nothing else is right.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from zarr import codecs

import icechunk_arrow.duckdb
import icechunk_arrow.spark
from icechunk_arrow import IcechunkArrowError, Repository, RepositoryConfig
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats.layout import FileKind, key_of
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from icechunk_arrow import Session

__all__ = [
    "KINDS",
    "LOOKS",
    "Sample",
    "behind_pages",
    "make_sample",
    "pages",
    "sees",
    "storm",
    "through_spark",
]

CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=64,
    inline_attributes_threshold_bytes=64,
    packed_chunk_threshold_bytes=8 << 10,
)
"""Small thresholds, so that few bytes take every path; checks are those of the defaults."""
REFERENCES = 40_000
"""Three row groups, and more bytes than are read of a file's end at first."""
_EACH: dict[str, dict[str, Any]] = {
    "packed": {"chunks": (100,)},
    "own": {"chunks": (2000,)},
    "raw": {"chunks": (100,), "compressors": None},
    "gzip": {"chunks": (100,), "compressors": codecs.GzipCodec()},
    "blosc": {"chunks": (100,), "compressors": codecs.BloscCodec()},
    "summed": {"chunks": (100,), "compressors": codecs.Crc32cCodec()},
    "small_shard": {"shards": (2000,), "chunks": (250,)},
    "inline": {"chunks": (4,), "compressors": None},
}
_SHARD = 200_000
SMALL_SHARD, OWN, PACKED = "small_shard", "own", "packed"


@dataclass(frozen=True)
class Sample:
    """A sound repository, which files are of which kind, and what is seen of it."""

    root: Path
    keys: dict[str, str]
    seen: dict[tuple[str, str], Any] = field(default_factory=dict)

    def expected(self, way: str, kind: str) -> Any:
        """What a way to look at it gives for a kind of file."""
        if (way, kind) not in self.seen:
            self.seen[way, kind] = LOOKS[way](self, kind)
        return self.seen[way, kind]


def make_sample(root: Path, catalog: str = "branches") -> Sample:
    """Make a repository that has every kind of file and of chunk."""
    repo = Repository.create(root, config=CONFIG, storage_settings=UNSYNCED, catalog=catalog)
    values = np.random.default_rng(7).normal(size=_SHARD).cumsum()
    session = repo.writable_session("main")
    group = zarr.create_group(session.store, attributes={"title": "sample", "note": "x" * 300})
    for name, how in _EACH.items():
        count = 12 if name == "inline" else 4000
        array = group.create_array(name, shape=(count,), dtype="f8", fill_value=-1, **how)
        array[...] = values[:count]
    shard = group.create_array(
        "shard", shape=(_SHARD,), dtype="f8", chunks=(4000,), shards=(_SHARD,), compressors=None
    )
    shard[...] = values
    group.create_array("far", shape=(REFERENCES,), chunks=(1,), dtype="u1", compressors=None)
    first = session.commit("arrays")
    session = repo.writable_session("main")
    lengths = np.random.default_rng(8).integers(50, 90, REFERENCES)
    session.set_references(
        "/far",
        pa.table(
            {
                "index_0": np.arange(REFERENCES),
                "location": [f"s3://bucket/{n // 5000}" for n in range(REFERENCES)],
                "offset": np.cumsum(lengths),
                "length": lengths,
            }
        ),
    )
    second = session.commit("references")
    repo.create_tag("v1", first)
    return Sample(root, _keys_of(repo, first, second, catalog))


def _keys_of(repo: Repository, first: str, second: str, catalog: str) -> dict[str, str]:
    session = repo.readonly_session("main")

    def node(path: str) -> Any:
        return session.find_node(path)

    def chunk_file(path: str) -> str:
        found = session.find_chunk(session.get_array(path), (0,))
        assert found is not None
        assert not isinstance(found, bytes)
        return f"c/{found.file}"

    (near,), (far,) = (list(node(path).inventories) for path in ("/packed", "/far"))
    keys = {
        "structure": key_of(FileKind.STRUCTURE, second),
        "manifest": key_of(FileKind.MANIFEST, near.manifest),
        "large manifest": key_of(FileKind.MANIFEST, far.manifest),
        "attributes": key_of(FileKind.ATTRIBUTES, node("/").attributes_ref.identifier),
        "log": key_of(FileKind.TRANSACTION, second),
        "packed chunks": chunk_file("/packed"),
        "own chunk": chunk_file("/own"),
        "small shard": chunk_file("/small_shard"),
        "shard": chunk_file("/shard"),
        "config": "config.yaml",
    }
    if catalog == "state":
        return {"state": "state.json"}
    return keys | {
        "branch": f"refs/branch.main/{sequence_name(2)}.json",
        "tag": "refs/tag.v1/ref.json",
    }


# -- ways to look

_TABLES = {
    "structure": ("nodes", "arrays", "manifests", "snapshots"),
    "manifest": ("chunks", "arrays", "files"),
    "large manifest": ("chunks", "arrays", "files"),
    "attributes": ("nodes",),
    "log": ("operations", "snapshots"),
    "config": ("nodes", "arrays"),
    "branch": ("refs", "snapshots"),
    "tag": ("refs", "snapshots"),
    "state": ("refs", "snapshots"),
}
"""What can show a damage of each kind; chunk files are opened by none."""
KINDS = (*_TABLES, "packed chunks", "own chunk", "small shard", "shard")


def _arrays(session: Session, kind: str) -> Any:
    """Values and attributes; of a shard also parts, and of references some, found one by one."""
    store = session.store
    group = zarr.open_group(store, mode="r")
    found: list[Any] = [group.attrs.asdict()]
    if kind == "large manifest":
        far = session.get_array("/far")
        found += [session.find_chunk(far, (n,)) for n in (0, 1, 16_383, 16_384, REFERENCES - 1)]
        found += [batch.to_pydict() for batch in session.chunk_references("/far")]
    elif kind == "shard":
        shard = group["shard"]
        assert isinstance(shard, zarr.Array)
        starts = random.Random(len(found)).choices(range(_SHARD - 900), k=12)
        found += [np.asarray(shard[start : start + 900]).tobytes() for start in starts]
        found.append(np.asarray(shard[...]).tobytes())
    else:
        names = {"own chunk": [OWN], "small shard": [SMALL_SHARD]}.get(kind, list(_EACH))
        for name in names:
            array = group[name]
            assert isinstance(array, zarr.Array)
            found += [np.asarray(array[...]).tobytes(), np.asarray(array[210:230]).tobytes()]
    store.close()
    return found


def through_zarr(sample: Sample, kind: str) -> Any:
    """Open it anew, and read arrays."""
    repo = Repository.open(sample.root)
    return _arrays(
        repo.readonly_session(tag="v1") if kind == "tag" else repo.readonly_session("main"), kind
    )


def through_tables(sample: Sample, kind: str) -> Any:
    """Open it anew, and make its tables."""
    repo = Repository.open(sample.root)
    return {name: _sorted(repo.tables(name).to_pylist()) for name in _TABLES[kind]}


def through_duckdb(sample: Sample, kind: str) -> Any:
    """Attach it anew, and ask its views; an error must name the file, whoever raises it."""
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, sample.root, "r")
        found: dict[str, Any] = {
            name: _sorted(con.sql(f"FROM r.{name}").fetchall()) for name in _TABLES[kind]
        }
        if "manifest" in kind:
            counted = "SELECT path, count(*), sum(length), min(coord) FROM r.chunks GROUP BY path"
            found["counted"] = _sorted(con.sql(counted).fetchall())
            box = "SELECT location, \"offset\" FROM r.chunks_in('/far', [20000], [20010])"
            found["box"] = _sorted(con.sql(box).fetchall())
    return found


def through_spark(spark: Any, *, attached: bool = False) -> Callable[[Sample, str], Any]:
    """Attach it anew to a session, or ask views that are there, of chunks alone."""

    def look(sample: Sample, kind: str) -> Any:
        if not attached:
            icechunk_arrow.spark.attach(spark, sample.root, "flips")
        try:
            names = _TABLES[kind] if not attached else ("chunks",)
            columns = "path, kind, location, `offset`, length, hex(coord)"
            queries = {name: f"SELECT * FROM flips_{name}" for name in names if name != "chunks"}
            if "chunks" in names:
                queries["chunks"] = f"SELECT {columns} FROM flips_chunks"
            return {name: _sorted(spark.sql(each).collect()) for name, each in queries.items()}
        finally:
            if not attached:
                icechunk_arrow.spark.detach(spark, "flips")

    return look


def _sorted(rows: Sequence[Any]) -> list[str]:
    return sorted(map(repr, rows))


LOOKS: dict[str, Callable[[Sample, str], Any]] = {
    "zarr": through_zarr,
    "tables": through_tables,
    "duckdb": through_duckdb,
}


def sees(way: str, kind: str) -> bool:
    """Whether a way to look opens files of a kind: no table opens a chunk file, no array a log."""
    return kind in _TABLES if way != "zarr" else kind != "log"


# -- flips


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Have a file with one bit flipped."""
    data = path.read_bytes()
    altered = bytearray(data)
    altered[bit >> 3] ^= 1 << (bit & 7)
    path.write_bytes(altered)
    try:
        yield
    finally:
        path.write_bytes(data)


def everywhere(path: Path) -> tuple[int, int]:
    """All of a file."""
    return 0, path.stat().st_size


def pages(path: Path) -> tuple[int, int]:
    """The pages of a Parquet file, with their headers."""
    found = pq.read_metadata(path)
    groups = map(found.row_group, range(found.num_row_groups))
    columns = [group.column(place) for group in groups for place in range(found.num_columns)]
    starts = [each.dictionary_page_offset or each.data_page_offset for each in columns]
    sizes = [each.total_compressed_size for each in columns]
    return min(starts), max(map(int.__add__, starts, sizes))


def behind_pages(path: Path) -> tuple[int, int]:
    """What stands behind them: page index, seal, footer."""
    return pages(path)[1], path.stat().st_size


def storm(
    sample: Sample,
    kind: str,
    way: str,
    count: int,
    seed: int,
    look: Callable[[Sample, str], Any] | None = None,
    where: Callable[[Path], tuple[int, int]] = everywhere,
) -> dict[str, int]:
    """Flip random bits, look, and count what came of it; ``where`` says between which bytes."""
    look = look or LOOKS[way]
    expected = sample.seen.setdefault((way, kind), look(sample, kind))
    key = sample.keys[kind]
    path = sample.root / key
    first, stop = where(path)
    draw = random.Random(f"{kind} {way} {seed}")
    counts = {"same": 0, "error": 0}
    for _ in range(count):
        bit = draw.randrange(8 * first, 8 * stop)
        with flipped(path, bit):
            verdict = _judged(lambda: look(sample, kind), expected, key, way)
        assert verdict in counts, (
            f"bit {bit} of {key} ({kind}) through {way}, seed {seed}: {verdict}"
        )
        counts[verdict] += 1
    return counts


def _judged(look: Callable[[], Any], expected: Any, key: str, way: str) -> str:
    try:
        found = look()
    except IcechunkArrowError:
        return "error"
    except Exception as error:
        if isinstance(error, ExceptionGroup) and error.split(IcechunkArrowError)[1] is None:
            return "error"  # as newer versions of zarr hand ours on
        # an engine passes on texts alone: they name the file
        if way.partition(",")[0] in {"duckdb", "spark"} and key.rpartition("/")[2].partition(".")[
            0
        ] in str(error):
            return "error"
        return f"a strange {type(error).__module__}.{type(error).__name__}: {error!s:.500}"
    return "same" if found == expected else f"another answer: {found!r:.500}"
