"""Whatever way something was written: a power cut at any entry's making leaves it whole (R60, R54)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.core.ids import sequence_name
from tests.durability.planted import PLANTS
from tests.durability.power_cut import Disk
from tests.durability.tracing import run_traced
from tests.durability.ways import WAYS
from tests.promises import required

if TYPE_CHECKING:
    from pathlib import Path

    from tests.durability.power_cut import Loss


CARELESS = {
    "after_not_durable": {f"refs/branch.main/{sequence_name(number)}.json" for number in (2, 3)}
}
"""Entries that were made with ``durable=False``."""


def traced(module: str, folder: Path, *, data: bool = True) -> Disk:
    """Trace a program that writes below a folder."""
    top = folder / "places"
    top.mkdir()
    program = ["-m", f"tests.durability.{module}", str(top)]
    return Disk(top).run(run_traced(program, folder / "trace", data=data))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return traced("ways", tmp_path_factory.mktemp("ways"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return traced("planted", tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def spark_ways(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    if importlib.util.find_spec("pyspark") is None:
        assert not required("spark"), "pyspark is not installed, and this run promises Spark"
        pytest.skip("pyspark is not installed")
    return traced("spark_ways", tmp_path_factory.mktemp("spark"), data=False)


def losses(disk: Disk, name: str) -> list[Loss]:
    return sorted(each for each in disk.losses if f"/places/{name}/" in each.path)


@pytest.mark.parametrize("name", WAYS)
def test_nothing_would_be_lost(ways: Disk, name: str) -> None:
    """At every entry all that it reaches is on the disk, and when the call returns the entry is too."""
    assert any(f"/places/{name}/" in entry for entry in ways.entries), "nothing was committed"
    careless = CARELESS.get(name, set())
    assert {each.moment for each in losses(ways, name)} == careless


@pytest.mark.spark
@pytest.mark.storm
@pytest.mark.parametrize("name", ["tour", "references", "stream_by_format", "stream_by_function"])
def test_nothing_that_spark_wrote_would_be_lost(spark_ways: Disk, name: str) -> None:
    """What tasks write in processes of their own is on the disk before the driver's commit names it."""
    entries = [entry for entry in spark_ways.entries if f"/places/{name}/" in entry]
    assert len(entries) > 2, "something was committed"
    assert not losses(spark_ways, name)


@pytest.mark.parametrize("name", PLANTS)
def test_a_missing_sync_is_seen(planted: Disk, name: str) -> None:
    """The tracer would see it: one sync that is left out is told, with what it would cost."""
    found = losses(planted, name)
    assert found
    assert {each.what.startswith(PLANTS[name][1]) for each in found} == {True}
