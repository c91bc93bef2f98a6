"""The published schemas say what the code does, and every file that the code writes obeys them."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
import zarr
from jsonschema import Draft202012Validator

from icechunk_arrow import Repository, RepositoryConfig
from icechunk_arrow.core.manifest_settings import ManifestSettings
from icechunk_arrow.engine.published import main, published, with_tables
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import parse_key
from icechunk_arrow.formats.transaction import OPERATIONS
from icechunk_arrow.storage.scratch import SCRATCH
from tests.places import UNSYNCED

FOLDER = Path(__file__).parent.parent / "schemas"
EXPLAINED = {"optional", "description"}
"""What is said of a column, and does not stand in files."""
NAMES = {
    "attributes.json",
    "branch-entry.schema.json",
    "config.schema.json",
    "hint.schema.json",
    "ledger-entry.schema.json",
    "log-facts.schema.json",
    "manifest-wide.json",
    "manifest.json",
    "snapshot-facts.schema.json",
    "state.schema.json",
    "structure-wide.json",
    "structure.json",
    "tag.schema.json",
    "transaction.json",
}


def validator(name: str) -> Draft202012Validator:
    """The validator of a published JSON Schema."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.schema.json").read_text()))


def test_the_published_files_are_those_that_the_code_gives(tmp_path: Path) -> None:
    """A change of the format shows as a change in schemas/; ``make schemas`` writes it."""
    main(str(tmp_path))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    standing = {path.name: path.read_text() for path in FOLDER.glob("*.json")}

    assert written == published()
    assert standing.keys() == NAMES
    assert standing == written, "run `make schemas`, and look at what changed on disk"


@pytest.mark.parametrize("name", sorted(n for n in NAMES if n.endswith(".schema.json")))
def test_json_schemas_are_valid_and_explained(name: str) -> None:
    """Each is a schema of draft 2020-12 with a title and a description."""
    schema = json.loads((FOLDER / name).read_text())

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]
    assert schema["description"]
    Draft202012Validator.check_schema(schema)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two repositories with every kind of file, one for each catalog."""
    root = tmp_path_factory.mktemp("schemas")
    for catalog in ("branches", "state"):
        config = RepositoryConfig(
            inline_attributes_threshold_bytes=10,
            checksum_chunks=True,
        )
        repo = Repository.create(
            str(root / catalog), config=config, storage_settings=UNSYNCED, catalog=catalog
        )
        session = repo.writable_session("main")
        group = zarr.create_group(session.store)
        array = group.create_array("a", shape=(70_000, 4), chunks=(1000, 4), dtype="f8")
        array[:3000] = np.random.default_rng(5).random((3000, 4))
        array.attrs["title"] = "long enough to stand elsewhere"
        zarr.create_array(session.store, name="s", shape=(), dtype="i4")[...] = 5
        store = session.store
        store.set_virtual_ref("a/c/69/0", "s3://bucket/key", offset=5, length=2**33)
        first = session.commit(
            "äöü \N{ICE CUBE}", metadata={"author": "Ann", "runs": [1, 2.5, None]}
        )
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a").resize((10, 4))
        second = session.commit("shrink")
        repo.create_branch("dev", first)
        repo.reset_branch("dev", second)
        repo.delete_branch("dev")
        repo.create_tag("v1", first)
        repo.create_tag("v2", second)
        repo.delete_tag("v2")
        if catalog == "branches":
            repo.export_state()
    return [root / "branches", root / "state"]


def files_of(place: Path) -> dict[str, bytes]:
    """Every file of a repository, by key; what is unfinished is no part of it."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.relative_to(place).parts[0] != SCRATCH
    }


def test_every_json_file_obeys_its_schema(places: list[Path]) -> None:
    """Branch entries, tags, state files and configurations as written by the code."""
    schemas = {
        "branch": "branch-entry",
        "tag": "tag",
        "tag-deleted": "tag",
        "state": "state",
        "config": "config",
    }
    seen = set()
    for place in places:
        for key, data in files_of(place).items():
            parsed = parse_key(key)
            assert parsed is not None, key
            if parsed.role in schemas:
                validator(schemas[parsed.role]).validate(yaml.safe_load(data))
                seen.add((place.name, parsed.role))

    assert seen == {
        *((("branches", role)) for role in schemas),
        ("state", "state"),
        ("state", "branch"),
        ("state", "config"),
    }


