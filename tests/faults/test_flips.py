"""One flipped bit, in any file, seen in any way: the same answer or an error of ours, never another answer."""

from __future__ import annotations

import pytest

from tests.faults.flips import KINDS, LOOKS, Sample, make_sample, sees, storm

COUNT = 20
SEED = 1


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    """A repository with each catalog."""
    folder = tmp_path_factory.mktemp("flips")
    return {catalog: make_sample(folder / catalog, catalog) for catalog in ("branches", "state")}


@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind in KINDS for way in LOOKS if sees(way, kind)]
)
def test_no_flipped_bit_gives_another_answer(
    samples: dict[str, Sample], kind: str, way: str
) -> None:
    """Through zarr, as tables and in DuckDB, with the settings that everybody has. ``make soak`` flips more."""
    counts = storm(samples["state" if kind == "state" else "branches"], kind, way, COUNT, SEED)

    assert sum(counts.values()) == COUNT
    assert counts["error"] or kind == "config"
