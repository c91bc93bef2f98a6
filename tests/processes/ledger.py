"""What processes have to do with a repository, and what has to be there afterwards.

Owns the place, the arrays in it, the list of commits that were begun and acknowledged, and the comparison of any
snapshot with its history. Every commit has a token, which is its message and the row that it writes: so a snapshot
says which commits it must have, whoever made them and however that one ended.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icechunk_arrow import Repository, StorageSettings
from tests.faults.repositories import CONFIG

if TYPE_CHECKING:
    from icechunk_arrow import Session

__all__ = ["ROWS", "VALUES", "Place", "begin", "check", "check_end", "write_row"]

VALUES = np.arange(3600).reshape(60, 60)
"""What readers find in ``/a``, always."""
ROWS = 1 << 30
WIDE, WIDER = 64, 1024
"""Values in a row of ``/w``, gathered with others into a file, and of ``/big``, which has one of its own."""


@dataclass(frozen=True)
class Place:
    """A repository, and a folder in which processes say what they do."""

    url: str
    folder: str
    catalog: str = "branches"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_memory(self) -> bool:
        return self.url.startswith("memory://")

    def open(self) -> Repository:
        return Repository.open(
            self.url, self.options, config=CONFIG, storage_settings=StorageSettings(durable=False)
        )

    def new_token(self) -> int:
        """Draw a row that nobody else has: also of two processes that were one until now."""
        token = int.from_bytes(os.urandom(4)) % ROWS
        (Path(self.folder) / "begun" / str(token)).touch()
        return token

    def acknowledge(self, *tokens: int) -> None:
        """Say that a commit was told to have been made."""
        for token in tokens:
            (Path(self.folder) / "acknowledged" / str(token)).touch()

    def listed(self, what: str) -> set[int]:
        return {int(path.name) for path in (Path(self.folder) / what).iterdir()}


def begin(place: Place) -> None:
    """Make the repository."""
    for name in ("begun", "acknowledged", "children"):
        (Path(place.folder) / name).mkdir(exist_ok=True, parents=True)
    repo = Repository.create(
        place.url,
        place.options,
        config=CONFIG,
        catalog=place.catalog,
        storage_settings=StorageSettings(durable=False),
    )
    session = repo.writable_session("main")
    more: dict[str, Any] = {"compressors": None, "fill_value": 0, "store": session.store}
    zarr.create_array(name="a", data=VALUES, chunks=(10, 10), **{**more, "fill_value": None})
    for name, width in (("w", WIDE), ("big", WIDER)):
        zarr.create_array(name=name, shape=(ROWS, width), chunks=(1, width), dtype="i8", **more)
    session.commit("begin")


def row(token: int, name: str = "w") -> bytes:
    """What a commit writes."""
    return np.full(WIDE if name == "w" else WIDER, token + 1, "i8").tobytes()


def write_row(session: Any, token: int, *, is_large: bool = False) -> None:
    """Write what a commit has to write, with what is not there for long enough to be packed."""
    session.write_chunk("/w", (token, 0), row(token))
    if is_large:
        session.write_chunk("/big", (token, 0), row(token, "big"))


def history(repo: Repository, snapshot_id: str) -> list[int]:
    """Give the tokens of all commits."""
    messages = [info.message for info in repo.ancestry(snapshot_id=snapshot_id)]
    return [int(token) for text in messages for token in text.split() if token.isdigit()]


def check(repo: Repository, session: Session, some: int = 1 << 30) -> set[int]:
    """Compare a snapshot with its history; read so many of its rows. Give its tokens."""
    tokens = Counter(history(repo, session.snapshot_id))
    twice = [token for token, count in tokens.items() if count > 1]
    assert not twice, f"made more than once: {twice}"
    found = {int(coord[0]) for batch in session.chunk_coordinates("/w") for coord in batch}
    assert found == set(tokens), (
        f"rows without commits, or commits without rows: {found ^ set(tokens)}"
    )
    view = session.get_array("/w")
    for token in sorted(found)[:some]:
        chunk = session.find_chunk(view, (token, 0))
        assert chunk is not None
        assert bytes(session.read_chunk(chunk, 0, 8 * WIDE)) == row(token), token
    large = session.get_array("/big")
    for batch in session.chunk_coordinates("/big"):
        for coord in batch[:some].tolist():
            chunk = session.find_chunk(large, tuple(coord))
            assert chunk is not None
            assert bytes(session.read_chunk(chunk, 0, 8 * WIDER)) == row(coord[0], "big"), coord
    return found


def check_end(place: Place) -> dict[str, int]:
    """Compare the repository, opened anew, with what was acknowledged."""
    repo = place.open()
    session = repo.readonly_session("main")
    found = check(repo, session)
    begun, acknowledged = place.listed("begun"), place.listed("acknowledged")
    assert acknowledged <= found, f"acknowledged and lost: {acknowledged - found}"
    assert found <= begun
    values = np.asarray(zarr.open_array(session.store, path="a", mode="r")[...])
    assert (values == VALUES).all()
    return {"commits": len(found), "cut short": len(begun - found)}
