"""Settings that are declared once: what follows from a declaration, shown on one that is nobody's."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from msgspec import Meta

from icechunk_arrow import ManifestPreload, ManifestSettings, RepositoryConfig, StorageSettings
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.settings import (
    Natural,
    Positive,
    Takes,
    check_settings,
    checked,
    declared,
    plain,
    read,
)

Word = Annotated[str, Meta(min_length=1, max_length=5), Takes(words="a short word")]
Ends = Annotated[tuple[Natural, Natural | None], Takes(words="two numbers")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Has a name, in files before the others."""

    name: Word
    length: Positive | None = None

    def __post_init__(self) -> None:
        check_settings(self, f"shelves.{self.name}")

    def to_plain(self) -> dict[str, Any]:
        return {self.name: plain(self, "name")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Stands in a list, and does not know where."""

    target: Word
    ends: Ends | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def to_plain(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The whole."""

    open_hours: Annotated[Positive, Takes(words="hours", also="hours")] = 8
    place: Natural | Word = 0
    shelves: Annotated[
        tuple[Shelf, ...], Takes(words="one shelf with its settings", item_name="name")
    ] = ()
    rules: tuple[Rule, ...] = ()
    words: Annotated[tuple[Word, ...], Takes(words="words", item_key="word")] = ()

    def __post_init__(self) -> None:
        check_settings(self)


WHOLE = Library(
    open_hours=5,
    place="Ulm",
    shelves=(Shelf(name="a", length=3), Shelf(name="b")),
    rules=(Rule(target="a", ends=(0, None)),),
    words=("x", "y"),
)
PLAIN = {
    "open-hours": 5,
    "place": "Ulm",
    "shelves": [{"a": {"length": 3}}, {"b": {"length": None}}],
    "rules": [{"target": "a", "ends": [0, None]}],
    "words": [{"word": "x"}, {"word": "y"}],
}


def test_one_declaration_reads_and_writes() -> None:
    """Keys have hyphens, names stand before what they name, and all of it comes back."""
    assert plain(WHOLE) == PLAIN
    assert read(Library, PLAIN) == WHOLE
    assert read(Library, {"hours": 5, "shelves": [{"b": None}]}).shelves == (Shelf(name="b"),)
    assert read(Library, None) == Library()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1], r"the configuration must be a mapping, not \[1\]"),
        ({"opening": 1}, r"unknown configuration key 'opening'; known are: open-hours, place, "),
        ({"open-hour": 1}, r"unknown configuration key 'open-hour'; did you mean 'open-hours'\?"),
        ({"hours": 1, "open-hours": 1}, r"has both hours and open-hours, two words .* remove one"),
        ({"open-hours": 0}, r"^open-hours must be hours, not 0$"),
        ({"open-hours": None}, r"^open-hours must be hours, not None$"),
        ({"place": 1.5}, r"^place must be a whole number from 0 to \d+ or a short word, not 1\.5$"),
        ({"place": True}, r"^place must be"),
        ({"place": ""}, r"^place must be"),
        ({"shelves": {}}, r"^shelves must be a list"),
        ({"shelves": [{}] * 1001}, r"^shelves has 1001 entries, and at most 1000 .* join"),
        ({"shelves": [{"a": {}, "b": {}}]}, r"^shelves\[0\] must be one shelf with its settings"),
        ({"shelves": [{"a": 5}]}, r"^shelves\.a must be a mapping, not 5"),
        ({"shelves": [{"a": {"length": 0}}]}, r"^shelves\.a\.length must be .* or null, not 0"),
        ({"shelves": [{"a": {"name": "b"}}]}, r"unknown configuration key 'shelves\.a\.name'"),
        ({"rules": [{"target": "a"}, {}]}, r"^rules\[1\]\.target is missing: give a short word$"),
        ({"rules": [{"target": 5}]}, r"^rules\[0\]\.target must be a short word, not 5"),
        ({"rules": [{"target": "a", "ends": 5}]}, r"^rules\[0\]\.ends must be two numbers or null"),
        ({"rules": [{"target": "a", "ends": [1]}]}, r"^rules\[0\]\.ends must be two numbers"),
        ({"rules": [{"target": "a", "ends": [0, -1]}]}, r"^rules\[0\]\.ends must be a whole number"),
        ({"rules": [{"target": "a", "end": 1}]}, r"key 'rules\[0\]\.end'; did you mean 'ends'"),
        ({"words": ["x"]}, r"^words\[0\] must be a mapping, not 'x'"),
        ({"words": [{"word": "x"}, {}]}, r"^words\[1\]\.word is missing: give a short word"),
        ({"words": [{"word": "x", "more": 1}]}, r"unknown configuration key 'words\[0\]\.more'"),
        ({"words": [{"word": "longer"}]}, r"^words\[0\] must be a short word, not 'longer'"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_named_by_its_key(found: Any, message: str) -> None:
    """The key, the fact and the way out; nothing is taken for something else."""
    with pytest.raises(InvalidInputError, match=message):
        read(Library, found)


def test_a_reader_passes_over_what_it_does_not_know() -> None:
    """At any depth, and learns its names."""
    ignored: list[str] = []
    found = {
        **PLAIN,
        "later": 1,
        "shelves": [{"a": {"length": 3, "depth": 1}}, {"b": None}],
        "rules": [{"target": "a", "ends": [0, None], "unless": 1}],
        "words": [{"word": "x", "in": "de"}, {"word": "y"}],
    }

    assert read(Library, found, ignored=ignored) == WHOLE
    assert sorted(ignored) == ["later", "rules[0].unless", "shelves.a.depth", "words[0].in"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, Natural),
        (2**63, Natural),
        (-1, Natural),
        (1.0, Natural),
        ("1", Natural),
        (None, Natural),
        ([0, 1], Ends),
        ((0, 1, 2), Ends),
        (b"x", Word),
        ({"name": "a"}, Shelf),
    ],
    ids=str,
)
def test_python_values_are_checked_as_those_of_files_are(value: Any, wanted: Any) -> None:
    """No value passes for another kind of value."""
    with pytest.raises(InvalidInputError, match=r"^here must be"):
        checked(value, wanted, "here")


