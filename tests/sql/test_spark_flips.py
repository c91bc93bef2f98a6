"""Spark's views of a repository in which a bit is flipped: the same rows, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import icechunk_arrow.spark
from icechunk_arrow import CorruptFileError
from tests.faults.flips import behind_pages, make_sample, pages, storm, through_spark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.flips import Sample

pytestmark = pytest.mark.spark
COUNT = 20


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("flips") / "r")


def test_no_flipped_bit_of_a_page_gives_other_rows(spark: Any, sample: Sample) -> None:
    """Spark compares pages with their checksums, whatever the session says; ``make soak`` flips more, anywhere."""
    icechunk_arrow.spark.attach(spark, sample.root, "flips")
    look = through_spark(spark, attached=True)
    try:
        counts = storm(sample, "large manifest", "spark, attached", COUNT, 1, look, pages)
    finally:
        icechunk_arrow.spark.detach(spark, "flips")

    assert counts["error"] > COUNT // 2


def test_a_flipped_bit_behind_the_pages_is_found_by_the_driver(spark: Any, sample: Sample) -> None:
    """A footer is checked before Spark reads it; the page index, which no checksum covers, is not used."""
    look = through_spark(spark)
    for kind in ("manifest", "large manifest"):
        counts = storm(sample, kind, "spark", COUNT // 4, 1, look, behind_pages)
        assert counts["error"]


def test_a_damaged_footer_names_its_file(spark: Any, tmp_path: Path) -> None:
    """The error of ``attach`` is ours, and nothing stays behind of the views."""
    sample = make_sample(tmp_path / "r")
    path = sample.root / sample.keys["manifest"]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=sample.keys["manifest"]):
        icechunk_arrow.spark.attach(spark, sample.root, "damaged")
    assert not spark.catalog.tableExists("damaged_nodes")
