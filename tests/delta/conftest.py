"""One Spark session with Delta Lake for all tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.delta.sessions import delta_settings, end_java
from tests.promises import required
from tests.spark_session import let_pandas_be, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's warning of pandas is none of these tests' business, nor are sockets that its bridge leaves."""
    let_pandas_be(items, HERE)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session in a Java machine of its own: the packages of one that runs already cannot be added to."""
    if importlib.util.find_spec("delta") is None:
        assert not required("delta"), "delta-spark is not installed, and this run promises Delta"
        pytest.skip("delta-spark is not installed")
    end_java()
    try:
        with spark_session(tmp_path_factory.mktemp("warehouse"), **delta_settings()) as session:
            if not _has_delta(session):
                assert not required("delta"), (
                    "Delta's jar was not found, and this run promises Delta"
                )
                pytest.skip("Delta's jar cannot be had here")
            yield session
    finally:
        end_java()


def _has_delta(session: Any) -> bool:
    folder = session.conf.get("spark.sql.warehouse.dir").rstrip("/") + "/probe"
    try:
        session.range(1).write.format("delta").save(folder)
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        return False
    return True
