"""How references are arranged in manifests: sets, rules and what is loaded ahead, as somebody configured them.

Owns the values, their defaults and checks, and their plain form under ``chunk-manifests`` in ``config.yaml``.
Decides nothing about arrays: that is `packing`.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.path_patterns import PathPattern
from icechunk_arrow.core.plain_settings import (
    check_number,
    closest,
    entries,
    known_members,
    short_key,
    shown,
)
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
_OPEN: Any = ...
"""Stands where a setting was not named, until its default is settled from the other ones."""

Range = tuple[int | None, int | None]
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
        So many arrays are packed into each manifest, large ones together with small ones.
    cardinality
        The set has no more manifests than this; what does not fit overflows. None is no limit. Not named, it
        is 1, and None where nothing can overflow.
    overflow_to
        The set that takes what does not fit here; not named, ``default``. None makes this a last set, as
        ``default`` is: an array above the limit stays, and is cut along its grid.
    split_along
        The axis along which arrays above the limit are cut, by number or dimension name. None is the slowest,
        which an array without such an axis takes as well.
    """

    name: str
    max_manifest_size: int | None = _OPEN
    arrays_per_manifest: int | None = None
    cardinality: int | None = _OPEN
    overflow_to: str | None = _OPEN
    split_along: int | str | None = None

    def __post_init__(self) -> None:
        text = isinstance(self.name, str) and self.name.isprintable()
        if not text or not 0 < len(self.name) <= _LONGEST_NAME:
            raise InvalidInputError(
                f"{_KEY}.sets: the name of a set is a text of 1 to {_LONGEST_NAME} printable characters, "
                f"not {shown(self.name)}"
            )
        key = f"{_KEY}.sets.{self.name}"
        if self.overflow_to is _OPEN:
            _settle(self, "overflow_to", None if self.name == DEFAULT_SET else DEFAULT_SET)
        if self.cardinality is _OPEN:
            takes_all = self.name == DEFAULT_SET or self.overflow_to is None
            _settle(self, "cardinality", None if takes_all else 1)
        if self.max_manifest_size is _OPEN:
            size = _DEFAULT_SIZE if self.arrays_per_manifest is None else None
            _settle(self, "max_manifest_size", size)
        for name in ("max_manifest_size", "arrays_per_manifest", "cardinality"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), 1, f"{key}.{name.replace('_', '-')}")
        if self.overflow_to is not None and not isinstance(self.overflow_to, str):
            raise InvalidInputError(
                f"{key}.overflow-to must be the name of a set or null, not {shown(self.overflow_to)}"
            )
        self._check_split_along(key)
        self._check_together(key)

    def _check_split_along(self, key: str) -> None:
        along = self.split_along
        number = isinstance(along, int) and not isinstance(along, bool) and along >= 0
        if not (along is None or number or (isinstance(along, str) and along)):
            raise InvalidInputError(
                f"{key}.split-along must be the number of an axis from 0 or the name of a dimension, "
                f"not {shown(along)}"
            )

    def _check_together(self, key: str) -> None:
        """Check settings against each other."""
        if self.max_manifest_size is not None and self.arrays_per_manifest is not None:
            raise InvalidInputError(
                f"{key} has both max-manifest-size and arrays-per-manifest, which are two ways of packing; "
                "remove one, or make it null"
            )
        if self.max_manifest_size is None and self.arrays_per_manifest is None:
            raise InvalidInputError(
                f"{key} has neither max-manifest-size nor arrays-per-manifest; give a number to one of them"
            )
        if self.name == DEFAULT_SET:
            for name in ("cardinality", "overflow_to"):
                if getattr(self, name) is not None:
                    raise InvalidInputError(
                        f"{key}.{name.replace('_', '-')} must be null or left out: the default set takes "
                        f"everything; name another set if you want a limit"
                    )
        elif self.cardinality is not None and self.overflow_to is None:
            raise InvalidInputError(
                f"{key}.cardinality is {self.cardinality}, but overflow-to is null: what does not fit has no "
                "place; name a set in overflow-to, or make cardinality null"
            )

    @classmethod
    def from_plain(cls, name: Any, found: Any, ignored: list[str] | None = None) -> ManifestSet:
        """Read a set from its name and what stands below it."""
        where = f"{_KEY}.sets.{short_key(name)}"
        other = "max-arrays-per-manifest"
        body = {} if found is None else known_members(found, (*_SET_KEYS, other), where, ignored)
        if other in body and "arrays-per-manifest" in body:
            raise InvalidInputError(
                f"{where} has both {other} and arrays-per-manifest, two words for one setting; remove one"
            )
        words = {"arrays-per-manifest" if key == other else key: body[key] for key in body}
        return cls(name=name, **{_SET_KEYS[key]: value for key, value in words.items()})

    def to_plain(self) -> dict[str, Any]:
        """Write it as a mapping with one key, its name."""
        return {self.name: {key: getattr(self, name) for key, name in _SET_KEYS.items()}}


