"""Readers over a network, one for each client of the package: each looks at a snapshot, and says what it saw.

Owns what a look is, in every way there is to look, and which errors are right answers of a bad network. What one
saw is compared with what the same way shows of the same snapshot where the network is good.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import numpy as np
import zarr
from click.testing import CliRunner

import icechunk_arrow.duckdb
from icechunk_arrow import IcechunkArrowError, RefNotFoundError, Repository
from icechunk_arrow.cli.app import app
from icechunk_arrow.errors import FormatError, NotAuthorizedError, StorageError
from icechunk_arrow.ingest.concatenation import Choices
from icechunk_arrow.ingest.executor import Threads
from icechunk_arrow.ingest.hdf5 import Hdf5File
from icechunk_arrow.ingest.netcdf import FileSet
from icechunk_arrow.ingest.options import IngestOptions
from icechunk_arrow.ingest.source import ScanOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

__all__ = [
    "ENDURED",
    "FOREIGN",
    "LOOKS",
    "Look",
    "Reader",
    "as_ours",
    "ingested",
    "names_a_thing",
    "register_foreign",
]

ENDURED = (StorageError, FormatError, NotAuthorizedError)
"""How an operation may end over a bad network: it failed, a file is damaged, or it was led where nobody may go."""
FOREIGN = "foreign"
_NAMED = re.compile(
    r"\b(refs|[sitac])/|state\.json|config\.yaml|\b(https?|s3|foreign)://|a commit of this"
)
_OURS = re.compile(r"\b(CorruptFileError|StorageError|OversizedFileError|ObjectNotFoundError)\b")


@functools.cache
def register_foreign() -> None:
    """Let fsspec know S3 under a name of which this package knows nothing: a file system like any other."""
    from s3fs import S3FileSystem

    class Foreign(S3FileSystem):  # type: ignore[misc]
        protocol = (FOREIGN,)

    fsspec.register_implementation(FOREIGN, Foreign)


# -- ways to look


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def values(repo: Repository, snapshot_id: str) -> Any:
    """Documents and values of all arrays, through zarr."""
    session = repo.readonly_session(snapshot_id=snapshot_id)
    found = {}
    for path in session.array_paths():
        array = zarr.open_array(session.store, path=path[1:], mode="r")
        data = np.asarray(array[...])
        found[path] = [
            str(data.dtype),
            list(data.shape),
            _digest(data.tobytes()),
            dict(array.attrs),
        ]
    return found


def tables(repo: Repository, snapshot_id: str) -> Any:
    """Rows of the tables, as Arrow."""
    found = {}
    for name in ("nodes", "chunks", "manifests", "operations"):
        rows = repo.tables(name, snapshot_id=snapshot_id).to_pylist()
        for row in rows:
            if row.get("location"):  # it begins with where the repository was opened
                row["location"] = row["location"].rpartition("/")[2]
        shown = sorted(repr(sorted(row.items())) for row in rows)
        found[name] = [len(rows), _digest("\n".join(shown).encode())]
    return found


def queried(repo: Repository, snapshot_id: str) -> Any:
    """Answers of DuckDB, which reads ranges of manifests through a file system of ours."""
    with duckdb.connect() as con:
        icechunk_arrow.duckdb.attach(con, repo, snapshot_id=snapshot_id)
        return con.execute(
            "SELECT path, count(*), sum(length), "
            "bit_xor(hash(coord, kind, split_part(location, '/', -1), \"offset\", crc32c)) "
            "FROM icechunk.chunks GROUP BY path ORDER BY path"
        ).fetchall()


LOOKS: dict[str, Callable[[Repository, str], Any]] = {
    "values": values,
    "tables": tables,
    "queried": queried,
}


class CommandError(IcechunkArrowError):
    """A command said what was the matter, and ended with 1."""


def command(*arguments: str) -> Any:
    """Run a command, and give the rows that it prints."""
    done = CliRunner().invoke(app, [*arguments, "--format", "json"], prog_name="icechunk-arrow")
    if done.exit_code == 1 and done.stderr.startswith("icechunk-arrow: ") and not done.stdout:
        if "there is no snapshot" in done.stderr:
            raise AssertionError(done.stderr)
        raise CommandError(done.stderr)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def listed(url: str, options: Mapping[str, Any], snapshot_id: str) -> Any:
    """What the command says of nodes."""
    given = [f"--storage-option={name}={json.dumps(value)}" for name, value in options.items()]
    return command("ls", url, "--recursive", "--snapshot", snapshot_id, *given)


def ingested(urls: list[str], options: Mapping[str, Any]) -> Any:
    """Copy NetCDF files into a repository in memory, and give its values."""
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory")
    repo = Repository.create(f"memory://ingested-{id(urls)}-{next(_numbers)}")
    chosen = IngestOptions(source_options=dict(options))
    files = FileSet(
        executor=Threads(2),
        urls=urls,
        open=partial(Hdf5File.open, chosen.files, ScanOptions(concat_dim="time")),
        combine_attrs=None,
        choices=Choices(
            concat_dim="time",
            virtual=False,
            rewrite=frozenset(),
            rewrite_below_bytes=0,
            chunks={},
            codecs=None,
        ),
        options=chosen,
    )
    files.take(repo)
    return values(repo, repo.lookup_branch("main"))


_numbers = iter(range(1 << 60))


# -- errors


def as_ours(error: BaseException) -> IcechunkArrowError | None:
    """Find the error of ours that an error is, or hands on."""
    if isinstance(error, IcechunkArrowError):
        return error
    if isinstance(error, ExceptionGroup):  # as newer versions of zarr hand ours on
        ours = [as_ours(each) for each in error.exceptions]
        return None if None in ours else ours[0]
    if isinstance(error, duckdb.Error) and _OURS.search(
        str(error)
    ):  # an engine hands on texts alone
        return StorageError(str(error))
    return None


def names_a_thing(error: IcechunkArrowError) -> bool:
    """Whether an error says of what it speaks."""
    return _NAMED.search(str(error)) is not None


# -- readers


@dataclass(frozen=True)
class Look:
    """What was seen of a snapshot."""

    way: str
    snapshot_id: str
    answer: Any


@dataclass
class Reader:
    """Somebody who looks again and again at what has come."""

    name: str
    ways: tuple[str, ...]
    open: Callable[[], Repository] | None = None
    """Opens the repository over the network; None for the command."""
    url: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    lists: bool = True
    """Whether branches can be listed."""
    repo: Repository | None = None

    def look(self, rng: Random) -> Look | None:
        """Look once; None where the branch had gone."""
        way = rng.choice(self.ways)
        if self.open is None:
            given = [f"--storage-option={n}={json.dumps(v)}" for n, v in self.options.items()]
            found = command("branches", self.url, *given)
            snapshot_id = rng.choice(found)["snapshot"]
            return Look(way, snapshot_id, listed(self.url, self.options, snapshot_id))
        if self.repo is None or rng.random() < 0.4:
            self.repo = self.open()
        branch = "main"
        if self.lists and rng.random() < 0.5:
            branch = rng.choice(sorted(self.repo.list_branches()))
        try:
            snapshot_id = self.repo.lookup_branch(branch)
        except RefNotFoundError:
            assert branch != "main"
            return None
        return Look(way, snapshot_id, LOOKS[way](self.repo, snapshot_id))
