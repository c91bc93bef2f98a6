"""What tests of several packages share: the S3 server, and who runs beside whom."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from icechunk_arrow.engine import opening
from tests.bystanders import SEEN, UNSEEN, Bystanders, local_root
from tests.promises import required
from tests.servers import ServerUnavailableError, s3_server
from tests.spark_session import JAVA_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.promises import Tell
    from tests.servers import S3Server

settings.register_profile("shared", deadline=None)  # other work on the machine is no failure
settings.load_profile("shared")

os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what storms did, and with which seeds."""
    reports = (each for some in terminalreporter.stats.values() for each in some)
    lines = [
        text
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "storm" and report.when == "teardown"
    ]
    if lines:
        terminalreporter.section("storms")
        for line in sorted(lines):
            terminalreporter.line(line)


@pytest.fixture
def tell(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Tell:
    """Give what a storm calls with its seed and its figures, which are shown at the end of the run."""

    def told(seed: int, figures: object) -> None:
        record_property("storm", f"{request.node.nodeid}, seed {seed}: {figures}")

    return told


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


@pytest.fixture(autouse=True)
def bystanders(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bystanders | None]:
    """Let every repository on a local disk stand beside a user's old files, which are there afterwards.

    A test that looks at all files of a repository leaves them out by ``is_bystander``, or is marked ``alone``.
    """
    if request.node.get_closest_marker("alone") is not None:
        yield None
        return
    planted: list[Bystanders] = []
    create = opening.create_context

    def beside_others(url: Any, *given: Any, **more: Any) -> Any:
        if not planted:
            planted.append(Bystanders(request.getfixturevalue("tmp_path_factory").mktemp("user")))
        for place in (url, more.get("state_url")):
            root = None if place is None else local_root(place)
            if root is not None and not root.is_file():
                planted[0].plant(root.parent if root.suffix == ".json" else root, SEEN, UNSEEN)
        return create(url, *given, **more)

    monkeypatch.setattr(opening, "create_context", beside_others)
    yield None
    for each in planted:
        each.check()