_SET_KEYS = {
    name.replace("_", "-"): name
    for name in (
        "max_manifest_size",
        "arrays_per_manifest",
        "cardinality",
        "overflow_to",
        "split_along",
    )
}


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

    target: str
    path: str | None = None
    metadata_chunks: Range | None = None
    initialized_chunks: Range | None = None
    pattern: PathPattern | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise InvalidInputError(f"target must be the name of a set, not {shown(self.target)}")
        pattern = None if self.path is None else _pattern(self.path, "path")
        _settle(self, "pattern", pattern)
        _check_range(self.metadata_chunks, "metadata-chunks")
        _check_range(self.initialized_chunks, "initialized-chunks")

    @classmethod
    def from_plain(cls, found: Any, where: str, ignored: list[str] | None = None) -> ManifestRule:
        """Read a rule; ``where`` is its key."""
        body = dict(known_members(found, _RULE_KEYS, where, ignored))
        if "target" not in body:
            raise InvalidInputError(
                f"{where}.target is missing: name the set that the arrays go to"
            )
        for key in ("metadata-chunks", "initialized-chunks"):
            if isinstance(body.get(key), list):
                body[key] = tuple(body[key])
        try:
            return cls(**{_RULE_KEYS[key]: value for key, value in body.items()})
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}.{error.message}") from None

    def to_plain(self) -> dict[str, Any]:
        """Write the target and the conditions that there are."""
        found = {key: getattr(self, name) for key, name in _RULE_KEYS.items()}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in found.items()
            if value is not None
        }


