"""Manifest settings: the documented configurations, both ways, and an error for everything else."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from icechunk_arrow.core.manifest_settings import (
    ManifestPreload,
    ManifestRule,
    ManifestSet,
    ManifestSettings,
)
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.engine.published import published
from icechunk_arrow.errors import InvalidInputError

EXAMPLE = """
chunk-manifests:
  sets:
    - coord1:
        max-manifest-size: 10000
        arrays-per-manifest: null
        overflow-to: coord2
        cardinality: 2
    - coord2:
        max-manifest-size: 10000
    - big-array:
        max-manifest-size: null
        arrays-per-manifest: 1
        cardinality: null
    - default:
  rules:
    - path: .*/(latitude|longitude|time)
      metadata-chunks: [0, 500]
      target: coord1
    - metadata-chunks: [0, 200]
      target: coord2
    - metadata-chunks: [2000000, null]
      target: big-array
  preload:
    max-manifest-size: 50000
    max-manifests: 10
    arrays:
      - path: .*/time
      - path: .*/latitude
      - path: .*/longitude
"""
"""A configuration with every kind of set."""

OLD_DEFAULTS = """
chunk-manifests:
  sets:
    - coordinates:
        max-manifest-size: 50000
        cardinality: 1
        max-arrays-per-manifest: null
        overflow-to: default
    - default:
        max-manifest-size: 1000000
        cardinality: null
        max-arrays-per-manifest: null
        overflow-to: null
  rules:
    - metadata-chunks: [0, 5000]
      path: .*
      target: coordinates
  preload:
    max-manifest-size: 50000
    max-manifests: 1
    arrays:
      - path: .*/time
      - path: .*/latitude
      - path: .*/longitude
