"""A bad network between a repository and all who use it: what was acknowledged is there, what is read is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from icechunk_arrow.engine import catalog as catalog_module
from icechunk_arrow.engine.branch_session import BranchSession
from icechunk_arrow.engine.chunk_bytes import ChunkBytes, Part
from icechunk_arrow.engine.state_catalog import StateCatalog
from icechunk_arrow.engine.virtual import VirtualAccess
from icechunk_arrow.errors import AlreadyExistsError, PreconditionFailedError
from icechunk_arrow.formats import refs
from icechunk_arrow.formats import state as state_format
from icechunk_arrow.formats.layout import STATE_KEY
from icechunk_arrow.storage import answers
from icechunk_arrow.storage.failures import Kind
from icechunk_arrow.storage.s3 import S3Storage
from tests.faults.network_storm import Weather, storm
from tests.faults.proxy import Spoil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from tests.promises import Tell
    from tests.servers import S3Server

pytestmark = [pytest.mark.storm, pytest.mark.s3]
SEED = 3


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_a_storm_is_weathered(tmp_path: Path, s3: S3Server, catalog: str, tell: Tell) -> None:
    """Through every client: an answer that is right or an error of ours, and histories that are the model's."""
    found = storm(tmp_path, SEED, 20, catalog=catalog, server=s3)
    tell(SEED, found)
    assert found.snapshots > 5
    assert len(found.looks) == 8
    assert len(found.spoilt) >= 15


# -- defects


def _lost_is_taken(patch: pytest.MonkeyPatch) -> None:
    """An entry that is there already is always somebody else's, and no session looks whose."""

    def create_entry(storage: Any, key: str, entry: Any) -> bool:
        try:
            storage.create(
                key,
                refs.encode(entry if entry.is_commit else replace(entry, key=key)),
            )
        except AlreadyExistsError:
            return False
        return True

    patch.setattr(catalog_module, "create_entry", create_entry)
    patch.setattr(BranchSession, "_find_out", lambda _: False)


def _lost_is_a_conflict(patch: pytest.MonkeyPatch) -> None:
    """The same of a state file that has changed."""

    def change(self: Any, decide: Any, has_effect: Any) -> Any:
        state, token = self._read()
        new = decide(state)
        if new is None:
            return state
        try:
            self._storage.replace(STATE_KEY, state_format.encode(new), token)
        except PreconditionFailedError as error:
            raise catalog_module.conflict("main", state.id, None) from error
        return new

    patch.setattr(StateCatalog, "_change", change)
    patch.setattr(BranchSession, "_find_out", lambda _: False)


def _unchecked_chunks(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the checksum of a chunk."""

    def read(self: Any, ref: Any, start: int, stop: int) -> bytes:
        return bytes(self._read(ref, start, stop))

    def checked(self: Any, data: Any) -> Any:
        return data[self.start - self.first : self.stop - self.first]

    patch.setattr(ChunkBytes, "read", read)
    patch.setattr(Part, "checked", checked)


def _unchecked_ranges(patch: pytest.MonkeyPatch) -> None:
    """Whatever part comes is the one that was asked for."""

    def check_part(text: str, start: int | None, length: int) -> tuple[int, int | None]:
        first, stop, size = answers.parse_content_range(text)
        return stop - first, size

    patch.setattr(answers, "check_part", check_part)


def _followed_redirects(patch: pytest.MonkeyPatch) -> None:
    """What a server redirects to may be read."""
    find = VirtualAccess._find

    def anything(self: Any, location: str) -> Any:
        places = [each for prefix, each in self._prefixes.items() if prefix.startswith("http")]
        return find(self, location) or (places[0], location)

    patch.setattr(VirtualAccess, "_find", anything)


def _forgotten_attempts(patch: pytest.MonkeyPatch) -> None:
    """What has not arrived when an error comes will never arrive."""
    capabilities: Any = vars(S3Storage)["capabilities"].fget
    patch.setattr(
        S3Storage,
        "capabilities",
        property(lambda self: replace(capabilities(self), lingering=False)),
    )


def _raw_errors(patch: pytest.MonkeyPatch) -> None:
    """What a client's library raises is handed on, when all tries are used up."""
    told = S3Storage._error

    def error(self: Any, failed: Any, action: str, key: str) -> Any:
        if failed.failure.kind is Kind.TRANSIENT:
            raise failed.__cause__
        return told(self, failed, action, key)

    patch.setattr(S3Storage, "_error", error)


def _decides(method: str, path: str) -> bool:
    return method == "PUT" and ("/refs/branch." in path or "/state.json" in path)


LOST = Weather(rates={Spoil.LOST: 0.5}, persistent=0, only=_decides)
DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, Weather]] = {
    "an entry is another's": (_lost_is_taken, "branches", LOST),
    "a state is another's": (_lost_is_a_conflict, "state", LOST),
    "unchecked chunks": (
        _unchecked_chunks,
        "branches",
        Weather(rates={Spoil.FLIPPED: 0.5}, only=lambda _, path: "/c/" in path),
    ),
    "unchecked ranges": (
        _unchecked_ranges,
        "branches",
        Weather(rates={Spoil.OTHER_RANGE: 0.5}, only=lambda _, path: "/virtual/" in path),
    ),
    "followed redirects": (
        _followed_redirects,
        "branches",
        Weather(rates={Spoil.MISLED: 0.5}, only=lambda _, path: "/virtual/" in path),
    ),
    "forgotten attempts": (
        _forgotten_attempts,
        "branches",
        Weather(rates={Spoil.LATE: 0.9}, late_seconds=1, only=_decides, tries=1),
    ),
    "raw errors": (_raw_errors, "branches", Weather(rates={Spoil.LOST: 0.1}, persistent=0.5)),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    """A storm that cannot fail proves nothing. Who comes first is no seed's, so a defect shows in one of a few."""
    plant, catalog, weather = DEFECTS[defect]
    plant(monkeypatch)
    for seed in range(SEED, SEED + 40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            storm(folder, seed, 20, catalog=catalog, server=s3, weather=weather, readers={"s3"})
        except AssertionError as found:
            notes = found.__notes__
            break
    else:
        pytest.fail(f"{defect} is not found")
    assert f"seed {seed}, catalog {catalog!r}, count 20" in notes
