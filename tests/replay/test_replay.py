"""Commits carry what they did: every snapshot of a random history by many writers is what a model makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.replay.planted import DEFECTS, plant
from tests.replay.running import by_processes, in_turns

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises import Tell
    from tests.servers import S3Server

CATALOGS = ["branches", "state"]


@pytest.mark.parametrize("catalog", CATALOGS)
def test_writers_that_take_turns(tmp_path: Path, catalog: str) -> None:
    """Values, documents, chunks, logs, facts, identities and references of every snapshot are the model's."""
    found = in_turns(tmp_path, 9, steps=130, catalog=catalog)
    assert found.snapshots > 10
    assert found.rebased
    assert {"delete_chunk", "write_chunks", "relocate_chunks"} <= found.operations.keys()


def test_a_seed_is_a_history(tmp_path: Path) -> None:
    """Whoever is told a seed by a failure sees it fail again."""
    places = tmp_path / "one", tmp_path / "other"
    for place in places:
        place.mkdir()
    one, other = (in_turns(place, 8, steps=50) for place in places)
    assert one == other


def test_processes(tmp_path: Path) -> None:
    """The same of processes, one of which writes to forks that it is sent."""
    assert by_processes(tmp_path, 1, writers=2, steps=30).snapshots > 4


@pytest.mark.parametrize(
    ("defect", "seed"),
    [("forgotten fillers", 1), ("unseen conflicts", 1), ("reused ids", 2), ("greedy compaction", 1),
     ("forgotten rows", 1)],
)  # fmt: skip
def test_planted_defects_are_found(tmp_path: Path, defect: str, seed: int) -> None:
    """A checker that cannot fail proves nothing."""
    with plant(defect), pytest.raises(AssertionError) as caught:
        in_turns(tmp_path, seed, steps=150)
    assert f"seed {seed}, catalog 'branches'" in caught.value.__notes__


def test_every_defect_is_planted() -> None:
    """None was added and forgotten."""
    planted = test_planted_defects_are_found.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {defect for defect, _ in planted} == DEFECTS.keys()


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_processes_for_a_while(tmp_path: Path, catalog: str, tell: Tell) -> None:
    """Three processes and a helper, for a while; `make soak` goes on with other seeds."""
    found = by_processes(tmp_path, 2, catalog=catalog, seconds=20)
    tell(2, found)
    assert found.snapshots > 20


@pytest.mark.s3
@pytest.mark.parametrize("catalog", CATALOGS)
def test_processes_in_a_bucket(
    tmp_path: Path, s3: S3Server, s3_url: str, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where every question is a request; forks bring no credentials to where they are sent."""
    options = s3.storage_options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    found = by_processes(tmp_path, 3, catalog=catalog, url=s3_url, steps=40, **options)
    assert found.snapshots > 4
