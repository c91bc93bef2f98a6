"""How references are arranged in manifests: sets, rules and what is loaded ahead, as a user configured them.

Owns the declarations, their defaults, and the rules that go over several settings. Decides nothing about arrays:
that is `packing`.

Specification: schemas/README.md#manifest-sets
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from icechunk_arrow.core.paths import LONGEST_PATTERN, PathPattern
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.settings import (
    LARGEST,
    OPEN,
    Natural,
    Positive,
    Takes,
    check_settings,
    closest,
    form_of,
    plain,
    read,
    settle,
    short_key,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

__all__ = [
    "DEFAULT_SET",
    "ManifestPreload",
    "ManifestRule",
    "ManifestSet",
    "ManifestSettings",
]

DEFAULT_SET = "default"
"""The name of the set that is always there and takes what no other one does."""
_KEY = "chunk-manifests"
_DEFAULT_SIZE = 65_536
_LONGEST_NAME = 100

_Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
_Target = Annotated[str, Takes(words="the name of a set")]
_Arrays = Annotated[
    Positive, Takes(words=form_of(Positive).takes.words, also="max-arrays-per-manifest")
]
_AxisNumber = Annotated[int, Meta(ge=0, le=LARGEST), Takes(words="the number of an axis from 0")]
_AxisName = Annotated[str, Meta(min_length=1), Takes(words="the name of a dimension")]
_Pattern = Annotated[
    str,
    Meta(min_length=1, max_length=LONGEST_PATTERN),
    Takes(words=f"a regular expression of 1 to {LONGEST_PATTERN} characters"),
]
Range = Annotated[
    tuple[Natural | None, Natural | None],
    Takes(words="two numbers, such as [0, 500], of which each may be null"),
]
"""Half-open; None is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSet:
    """A group of manifests that are packed in one way.

    Parameters
    ----------
    name
        What rules and other sets call it. The one named ``default`` is always there.
    max_manifest_size
        No manifest has more references than this. Excludes ``arrays_per_manifest``; 65,536 if neither is
        named.
    arrays_per_manifest
        So many arrays are packed into each manifest (one may have fewer), large ones together with small ones.
    cardinality
        The set has no more manifests than this, the fullest; what does not fit overflows. None is no limit. Not
        named, it is 1, and None where nothing can overflow.
    overflow_to
        The set that takes what does not fit here; not named, ``default``. None makes this a last set, as
        ``default`` is: an array above the limit stays, and is cut along its grid.
    split_along
        The axis along which arrays above the limit are cut, by number or dimension name. None is the slowest,
        which an array without such an axis takes as well.
    """

    name: _Name
    max_manifest_size: Positive | None = OPEN
    arrays_per_manifest: _Arrays | None = None
    cardinality: Positive | None = OPEN
    overflow_to: _Target | None = OPEN
    split_along: _AxisNumber | _AxisName | None = None

    def __post_init__(self) -> None:
        name = self.name
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= _LONGEST_NAME
            or not name.isprintable()
        ):
            raise InvalidInputError(
                f"{_KEY}.sets: the name of a set is a text of 1 to {_LONGEST_NAME} printable characters, "
                f"not {shown(name)}"
            )
        if self.overflow_to is OPEN:
            settle(self, "overflow_to", None if name == DEFAULT_SET else DEFAULT_SET)
        if self.cardinality is OPEN:
            takes_all = name == DEFAULT_SET or self.overflow_to is None
            settle(self, "cardinality", None if takes_all else 1)
        if self.max_manifest_size is OPEN:
            size = _DEFAULT_SIZE if self.arrays_per_manifest is None else None
            settle(self, "max_manifest_size", size)
        key = f"{_KEY}.sets.{name}"
        check_settings(self, key)
        _check_together(self, key)

    def to_plain(self) -> dict[str, Any]:
        """Write it as a mapping with one key, its name."""
        return {self.name: plain(self, "name")}


