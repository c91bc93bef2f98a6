"""However workers come to a repository, and whenever: they end well, and commits are made once."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.planted import DEFECTS
from tests.processes.running import run
from tests.storage.fake_s3 import fake_s3

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises import Tell
    from tests.servers import S3Server

CATALOGS = ["branches", "state"]


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_on_a_disk(tmp_path: Path, catalog: str, tell: Tell) -> None:
    """Forks at lines and at any moment, spawned workers, servers of forks, pools and threads, all at once."""
    found = run(tmp_path, 7, 10, catalog=catalog)
    tell(7, found)
    assert found["commits"] > 2
    assert {"fork", "well", "forked at a line, going on", "forked at a line, living there"} <= set(
        found
    )


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_in_memory(tmp_path: Path, catalog: str, tell: Tell) -> None:
    """What is in a process's memory is read by its children, who change nothing of it."""
    found = run(tmp_path, 8, 8, catalog=catalog, url=f"memory://{secrets.token_hex(8)}")
    tell(8, found)
    assert found["commits"] > 2


@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_over_connections(tmp_path: Path, catalog: str, tell: Tell) -> None:
    """Children have connections of their own, and the parent keeps its."""
    with fake_s3() as server:
        url = "s3://bucket/r"
        found = run(tmp_path, 9, 6, catalog=catalog, url=url, options=server.storage_options)
    tell(9, found)
    assert found["commits"] > 2


@pytest.mark.s3
@pytest.mark.storm
@pytest.mark.parametrize("catalog", CATALOGS)
def test_in_a_bucket(tmp_path: Path, s3: S3Server, s3_url: str, catalog: str, tell: Tell) -> None:
    """The same with a server that others made."""
    found = run(tmp_path, 10, 5, catalog=catalog, url=s3_url, options=s3.storage_options)
    tell(10, found)
    assert found["commits"] > 2


@pytest.mark.storm
@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_planted_defects_are_found(tmp_path: Path, defect: str) -> None:
    """A storm that cannot fail proves nothing."""
    more: dict[str, Any] = {}
    with fake_s3() as server:
        if DEFECTS[defect].far:
            more = {"url": "s3://bucket/r", "options": server.storage_options}
        with pytest.raises(AssertionError, match="seed 1") as caught:
            run(tmp_path, 1, 25, planted=defect, patience=15, **more)
    assert DEFECTS[defect].found in str(caught.value)