@pytest.mark.parametrize(
    "wrong",
    [
        {"durable": "false"},
        {"retry_tries": 0},
        {"retry_tries": True},
        {"max_concurrency": 1.5},
        {"retry_backoff_seconds": -1},
        {"retry_backoff_max_seconds": float("inf")},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": 0},
        {"timeout_seconds": "5"},
    ],
    ids=str,
)
def test_settings_of_a_place_are_checked_under_their_names(wrong: dict[str, Any]) -> None:
    """They stand in no file, so they have no hyphens; whole numbers are seconds too."""
    [name] = wrong
    with pytest.raises(InvalidInputError, match=f"^{name} must be "):
        StorageSettings(**wrong)

    assert StorageSettings(timeout_seconds=5).timeout_seconds == 5


def test_settings_remember_what_was_named_wherever_they_go() -> None:
    """A pickle and a copy override what the original overrides, and no more."""
    preload = ManifestSettings(preload=ManifestPreload(max_manifests=7))
    given = RepositoryConfig(checksum_chunks=False, chunk_manifests=preload)
    saved = RepositoryConfig(
        inline_chunk_threshold_bytes=5, chunk_manifests=ManifestSettings(rules=())
    )
    expected = saved.overridden_by(given)

    assert (expected.inline_chunk_threshold_bytes, expected.checksum_chunks) == (5, False)
    assert expected.chunk_manifests == ManifestSettings(rules=(), preload=preload.preload)
    for again in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given)):
        assert again == given
        assert hash(again) == hash(given)
        assert saved.overridden_by(again) == expected


@pytest.mark.parametrize(
    "settings", [RepositoryConfig, StorageSettings, ManifestPreload, ManifestSettings]
)
def test_defaults_are_as_declared(settings: type[Any]) -> None:
    """They are not checked when a value is made, so they are here."""
    made = settings()
    for name, wanted in declared(settings).items():
        assert checked(getattr(made, name), wanted, name) == getattr(made, name)