def _check_together(found: ManifestSet, key: str) -> None:
    """Check the settings of a set against each other."""
    if found.max_manifest_size is not None and found.arrays_per_manifest is not None:
        raise InvalidInputError(
            f"{key} has both max-manifest-size and arrays-per-manifest, which are two ways of packing; "
            "remove one, or make it null"
        )
    if found.max_manifest_size is None and found.arrays_per_manifest is None:
        raise InvalidInputError(
            f"{key} has neither max-manifest-size nor arrays-per-manifest; give a number to one of them"
        )
    if found.name == DEFAULT_SET:
        for name, value in (
            ("cardinality", found.cardinality),
            ("overflow-to", found.overflow_to),
        ):
            if value is not None:
                raise InvalidInputError(
                    f"{key}.{name} must be null or left out: the default set takes everything; name another "
                    "set if you want a limit"
                )
    elif found.cardinality is not None and found.overflow_to is None:
        raise InvalidInputError(
            f"{key}.cardinality is {found.cardinality}, but overflow-to is null: what does not fit has no "
            "place; name a set in overflow-to, or make cardinality null"
        )


def _pattern(text: str, key: str) -> PathPattern:
    try:
        return PathPattern(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{key} {error.message}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRule:
    """Which arrays are meant for a set: those for which every condition that is named holds.

    Parameters
    ----------
    target
        The name of the set.
    path
        A regular expression in RE2's syntax that matches the whole path of the array, beginning with ``/``.
    metadata_chunks
        The chunks of the array's grid are in this half-open range; either end may be None.
    initialized_chunks
        The chunks that the array has are in this half-open range; either end may be None.
    """

    target: _Target
    path: _Pattern | None = None
    metadata_chunks: Range | None = None
    initialized_chunks: Range | None = None
    pattern: PathPattern | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_settings(self)
        settle(self, "pattern", None if self.path is None else _pattern(self.path, "path"))
        _check_range(self.metadata_chunks, "metadata-chunks")
        _check_range(self.initialized_chunks, "initialized-chunks")

    def to_plain(self) -> dict[str, Any]:
        """Write the conditions that there are, and the target."""
        conditions = plain(self, "target")
        named = {key: value for key, value in conditions.items() if value is not None}
        return {**named, "target": self.target}


def _check_range(value: tuple[int | None, int | None] | None, key: str) -> None:
    start, stop = value or (None, None)
    if stop is not None and stop <= (start or 0):
        raise InvalidInputError(
            f"{key} is {[start, stop]}, in which there is no number: the second one is beyond the range; "
            "let it be greater than the first"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPreload:
    """Which manifests a session loads in the background when it begins.

    Parameters
    ----------
    max_manifest_size
        No manifest with more references than this; 0 loads none.
    max_manifests
        No more manifests than this; 0 loads none.
    arrays
        Those of the arrays whose whole path matches one of these regular expressions in RE2's syntax.
    """

    max_manifest_size: Natural = 50_000
    max_manifests: Natural = 1
    arrays: Annotated[
        tuple[_Pattern, ...], Takes(words="a list of regular expressions", item_key="path")
    ] = (".*/time", ".*/latitude", ".*/longitude")
    patterns: tuple[PathPattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = f"{_KEY}.preload"
        check_settings(self, key)
        patterns = tuple(
            _pattern(text, f"{key}.arrays[{number}].path")
            for number, text in enumerate(self.arrays)
        )
        settle(self, "patterns", patterns)

    def selects(self, paths: Sequence[str]) -> list[bool]:
        """For each path of an array, whether its manifests are to be loaded."""
        selected = [False] * len(paths)
        for pattern in self.patterns:
            selected = [a or b for a, b in zip(selected, pattern.matches_all(paths), strict=True)]
        return selected

    def to_plain(self) -> dict[str, Any]:
        """Write all of it."""
        return plain(self)


_DEFAULT_SETS = (
    ManifestSet(name="coordinates", max_manifest_size=50_000, cardinality=1),
    ManifestSet(name="large", max_manifest_size=262_144, overflow_to=None),
    ManifestSet(name=DEFAULT_SET, max_manifest_size=_DEFAULT_SIZE),
)
_DEFAULT_RULES = (
    ManifestRule(metadata_chunks=(0, 5000), target="coordinates"),
    ManifestRule(metadata_chunks=(20_000_000, None), target="large"),
)
_DEFAULT_PRELOAD = ManifestPreload()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """How references are arranged in manifests.

    Each of the three parts that is named replaces the default one, or the saved one where it overrides.

    Parameters
    ----------
    sets
        Sets of manifests, in order; ``default`` comes last if it is not named.
    rules
        Which arrays go to which set: the first rule that matches; ``default`` if none does. Not named, those
        of the default rules whose set is there.
    preload
        What a session loads in the background when it begins.
    """

    sets: Annotated[
        tuple[ManifestSet, ...],
        Takes(words="the name of one set with its settings below it", item_name="name"),
    ] = _DEFAULT_SETS
    rules: tuple[ManifestRule, ...] = _DEFAULT_RULES
    preload: ManifestPreload = _DEFAULT_PRELOAD
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Remember which parts were named: only these override others."""
        self = object.__new__(cls)
        settle(self, "_given", frozenset(given))
        return self

    def __post_init__(self) -> None:
        check_settings(self, _KEY)
        settle(self, "sets", _complete(self.sets))
        names = {each.name for each in self.sets}
        if "rules" not in self._given:
            settle(self, "rules", tuple(each for each in self.rules if each.target in names))
        _check_targets(self)
        _check_overflow(self)

    def get_set(self, name: str) -> ManifestSet:
        """The set of this name, which must be there."""
        return next(each for each in self.sets if each.name == name)

    @property
    def given_preload(self) -> ManifestPreload | None:
        """What is loaded ahead, if that was named."""
        return self.preload if "preload" in self._given else None

    def overridden_by(self, other: ManifestSettings) -> ManifestSettings:
        """Give these settings, with the parts that the other names in their place."""
        parts = {name: getattr(self, name) for name in self._given}
        return ManifestSettings(**parts | {name: getattr(other, name) for name in other._given})

    @classmethod
    def from_plain(
        cls, found: Mapping[str, Any] | None, ignored: list[str] | None = None
    ) -> ManifestSettings:
        """Read the value of ``chunk-manifests``; with ``ignored`` unknown keys are left out, and named there.

        Raises
        ------
        InvalidInputError
            Something in it is unknown, of the wrong type, or does not go together; the message names its key.
        """
        return read(cls, found, _KEY, ignored)

    def to_plain(self) -> dict[str, Any]:
        """Write all of it, as it stands under ``chunk-manifests``."""
        return plain(self)


def _complete(sets: tuple[ManifestSet, ...]) -> tuple[ManifestSet, ...]:
    """Check that no name comes twice, and add the default set."""
    counts = Counter(each.name for each in sets)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{_KEY}.sets.{twice[0]} is there twice; give each set a name of its own"
        )
    return sets if DEFAULT_SET in counts else (*sets, _DEFAULT_SETS[-1])


def _check_targets(settings: ManifestSettings) -> None:
    """Check that every set that is named is there."""
    names = [each.name for each in settings.sets]
    named: list[tuple[str, str | None]] = [
        (f"rules[{number}].target", each.target) for number, each in enumerate(settings.rules)
    ]
    named += [(f"sets.{each.name}.overflow-to", each.overflow_to) for each in settings.sets]
    for key, name in named:
        if name is not None and name not in names:
            raise InvalidInputError(
                f"{_KEY}.{key}: there is no set {short_key(name)!r}; {closest(name, names)}"
            )


def _check_overflow(settings: ManifestSettings) -> None:
    """Check that overflow ends somewhere."""
    following = {each.name: each.overflow_to for each in settings.sets}
    for name in following:
        chain = [name]
        while (after := following[chain[-1]]) is not None:
            if after in chain:
                raise InvalidInputError(
                    f"{_KEY}.sets.{chain[-1]}.overflow-to leads in a circle: "
                    f"{' -> '.join([*chain[chain.index(after) :][:8], after])}; let one of them overflow to "
                    f"{DEFAULT_SET!r}"
                )
            chain.append(after)