def test_every_snapshot_has_facts_that_obey_the_schema(places: list[Path]) -> None:
    """The JSON in the footers of structure files."""
    count = 0
    for place in places:
        for path in (place / "s").iterdir():
            facts = pq.read_metadata(path).metadata[b"icechunk.snapshot"]
            validator("snapshot-facts").validate(json.loads(facts))
            count += 1

    assert count == 6


def test_every_log_begins_with_facts_that_obey_the_schema(places: list[Path]) -> None:
    """What readers see that see no footers."""
    count = 0
    for place in places:
        for path in (place / "t").iterdir():
            facts = pq.read_table(path)["snapshot"][0].as_py()
            validator("log-facts").validate(json.loads(facts))
            count += 1

    assert count == 4


def columns(fields: Any) -> list[Any]:
    """Columns as they are published."""
    found = []
    for field in fields:
        kind = str(field.type).split("<", maxsplit=1)[0]
        size = f"[{field.type.list_size}]" if kind == "fixed_size_list" else ""
        entry = {"name": field.name, "type": kind + size, "nullable": field.nullable}
        if field.metadata:
            entry["metadata"] = {k.decode(): v.decode() for k, v in field.metadata.items()}
        children = columns(field.type.field(i) for i in range(field.type.num_fields))
        found.append({**entry, "children": children} if children else entry)
    return found


def test_every_parquet_file_has_published_columns(places: list[Path]) -> None:
    """As a plain reader sees them: all required columns in order, optional ones where used."""
    roles = {"s": "structure", "i": "manifest", "a": "attributes", "t": "transaction"}
    seen = set()
    for place in places:
        for key, data in files_of(place).items():
            if not key.endswith(".parquet"):
                continue
            footer = pq.read_metadata(io.BytesIO(data)).metadata
            width = "-wide" if footer.get(b"icechunk.width") == b"wide" else ""
            name = roles[key[0]] + width
            published_columns = json.loads((FOLDER / f"{name}.json").read_text())["columns"]
            found = columns(pq.read_schema(io.BytesIO(data)).remove_metadata())
            names = {column["name"] for column in found}
            expected = [
                {name: value for name, value in column.items() if name not in EXPLAINED}
                for column in published_columns
                if not column["optional"] or column["name"] in names
            ]
            assert found == expected, key
            assert name.partition("-")[0] != "manifest" or all(
                column["description"] for column in published_columns
            )
            seen.add(name)

    assert seen >= {"structure", "structure-wide", "manifest-wide", "attributes", "transaction"}