_RULE_KEYS = {
    name.replace("_", "-"): name
    for name in ("path", "metadata_chunks", "initialized_chunks", "target")
}


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

    max_manifest_size: int = 50_000
    max_manifests: int = 1
    arrays: tuple[str, ...] = (".*/time", ".*/latitude", ".*/longitude")
    patterns: tuple[PathPattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = f"{_KEY}.preload"
        check_number(self.max_manifest_size, 0, f"{key}.max-manifest-size")
        check_number(self.max_manifests, 0, f"{key}.max-manifests")
        _settle(self, "arrays", entries(self.arrays, f"{key}.arrays"))
        patterns = tuple(
            _pattern(text, f"{key}.arrays[{number}].path")
            for number, text in enumerate(self.arrays)
        )
        _settle(self, "patterns", patterns)

    def selects(self, paths: Sequence[str]) -> list[bool]:
        """For each path of an array, whether its manifests are to be loaded."""
        found = [False] * len(paths)
        for pattern in self.patterns:
            found = [a or b for a, b in zip(found, pattern.matches_all(paths), strict=True)]
        return found

    @classmethod
    def from_plain(cls, found: Any, ignored: list[str] | None = None) -> ManifestPreload:
        """Read the value of ``preload``."""
        where = f"{_KEY}.preload"
        names = {
            name.replace("_", "-"): name
            for name in ("max_manifest_size", "max_manifests", "arrays")
        }
        body = dict(known_members({} if found is None else found, names, where, ignored))
        if "arrays" in body:
            body["arrays"] = tuple(
                _path_of(each, f"{where}.arrays[{number}]", ignored)
                for number, each in enumerate(entries(body["arrays"], f"{where}.arrays"))
            )
        return cls(**{names[key]: value for key, value in body.items()})

    def to_plain(self) -> dict[str, Any]:
        """Write all of it."""
        return {
            "max-manifest-size": self.max_manifest_size,
            "max-manifests": self.max_manifests,
            "arrays": [{"path": text} for text in self.arrays],
        }


_PARTS = ("sets", "rules", "preload")


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

    sets: tuple[ManifestSet, ...] = _OPEN
    rules: tuple[ManifestRule, ...] = _OPEN
    preload: ManifestPreload = _OPEN
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = frozenset(name for name in _PARTS if getattr(self, name) is not _OPEN)
        _settle(self, "_given", given)
        _settle(self, "sets", _complete(self.sets) if "sets" in given else _DEFAULT_SETS)
        names = {each.name for each in self.sets}
        defaults = tuple(rule for rule in _DEFAULT_RULES if rule.target in names)
        rules = _values(self.rules, ManifestRule, "rules") if "rules" in given else defaults
        _settle(self, "rules", rules)
        _settle(self, "preload", self.preload if "preload" in given else ManifestPreload())
        if not isinstance(self.preload, ManifestPreload):
            raise InvalidInputError(
                f"{_KEY}.preload must be a ManifestPreload, not {shown(self.preload)}"
            )
        self._check_targets()
        self._check_overflow()

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
        body = known_members({} if found is None else found, _PARTS, _KEY, ignored)
        parts: dict[str, Any] = {}
        if "sets" in body:
            named = list(_named_bodies(body["sets"]))
            parts["sets"] = tuple(
                ManifestSet.from_plain(name, inner, ignored) for name, inner in named
            )
        if "rules" in body:
            where = f"{_KEY}.rules"
            parts["rules"] = tuple(
                ManifestRule.from_plain(each, f"{where}[{number}]", ignored)
                for number, each in enumerate(entries(body["rules"], where))
            )
        if "preload" in body:
            parts["preload"] = ManifestPreload.from_plain(body["preload"], ignored)
        return cls(**parts)

    def to_plain(self) -> dict[str, Any]:
        """Write all of it, as it stands under ``chunk-manifests``."""
        return {
            "sets": [each.to_plain() for each in self.sets],
            "rules": [each.to_plain() for each in self.rules],
            "preload": self.preload.to_plain(),
        }

    def _check_targets(self) -> None:
        names = [each.name for each in self.sets]
        for number, rule in enumerate(self.rules):
            if rule.target not in names:
                raise InvalidInputError(
                    f"{_KEY}.rules[{number}].target: there is no set {short_key(rule.target)!r}; "
                    f"{closest(rule.target, names)}"
                )
        for each in self.sets:
            if each.overflow_to is not None and each.overflow_to not in names:
                raise InvalidInputError(
                    f"{_KEY}.sets.{each.name}.overflow-to: there is no set {short_key(each.overflow_to)!r}; "
                    f"{closest(each.overflow_to, names)}"
                )

    def _check_overflow(self) -> None:
        following = {each.name: each.overflow_to for each in self.sets}
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


def _complete(sets: Any) -> tuple[ManifestSet, ...]:
    """Check that no name comes twice, and add the default set."""
    found = _values(sets, ManifestSet, "sets")
    twice = [name for name, count in Counter(each.name for each in found).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{_KEY}.sets.{twice[0]} is there twice; give each set a name of its own"
        )
    if DEFAULT_SET in {each.name for each in found}:
        return found
    return (*found, _DEFAULT_SETS[-1])


def _values(found: Any, kind: type[Any], part: str) -> tuple[Any, ...]:
    """Check what was given from Python."""
    values = entries(found, f"{_KEY}.{part}")
    for number, each in enumerate(values):
        if not isinstance(each, kind):
            raise InvalidInputError(
                f"{_KEY}.{part}[{number}] must be a {kind.__name__}, not {shown(each)}"
            )
    return values


def _named_bodies(found: Any) -> Iterator[tuple[Any, Any]]:
    """Read a list of mappings with one key each."""
    for number, each in enumerate(entries(found, f"{_KEY}.sets")):
        if not isinstance(each, dict) or len(each) != 1:
            raise InvalidInputError(
                f"{_KEY}.sets[{number}] must be the name of one set with its settings below it, "
                f"not {shown(each)}"
            )
        yield from each.items()


def _path_of(found: Any, where: str, ignored: list[str] | None) -> Any:
    body = known_members(found, ("path",), where, ignored)
    if "path" not in body:
        raise InvalidInputError(f"{where}.path is missing: name the arrays by a regular expression")
    return body["path"]


def _pattern(text: Any, key: str) -> PathPattern:
    try:
        return PathPattern(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{key} {error.message}") from error


def _settle(value: Any, name: str, settled: Any) -> None:
    """Set an attribute of a frozen value that is being made."""
    object.__setattr__(value, name, settled)


def _check_range(value: Any, key: str) -> None:
    if value is None:
        return
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidInputError(
            f"{key} must be two numbers, such as [0, 500], of which each may be null, not {shown(value)}"
        )
    start, stop = value
    for each in value:
        if each is not None:
            check_number(each, 0, key)
    if stop is not None and stop <= (start or 0):
        raise InvalidInputError(
            f"{key} is {shown(list(value))}, in which there is no number: the second one is beyond the range; "
            "let it be greater than the first"
        )


_DEFAULT_SETS = (
    ManifestSet(name="coordinates", max_manifest_size=50_000, cardinality=1),
    ManifestSet(name="large", max_manifest_size=262_144, overflow_to=None),
    ManifestSet(name=DEFAULT_SET, max_manifest_size=_DEFAULT_SIZE),
)
_DEFAULT_RULES = (
    ManifestRule(metadata_chunks=(0, 5000), target="coordinates"),
    ManifestRule(metadata_chunks=(20_000_000, None), target="large"),
)
