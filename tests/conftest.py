"""What tests of several packages share: the S3 server, and who runs beside whom."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.promises import required
from tests.servers import ServerUnavailableError, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import S3Server

settings.register_profile("shared", deadline=None)  # other work on the machine is no failure
settings.load_profile("shared")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one process run the tests of a file, and all that share a folder's Spark session; these begin."""
    if not getattr(config.option, "loadgroup", False):
        return
    spark = {item: item.get_closest_marker("spark") is not None for item in items}
    items.sort(key=lambda item: not spark[item])
    for item in items:
        together = item.path.parent if spark[item] else item.path
        item.add_marker(pytest.mark.xdist_group(name=str(together)))


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