REFUSED: dict[str, list[Any]] = {
    "branch-entry": [
        {},
        {"snapshot": "x"},
        {"snapshot": "VY76P925PRY57WFEK410", "frozen": True},
        {"snapshot": "VY76P925PRY57WFEK410", "deleted": True},
        {"snapshot": "VY76P925PRY57WFEK410", "write_id": 5},
    ],
    "tag": [{"snapshot": "VY76P925PRY57WFEK410"}, {"write_id": "VY76P925PRY57WFEK410"}],
    "state": [
        {"id": "VY76P925PRY57WFEK410", "generation": 0},
        {"id": "VY76P925PRY57WFEK410", "generation": -1, "snapshots": [{}]},
    ],
    "config": [{"inline-chunk-treshold-bytes": 5}, {"checksum-chunks": 1}, {"storage": None}],
    "snapshot-facts": [{}, {"metadata": {}}],
    "log-facts": [{}, {"id": "x"}],
    "hint": [{}, {"sequence": -1, "snapshot": "VY76P925PRY57WFEK410"}],
    "ledger-entry": [{}, {"log": "VY76P925PRY57WFEK410"}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_schemas_refuse_what_the_code_refuses(name: str) -> None:
    """A schema that lets everything pass would prove nothing."""
    for value in REFUSED[name]:
        assert not validator(name).is_valid(value)


def settings_of(schema: dict[str, Any], settings: type[Any]) -> list[Any]:
    """Every setting with its schema, as (key, schema, class, name)."""
    found = []
    hints = typing.get_type_hints(settings)
    for field in (f for f in dataclasses.fields(settings) if f.init):
        name = field.name.replace("_", "-")
        inner = schema["properties"][name]
        if hints[field.name] is ManifestSettings:  # tests/core/test_manifest_settings.py
            continue
        found.append((name, inner, settings, field.name))
    assert schema["properties"].keys() == {
        field.name.replace("_", "-")
        for field in (f for f in dataclasses.fields(settings) if f.init)
    }
    return found


CONFIG = json.loads((FOLDER / "config.schema.json").read_text())


@pytest.mark.parametrize("setting", settings_of(CONFIG, RepositoryConfig), ids=lambda s: s[0])
def test_limits_of_settings_are_those_that_the_code_checks(setting: Any) -> None:
    """At a published limit a value is taken, beyond it refused; each is explained, with its default."""
    key, schema, settings, name = setting
    assert schema["description"], key
    assert schema["default"] == getattr(settings(), name)
    for limit, step in (("minimum", -1), ("maximum", 1)):
        if limit in schema:
            settings(**{name: schema[limit]} | _room(name))
            with pytest.raises(InvalidInputError):
                settings(**{name: schema[limit] + step} | _room(name))
    if "exclusiveMinimum" in schema:
        with pytest.raises(InvalidInputError):
            settings(**{name: schema["exclusiveMinimum"]})
    if schema["type"] in {"integer", "number"}:
        assert {"minimum", "exclusiveMinimum"} & schema.keys()


def _room(name: str) -> dict[str, int]:
    """What another setting must be for a limit to be reached."""
    return {"packed_chunk_threshold_bytes": 0} if name == "chunk_file_size_bytes" else {}


def test_a_whole_configuration_goes_there_and_back() -> None:
    """What ``to_yaml`` writes obeys the schema and is read as the same."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=5)
    text = config.to_yaml()

    validator("config").validate(yaml.safe_load(text))
    assert RepositoryConfig.from_yaml(text) == config
    assert RepositoryConfig.from_yaml(json.dumps(yaml.safe_load(text))) == config


SPECIFICATION = (FOLDER / "README.md").read_text()


def test_rules_have_numbers_of_their_own() -> None:
    """Each rule can be cited: none is missing, none is there twice, and none is cited that is not there."""
    defined = [int(n) for n in re.findall(r"^- \*\*R(\d+)\*\*", SPECIFICATION, re.MULTILINE)]
    cited = {int(n) for n in re.findall(r"\bR(\d+)\b", SPECIFICATION)}

    assert sorted(defined) == list(range(1, len(defined) + 1))
    assert cited <= set(defined)


def test_sections_that_the_code_points_to_exist() -> None:
    """A docstring's ``schemas/README.md#…`` leads somewhere, and so does the page's own contents list."""
    headings = re.findall(r"^##+ (.+)$", SPECIFICATION, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    package = FOLDER.parent / "icechunk_arrow"
    pointed = {
        anchor
        for path in package.rglob("*.py")
        for anchor in re.findall(r"schemas/README\.md#([a-z-]+)", path.read_text())
    }

    assert len(pointed) >= 10
    assert pointed | set(re.findall(r"\(#([a-z-]+)\)", SPECIFICATION)) <= anchors


def test_the_specification_names_every_column_setting_and_operation() -> None:
    """What is published is explained."""
    names = {name for text in published().values() for name in re.findall(r'"name": "(\w+)"', text)}
    names |= set(CONFIG["properties"])
    names |= set(OPERATIONS)

    assert {name for name in names if name not in SPECIFICATION} == set()


def test_the_tables_of_keys_are_those_of_the_declarations() -> None:
    """Every key with what it takes, its default and its meaning; ``make schemas`` writes them."""
    assert with_tables(SPECIFICATION) == SPECIFICATION, (
        "run `make schemas`, and look at what changed"
    )
    manifests = CONFIG["properties"]["chunk-manifests"]["properties"]
    a_set = manifests["sets"]["items"]["additionalProperties"]["properties"]
    for keys in (CONFIG["properties"], a_set, manifests["rules"]["items"]["properties"]):
        assert [
            key
            for key in keys
            if f"| `{key}`" not in SPECIFICATION and f"also `{key}`" not in SPECIFICATION
        ] == []