"""
"""The defaults of the design that this follows."""

SCHEMA = json.loads(published()["config.schema.json"])["properties"]["chunk-manifests"]


def read(text: str) -> ManifestSettings:
    """The manifest settings of a configuration file."""
    return RepositoryConfig.from_yaml(text).chunk_manifests


def test_every_setting_of_the_example_is_read() -> None:
    """What is left out has its documented default: one manifest, overflow to ``default``."""
    assert read(EXAMPLE) == ManifestSettings(
        sets=(
            ManifestSet(
                name="coord1", max_manifest_size=10_000, overflow_to="coord2", cardinality=2
            ),
            ManifestSet(
                name="coord2", max_manifest_size=10_000, overflow_to="default", cardinality=1
            ),
            ManifestSet(
                name="big-array",
                max_manifest_size=None,
                arrays_per_manifest=1,
                cardinality=None,
                overflow_to="default",
            ),
            ManifestSet(
                name="default", max_manifest_size=65_536, cardinality=None, overflow_to=None
            ),
        ),
        rules=(
            ManifestRule(
                path=".*/(latitude|longitude|time)", metadata_chunks=(0, 500), target="coord1"
            ),
            ManifestRule(metadata_chunks=(0, 200), target="coord2"),
            ManifestRule(metadata_chunks=(2_000_000, None), target="big-array"),
        ),
        preload=ManifestPreload(
            max_manifest_size=50_000,
            max_manifests=10,
            arrays=(".*/time", ".*/latitude", ".*/longitude"),
        ),
    )


def test_the_other_word_for_arrays_per_manifest_is_read() -> None:
    """``max-arrays-per-manifest`` is the same setting, also where it is a number."""
    assert read(OLD_DEFAULTS).sets == (
        ManifestSet(name="coordinates", max_manifest_size=50_000),
        ManifestSet(name="default", max_manifest_size=1_000_000),
    )
    (found, _) = ManifestSettings.from_plain(
        {"sets": [{"x": {"max-arrays-per-manifest": 7}}], "rules": []}
    ).sets

    assert (found.arrays_per_manifest, found.max_manifest_size) == (7, None)


def test_nothing_configured_is_the_defaults() -> None:
    """However nothing is written."""
    expected = ManifestSettings()

    assert [(each.name, each.max_manifest_size, each.cardinality) for each in expected.sets] == [
        ("coordinates", 50_000, 1),
        ("large", 262_144, None),
        ("default", 65_536, None),
    ]
    assert [each.overflow_to for each in expected.sets] == ["default", None, None]
    assert [(each.target, each.metadata_chunks) for each in expected.rules] == [
        ("coordinates", (0, 5000)),
        ("large", (20_000_000, None)),
    ]
    assert expected.preload == read(OLD_DEFAULTS).preload
    for text in (
        "",
        "{}",
        "chunk-manifests:",
        "chunk-manifests: {}",
        "chunk-manifests: {preload: }",
    ):
        assert read(text) == expected
    assert ManifestSettings.from_plain(None) == expected


def test_an_empty_set_body_is_the_defaults_of_a_set() -> None:
    """The same in the file and from Python, for a named set and for ``default``."""
    for body in (None, {}, {"arrays-per-manifest": None}):
        settings = ManifestSettings.from_plain({"sets": [{"x": body}, {"default": body}]})

        assert settings.sets == (ManifestSet(name="x"), ManifestSet(name="default"))
    assert settings.sets == (
        ManifestSet(
            name="x",
            max_manifest_size=65_536,
            arrays_per_manifest=None,
            cardinality=1,
            overflow_to="default",
            split_along=None,
        ),
        ManifestSet(
            name="default",
            max_manifest_size=65_536,
            arrays_per_manifest=None,
            cardinality=None,
            overflow_to=None,
        ),
    )
    assert ManifestSet(name="x", overflow_to=None).cardinality is None


def test_each_part_replaces_its_own_default() -> None:
    """The default set is always there, last if it is not named; default rules follow the sets."""
    only_sets = ManifestSettings.from_plain({"sets": [{"mine": {"cardinality": 3}}]})
    first = ManifestSettings.from_plain({"sets": [{"default": None}, {"coordinates": None}]})
    only_rules = ManifestSettings.from_plain({"rules": []})
    only_preload = ManifestSettings.from_plain({"preload": {"max-manifests": 4}})

    assert [each.name for each in only_sets.sets] == ["mine", "default"]
    assert only_sets.rules == ()
    assert [each.name for each in first.sets] == ["default", "coordinates"]
    assert first.rules == ManifestSettings().rules[:1]
    assert (only_rules.rules, only_rules.sets) == ((), ManifestSettings().sets)
    assert only_preload == ManifestSettings(preload=ManifestPreload(max_manifests=4))


def test_what_is_named_overrides_and_nothing_else() -> None:
    """Parts of the saved settings stay where the other ones do not name them."""
    saved = RepositoryConfig(chunk_manifests=read(EXAMPLE), checksum_chunks=True)
    preload = ManifestSettings(preload=ManifestPreload(max_manifests=0))
    over = saved.overridden_by(RepositoryConfig(chunk_manifests=preload))
    twice = over.overridden_by(RepositoryConfig(chunk_manifests=ManifestSettings(rules=())))

    assert over.checksum_chunks
    assert over.chunk_manifests == replace(saved.chunk_manifests, preload=preload.preload)
    assert twice.chunk_manifests == replace(over.chunk_manifests, rules=())
    assert saved.overridden_by(RepositoryConfig(checksum_chunks=False)).chunk_manifests == read(
        EXAMPLE
    )
    nothing = RepositoryConfig(chunk_manifests=ManifestSettings())
    assert saved.overridden_by(nothing) == saved
    with pytest.raises(InvalidInputError, match=r"rules\[0\]\.target: there is no set 'coord1'"):
        saved.overridden_by(RepositoryConfig(chunk_manifests=ManifestSettings(sets=())))


def test_default_rules_follow_sets_that_override() -> None:
    """Sets given at opening over nothing saved do not meet default rules that lead nowhere."""
    sets = ManifestSettings(sets=(ManifestSet(name="default", max_manifest_size=7),))
    over = RepositoryConfig().overridden_by(RepositoryConfig(chunk_manifests=sets))

    assert over.chunk_manifests == sets
    assert over.chunk_manifests.rules == ()


numbers = st.integers(1, 2**63 - 1)
ends = st.none() | st.integers(0, 1000)
spans = st.tuples(ends, st.none() | st.integers(1001, 2**63 - 1))
texts = st.text(st.sampled_from("abé#:-\"' 1{}&*"), min_size=1, max_size=8)
paths = st.sampled_from([".*/time", "/[a-z]+", r"/a\d", "/x"])


@st.composite
def settings(draw: st.DrawFn) -> ManifestSettings:
    """Settings with anything in them that is allowed."""
    names = draw(st.lists(texts, max_size=5, unique=True))
    names = [name for name in names if name != "default"]
    sets = []
    for place, name in enumerate(names):
        to = draw(st.sampled_from([None, "default", *names[place + 1 :]]))
        by_size = draw(st.booleans())
        sets.append(
            ManifestSet(
                name=name,
                max_manifest_size=draw(numbers) if by_size else None,
                arrays_per_manifest=None if by_size else draw(numbers),
                overflow_to=to,
                cardinality=None if to is None else draw(st.none() | numbers),
                split_along=draw(st.none() | st.integers(0, 5) | texts),
            )
        )
    if draw(st.booleans()):
        sets.insert(0, ManifestSet(name="default", max_manifest_size=draw(numbers)))
    rules = draw(
        st.lists(
            st.builds(
                ManifestRule,
                target=st.sampled_from(["default", *names]),
                path=st.none() | paths,
                metadata_chunks=st.none() | spans,
                initialized_chunks=st.none() | spans,
            ),
            max_size=3,
        )
    )
    preload = draw(
        st.builds(
            ManifestPreload,
            max_manifest_size=st.integers(0, 9),
            max_manifests=st.integers(0, 9),
            arrays=st.lists(paths, max_size=3).map(tuple),
        )
    )
    return ManifestSettings(sets=tuple(sets), rules=tuple(rules), preload=preload)


@given(settings())
def test_what_is_written_is_read_as_the_same(found: ManifestSettings) -> None:
    """As YAML and as JSON, through a pickle and a copy; it is hashable, and obeys the schema."""
    config = RepositoryConfig(chunk_manifests=found)
    text = config.to_yaml()

    assert RepositoryConfig.from_yaml(text) == config
    assert RepositoryConfig.from_yaml(json.dumps(yaml.safe_load(text))) == config
    assert pickle.loads(pickle.dumps(found)) == found == copy.deepcopy(found)
    assert {found: 1}[ManifestSettings.from_plain(found.to_plain())] == 1
    assert eval(repr(found)) == found
    Draft202012Validator(SCHEMA).validate(found.to_plain())


def a_set(body: str) -> str:
    """One set with this body."""
    return f"{{sets: [{{x: {{{body}}}}}], rules: []}}"


BAD = [
    ("[1]", r"chunk-manifests must be a mapping"),
    ("{set: []}", r"'chunk-manifests\.set'; did you mean 'sets'"),
    ("{sets: {x: {}}}", r"chunk-manifests\.sets must be a list"),
    ("{sets: }", r"chunk-manifests\.sets must be a list"),
    ("{sets: [x]}", r"chunk-manifests\.sets\[0\] must be the name of one set"),
    ("{sets: [{x: , y: }]}", r"chunk-manifests\.sets\[0\] must be the name of one set"),
    ("{sets: [{}]}", r"chunk-manifests\.sets\[0\] must be the name of one set"),
    ("{sets: [{5: }]}", r"the key '5', which is no text"),
    ('{sets: [{"a\\nb": }]}', r"the name of a set is a text"),
    ("{sets: [{'': }]}", r"the name of a set is a text"),
    ("{sets: [{x: 5}]}", r"chunk-manifests\.sets\.x must be a mapping"),
    ("{sets: [{x: }, {y: }, {x: }]}", r"chunk-manifests\.sets\.x is there twice"),
    ("{sets: [{default: }, {default: }]}", r"chunk-manifests\.sets\.default is there twice"),
    (a_set("max-manifest-sise: 1"), r"'chunk-manifests\.sets\.x\.max-manifest-sise'; did you mean"),
    (a_set("'5': 1"), r"'chunk-manifests\.sets\.x\.5'; known are: max-manifest-size"),
    (a_set("max-manifest-size: 0"), r"chunk-manifests\.sets\.x\.max-manifest-size must be a whole"),
    (a_set("max-manifest-size: true"), r"x\.max-manifest-size must be a whole number"),
    (a_set("max-manifest-size: 1.5"), r"x\.max-manifest-size must be a whole number"),
    (a_set("max-manifest-size: '1'"), r"x\.max-manifest-size must be a whole number"),
    (a_set(f"max-manifest-size: {2**63}"), r"x\.max-manifest-size must be a whole number"),
    (a_set("arrays-per-manifest: -1"), r"x\.arrays-per-manifest must be a whole number from 1"),
    (a_set("cardinality: 0"), r"chunk-manifests\.sets\.x\.cardinality must be a whole number"),
    (a_set("max-manifest-size: null"), r"sets\.x has neither .* give a number"),
    (a_set("max-manifest-size: 1, arrays-per-manifest: 1"), r"sets\.x has both .* remove one"),
    (a_set("arrays-per-manifest: 1, max-arrays-per-manifest: 1"), r"two words .* remove one"),
    (a_set("overflow-to: 5"), r"chunk-manifests\.sets\.x\.overflow-to must be the name"),
    (
        a_set("overflow-to: defalt"),
        r"sets\.x\.overflow-to: there is no set 'defalt'; did .*default",
    ),
    (
        a_set("overflow-to: null, cardinality: 2"),
        r"sets\.x\.cardinality is 2, but overflow-to is null",
    ),
    (a_set("split-along: -1"), r"chunk-manifests\.sets\.x\.split-along must be"),
    (a_set("split-along: true"), r"chunk-manifests\.sets\.x\.split-along must be"),
    (a_set("split-along: ''"), r"chunk-manifests\.sets\.x\.split-along must be"),
    (a_set("split-along: [1]"), r"chunk-manifests\.sets\.x\.split-along must be"),
    (a_set("overflow-to: x"), r"chunk-manifests\.sets\.x\.overflow-to leads in a circle: x -> x"),
    (
        "{sets: [{a: {overflow-to: b}}, {b: {overflow-to: c}}, {c: {overflow-to: b}}], rules: []}",
        r"sets\.c\.overflow-to leads in a circle: b -> c -> b",
    ),
    ("{sets: [{default: {cardinality: 1}}]}", r"sets\.default\.cardinality must be null"),
    ("{sets: [{default: {overflow-to: x}}, {x: }]}", r"sets\.default\.overflow-to must be null"),
    ("{sets: [{default: {max-manifest-size: }}]}", r"sets\.default has neither"),
    ("{rules: {}}", r"chunk-manifests\.rules must be a list"),
    ("{rules: [5]}", r"chunk-manifests\.rules\[0\] must be a mapping"),
    ("{rules: [{}]}", r"chunk-manifests\.rules\[0\]\.target is missing"),
    ("{rules: [{target: 5}]}", r"chunk-manifests\.rules\[0\]\.target must be the name"),
    ("{rules: [{target: lrge}]}", r"rules\[0\]\.target: there is no set 'lrge'; did .*'large'"),
    ("{rules: [{target: zz}]}", r"there is no set 'zz'; known are: coordinates, large, default"),
    ("{rules: [{target: large, pth: x}]}", r"'chunk-manifests\.rules\[0\]\.pth'; did .*'path'"),
    ("{rules: [{target: large, path: '('}]}", r"chunk-manifests\.rules\[0\]\.path is not a reg"),
    ("{rules: [{target: large, path: ''}]}", r"chunk-manifests\.rules\[0\]\.path must be a reg"),
    ("{rules: [{target: large, path: 5}]}", r"chunk-manifests\.rules\[0\]\.path must be a reg"),
    ("{rules: [{target: large, metadata-chunks: 5}]}", r"rules\[0\]\.metadata-chunks must be two"),
    ("{rules: [{target: large, metadata-chunks: [1]}]}", r"metadata-chunks must be two numbers"),
    ("{rules: [{target: large, metadata-chunks: [1, 2, 3]}]}", r"metadata-chunks must be two"),
    ("{rules: [{target: large, metadata-chunks: [-1, 2]}]}", r"metadata-chunks must be a whole"),
    ("{rules: [{target: large, metadata-chunks: [0, 1.5]}]}", r"metadata-chunks must be a whole"),
    (
        "{rules: [{target: large, metadata-chunks: [5, 5]}]}",
        r"metadata-chunks is \[5, 5\], in which",
    ),
    ("{rules: [{target: large, metadata-chunks: [null, 0]}]}", r"in which there is no number"),
    ("{rules: [{target: large, initialized-chunks: [9, 2]}]}", r"initialized-chunks is \[9, 2\]"),
    ("{preload: [1]}", r"chunk-manifests\.preload must be a mapping"),
    ("{preload: {max-manifest: 1}}", r"'chunk-manifests\.preload\.max-manifest'; did you mean"),
    ("{preload: {max-manifests: -1}}", r"preload\.max-manifests must be a whole number from 0"),
    ("{preload: {max-manifests: null}}", r"preload\.max-manifests must be a whole number"),
    ("{preload: {max-manifest-size: x}}", r"preload\.max-manifest-size must be a whole number"),
    ("{preload: {arrays: .*}}", r"chunk-manifests\.preload\.arrays must be a list"),
    ("{preload: {arrays: [.*]}}", r"chunk-manifests\.preload\.arrays\[0\] must be a mapping"),
    ("{preload: {arrays: [{}]}}", r"chunk-manifests\.preload\.arrays\[0\]\.path is missing"),
    ("{preload: {arrays: [{path: '['}]}}", r"preload\.arrays\[0\]\.path is not a regular"),
    ("{preload: {arrays: [{pat: x}]}}", r"'chunk-manifests\.preload\.arrays\[0\]\.pat'; did you"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[text for text, _ in BAD])
def test_whatever_is_wrong_is_named_by_its_key(text: str, message: str) -> None:
    """Nothing wrong is passed over, and the message says what to do."""
    with pytest.raises(InvalidInputError, match=message):
        read(f"chunk-manifests: {text}")


BEYOND_A_SCHEMA = (
    "there twice",
    "two words",
    "circle",
    "there is no set",
    "no number",
    "in which",
    "initialized-chunks is",
    "has both",
    "has neither",
    "but overflow",
    "is not a reg",
    "must be null",
    "name of a set",
)
"""Words of messages about what takes several settings together, or an engine, to see."""


def test_the_schema_refuses_what_the_code_refuses() -> None:
    """Except what takes several settings together, or an engine, to see."""
    validator = Draft202012Validator(SCHEMA)
    checked = 0
    for text, message in BAD:
        if any(words in message.replace("\\", "") for words in BEYOND_A_SCHEMA):
            continue
        if str(2**63) not in text and "5:" not in text:  # no upper limit, no keys but texts
            assert not validator.is_valid(yaml.safe_load(text)), text
            checked += 1

    assert checked > 30
    for text in (EXAMPLE, OLD_DEFAULTS, "chunk-manifests:"):
        validator.validate(yaml.safe_load(text)["chunk-manifests"])


def test_the_schema_gives_the_defaults() -> None:
    """Every part has its default there, and every setting is explained."""
    found = {name: part["default"] for name, part in SCHEMA["properties"].items()}
    explained = json.dumps(SCHEMA)

    assert ManifestSettings.from_plain(found) == ManifestSettings()
    assert "None" not in explained
    a_set_schema = SCHEMA["properties"]["sets"]["items"]["additionalProperties"]
    for schema in (a_set_schema, SCHEMA["properties"]["rules"]["items"]):
        assert all(each["description"] for each in schema["properties"].values())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ManifestSettings, {"sets": ({"x": {}},)}),
        (ManifestSettings, {"sets": 5}),
        (ManifestSettings, {"rules": ("x",)}),
        (ManifestSettings, {"preload": {"max-manifests": 1}}),
        (ManifestRule, {"target": "x", "metadata_chunks": [0, 5]}),
        (ManifestPreload, {"arrays": ".*/time"}),
        (RepositoryConfig, {"chunk_manifests": {"sets": []}}),
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused_from_python_too(
    kind: type[Any], values: dict[str, Any]
) -> None:
    """Not later, when something is packed."""
    with pytest.raises(InvalidInputError):
        kind(**values)


@pytest.mark.parametrize(
    "text",
    [
        "{part}: {bomb}",
        "{part}: [{bomb}]",
        "sets: [{{x: {bomb}}}]",
        "sets: [{{x: {{overflow-to: {bomb}}}}}]",
        "sets: [{{x: {{split-along: {bomb}}}}}]",
        "sets: [{{x: {{max-manifest-size: {bomb}}}}}]",
        "rules: [{{target: {bomb}}}]",
        "rules: [{{target: large, path: {bomb}}}]",
        "rules: [{{target: large, metadata-chunks: {bomb}}}]",
        "rules: [{{target: large, metadata-chunks: [0, {bomb}]}}]",
        "preload: {{max-manifests: {bomb}}}",
        "preload: {{arrays: [{{path: {bomb}}}]}}",
        "{part}: {many}",
        "preload: {{arrays: {many}}}",
        "{part}: &a [*a]",
        "sets: [&a {{x: *a}}]",
        "rules: [&a {{target: *a}}]",
        "sets: [{{? [1, 2] : 3}}]",
        "sets: [{{{long}: }}]",
        "sets: [{{x: {{overflow-to: {long}}}}}]",
        "rules: [{{target: {long}}}]",
        "rules: [{{target: large, path: '[{long}'}}]",
        "rules: [{{target: large, {long}: 5}}]",
    ],
)
def test_a_hostile_configuration_is_a_short_error(text: str) -> None:
    """Aliases that grow without end, lists without end, values that hold themselves."""
    lines = ["&a0 [x, x]"] + [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb = f"[{', '.join(lines)}]"
    many = f"[{', '.join(['{}'] * 1001)}]"
    for part in ("sets", "rules", "preload") if "{part}" in text else ("",):
        filled = text.format(part=part, bomb=bomb, many=many, long="x" * 100_000)
        with pytest.raises(InvalidInputError) as caught:
            read(f"chunk-manifests: {{{filled}}}")

        assert len(str(caught.value)) < 2000


def test_preload_selects_by_any_of_its_patterns() -> None:
    """Whole paths; no pattern selects nothing."""
    paths = ["/time", "/a/time", "/timeless", "/b", "/c5"]

    assert ManifestPreload(arrays=(".*/time", "/c[0-9]")).selects(paths) == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert ManifestPreload(arrays=()).selects(paths) == [False] * 5
    assert ManifestPreload().selects([]) == []


def test_sets_are_found_by_name() -> None:
    """``get_set`` gives the set of a name."""
    assert read(EXAMPLE).get_set("coord2").max_manifest_size == 10_000
