"""One Spark session for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_session import let_pandas_be, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's warning of pandas is none of these tests' business."""
    let_pandas_be(items, HERE)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session that ends with the tests of this folder: those of others make their own."""
    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session
