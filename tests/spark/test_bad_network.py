"""Spark over a bad network: rows that were acknowledged are there, and every error is one of ours."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import icechunk_arrow.spark
from icechunk_arrow import StorageError
from tests.faults.spark_storm import storm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises import Tell
    from tests.servers import S3Server

pytestmark = [pytest.mark.storm, pytest.mark.s3]
SEED = 5


def test_spark_weathers_a_storm(tmp_path: Path, s3: S3Server, spark: Any, tell: Tell) -> None:
    """Driver and tasks: what is read is what was written, and nothing is there by halves."""
    found = storm(tmp_path, SEED, 10, spark=spark, server=s3)
    tell(SEED, found)
    assert found.done["write"]
    assert found.done["read"] > 1
    assert len(found.spoilt) > 5


def test_a_planted_defect_is_found(
    tmp_path: Path, s3: S3Server, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever passes over an error says of rows that they are there, and they are not."""
    write_rows = icechunk_arrow.spark.write_rows

    def passing_over(*given: Any, **more: Any) -> None:
        with suppress(StorageError):
            write_rows(*given, **more)

    monkeypatch.setattr(icechunk_arrow.spark, "write_rows", passing_over)
    with pytest.raises(AssertionError) as found:
        storm(tmp_path, SEED, 15, spark=spark, server=s3)
    assert f"seed {SEED}, count 15" in found.value.__notes__
