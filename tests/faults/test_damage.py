"""Damaged files are noticed: an error that names the file, or the right answer, never wrong data."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow import CorruptFileError, Repository
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.storage.local import LocalStorage
from tests.faults.damage import (
    KINDS,
    Sample,
    judge,
    look,
    look_at_all_of_big_manifest,
    make_sample,
    run_apart,
)
from tests.faults.sealing import altered_footer

if TYPE_CHECKING:
    from pathlib import Path

NEWER = re.compile(rb"(ICE\xf0\x9f\xa7\x8aCHUNK.{12})\x01", re.DOTALL)
PARQUET = ("structure", "manifest", "big manifest", "attributes", "log")
REFERENCES = {"branch", "tag"}
"""Of one form: an entry that begins a branch and a tag look the same."""


@pytest.fixture(scope="module")
def samples() -> dict[str, Sample]:
    """One repository with each catalog."""
    return {catalog: make_sample(catalog) for catalog in ("branches", "state")}


def sample_of(samples: dict[str, Sample], kind: str) -> Sample:
    return samples["state" if kind == "state" else "branches"]


def check(verdicts: dict[str, str]) -> Counter[str]:
    """Check that nothing is wrong, nameless or a crash; count right answers and errors."""
    bad = [f"{w}: {v}" for w, v in verdicts.items() if not v.startswith(("right", "error"))]
    assert not bad, "\n".join(bad[:20])
    return Counter(verdict.split(" ")[0] for verdict in verdicts.values())


@pytest.mark.parametrize("kind", list(KINDS))
def test_cut_at_every_64th_byte(samples: dict[str, Sample], kind: str) -> None:
    """A cut file is an error that names it; a configuration may be cut to one that says less.

    Large manifests are read by their row groups here, and structure files also through the history.
    """
    sample = sample_of(samples, kind)
    verdicts = run_apart(sample, kind, "cut")

    counts = check(verdicts)

    size_bytes = len(sample.objects[sample.keys[kind][0]])
    assert counts.total() == -(-size_bytes // 64)
    if kind == "config":  # settings are optional, and people edit them by hand: nothing seals them
        assert counts["error"]
    else:
        assert counts["right"] == 0


@pytest.mark.parametrize("kind", list(KINDS))
def test_single_bits_flipped(samples: dict[str, Sample], kind: str) -> None:
    """A flipped bit is an error that names the file, or the right answer where it carries no data.

    A configuration is text that people edit: a flipped digit there may be another setting, with
    which the data read are the same. A branch entry is nothing but an id: a flipped digit is
    another id, of which the error says that there is no such snapshot.
    """
    sample = sample_of(samples, kind)

    counts = check(run_apart(sample, kind, "flip"))

    assert counts.total() == min(500, 8 * len(sample.objects[sample.keys[kind][0]]))
    assert counts["right"] <= {"manifest": 50, "config": 100, "tag": 150}.get(kind, 5)


def test_all_rows_of_a_large_manifest(samples: dict[str, Sample]) -> None:
    """The way in which commits read manifests notices flipped bits too."""
    sample = samples["branches"]
    KINDS["all rows"] = look_at_all_of_big_manifest
    try:
        key = sample.keys["big manifest"][0]
        data = sample.objects[key]
        expected = look(sample, "all rows")
        for place in range(1000, len(data), len(data) // 25):
            flipped = bytearray(data)
            flipped[place] ^= 4
            objects = {key: bytes(flipped)}
            assert judge(sample, "all rows", expected, objects, (key,)).startswith("error Corrupt")
    finally:
        del KINDS["all rows"]


@pytest.mark.parametrize("kind", [*PARQUET, "chunk"])
def test_two_files_of_a_kind_swapped(samples: dict[str, Sample], kind: str) -> None:
    """Either file says that it does not belong there, or that its bytes are not the recorded ones."""
    sample = samples["branches"]
    one, other = sample.keys[kind]
    expected = look(sample, kind)
    swapped = {one: sample.objects[other], other: sample.objects[one]}

    verdict = judge(sample, kind, expected, swapped, (one, other))

    assert verdict.startswith("error CorruptFileError"), verdict


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_two_references_swapped(samples: dict[str, Sample], kind: str) -> None:
    """A tag carries its own key, and a committed snapshot knows the entry that names it."""
    sample = samples["branches"]
    one, other = sample.keys[kind]
    expected = look(sample, kind)
    swapped = {one: sample.objects[other], other: sample.objects[one]}

    verdict = judge(sample, kind, expected, swapped, (one, other))

    assert verdict.startswith("error CorruptFileError"), verdict


@pytest.mark.parametrize("kind", [*PARQUET, "chunk"])
def test_a_file_missing(samples: dict[str, Sample], kind: str) -> None:
    """The error names the file that is not there."""
    sample = samples["branches"]
    key = sample.keys[kind][0]
    expected = look(sample, kind)

    verdict = judge(sample, kind, expected, {key: None}, (key,))

    assert verdict.startswith("error"), verdict
    assert re.search("missing|does not exist|no object", verdict), verdict


@pytest.mark.parametrize("listing", [True, False])
def test_a_reference_missing(samples: dict[str, Sample], tmp_path: Path, listing: bool) -> None:
    """A gap in a branch is an error that names it, or is passed over; a missing tag is no tag.

    Without its newest entry a branch is what it was before that commit: nothing else remembers it.
    """
    sample = samples["branches"]
    by_number = {n: f"refs/branch.main/{sequence_name(n)}.json" for n in range(4)}
    whole = look(sample, "branch")
    for number, key in by_number.items():
        if listing:
            if number:
                assert number == 3 or look(sample, "branch", {key: None}) == whole
                continue
            with pytest.raises(CorruptFileError, match=re.escape(key)):
                look(sample, "branch", {key: None})
            continue
        root = tmp_path / str(number)
        place = LocalStorage(root, durable=False)
        for name, data in sample.objects.items():
            if name != key:
                place.put(name, data)
        if number == 3:
            tip = Repository.open(root).lookup_branch("main")
            assert tip == sample.snapshots["second"]
        else:
            with pytest.raises(CorruptFileError, match=re.escape(key)):
                Repository.open(root).lookup_branch("main")
    tag = sample.keys["tag"][0]
    branches, tags = look(sample, "tag", {tag: None})
    assert (branches, tags) == (whole[0], {"v2": whole[1]["v2"]})


def test_a_state_file_of_another_repository(samples: dict[str, Sample]) -> None:
    """The first entry beside the data says whose they are."""
    sample, other = samples["state"], make_sample("state")
    expected = look(sample, "state")
    objects = {"state.json": other.objects["state.json"]}

    verdict = judge(sample, "state", expected, objects, ("state.json",))

    assert verdict.startswith("error CorruptFileError")


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_file_of_another_kind_in_its_place(samples: dict[str, Sample], kind: str) -> None:
    """The error names the file; for two Parquet files also what it is and what belongs there."""
    sample = sample_of(samples, kind)
    key = sample.keys[kind][0]
    expected = look(sample, kind)
    for other, (strange, *_) in sample.keys.items():
        if other.removeprefix("big ") == kind.removeprefix("big ") or {kind, other} <= REFERENCES:
            continue
        objects = {key: sample.objects[strange]}

        verdict = judge(sample, kind, expected, objects, (key,))

        assert verdict.startswith("error"), f"{other} as {kind}: {verdict}"
        if kind in PARQUET and other in PARQUET:
            assert "belongs" in verdict


@pytest.mark.parametrize("kind", PARQUET)
def test_a_newer_version(samples: dict[str, Sample], kind: str) -> None:
    """A sound file of a newer version is not called broken, but newer."""
    sample = samples["branches"]
    key = sample.keys[kind][0]
    expected = look(sample, kind)
    newer = altered_footer(
        sample.objects[key],
        lambda footer: re.sub(NEWER, lambda found: found[1] + b"\x02", footer),
    )
    assert newer != sample.objects[key]

    verdict = judge(sample, kind, expected, {key: newer}, (key,))

    assert verdict.startswith("error UnsupportedFormatError"), verdict
    assert "Install a newer" in verdict
    sound = altered_footer(sample.objects[key], lambda footer: footer)
    assert sound == sample.objects[key], "the test seals as the writer does"
