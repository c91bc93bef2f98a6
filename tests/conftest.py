"""What tests of several packages share: the S3 server, and who runs beside whom."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.promises import required
from tests.servers import ServerUnavailableError, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import S3Server

settings.register_profile("shared", deadline=None)  # other work on the machine is no failure
settings.load_profile("shared")

# Java's second compiler takes two fifths of a short test's processor time, and gives nothing back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SPARK_FOLDERS = {"delta", "ingest", "spark"}
"""All their tests share a session; in other folders those do whose files are named after Spark."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process run the tests of a file, and all that share a folder's Spark session."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.partition("::")[0])

    return Together(config, log)


def scope_of(file: str) -> str:
    """Name what runs in one process, of a file's path."""
    folder, _, name = file.rpartition("/")
    if folder.rpartition("/")[2] in SPARK_FOLDERS or "spark" in name:
        return folder
    return file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long where tests run side by side: what has a Spark session."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server; where it cannot be had tests are skipped, unless CI requires it."""
    try:
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except ServerUnavailableError as error:
        if required("s3"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def s3_url(s3: S3Server) -> str:
    """A prefix in the bucket that no other test has."""
    return f"{s3.url}/{secrets.token_hex(8)}"
