"""Keys: whatever is made can be read again, and nothing else is taken for ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.core.ids import MAX_SEQUENCE
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats import layout
from icechunk_arrow.formats.layout import FileKind, ParsedKey, parse_key
from tests.formats.kinds import ID
from tests.formats.strategies import ids, ref_names

ROLES = {
    FileKind.STRUCTURE: ("s", "structure"),
    FileKind.MANIFEST: ("i", "manifest"),
    FileKind.ATTRIBUTES: ("a", "attributes"),
    FileKind.TRANSACTION: ("t", "transaction"),
    FileKind.CENSUS: ("g", "census"),
}


@given(st.sampled_from(FileKind), ids)
def test_keys_of_parquet_files(kind: FileKind, identifier: str) -> None:
    """One folder per kind; the key says kind and id again."""
    folder, role = ROLES[kind]
    key = layout.key_of(kind, identifier)

    assert key == f"{folder}/{identifier}.parquet"
    assert parse_key(key) == ParsedKey(role=role, identifier=identifier)
    assert layout.file_id(layout.file_name(identifier)) == identifier


@given(ids)
def test_keys_of_chunk_files(identifier: str) -> None:
    """A chunk file's name is its id."""
    assert layout.chunk_key(identifier) == f"c/{identifier}"
    assert parse_key(f"c/{identifier}") == ParsedKey(role="chunk", identifier=identifier)


@given(ref_names, st.integers(0, MAX_SEQUENCE))
def test_keys_of_references(name: str, sequence: int) -> None:
    """Branch entries and tags, with whatever names they may have."""
    assert layout.check_ref_name(name) == name
    key = layout.branch_key(name, sequence)
    assert key.startswith(layout.branch_folder(name))
    assert parse_key(key) == ParsedKey(role="branch", ref=name, sequence=sequence)
    assert parse_key(layout.tag_key(name)) == ParsedKey(role="tag", ref=name)
    assert parse_key(layout.tag_deleted_key(name)) == ParsedKey(role="tag-deleted", ref=name)
    for kind in ("branch", "tag"):
        assert layout.parse_folder(f"{kind}.{name}") == (kind, name)


def test_documented_keys() -> None:
    """The keys that the specification prints."""
    assert layout.branch_key("main", 0) == "refs/branch.main/ZZZZZZZZ.json"
    assert layout.branch_key("main", 100) == "refs/branch.main/ZZZZZZWV.json"
    assert layout.branch_key("main", MAX_SEQUENCE) == "refs/branch.main/00000000.json"
    assert layout.tag_key("v1") == "refs/tag.v1/ref.json"
    assert layout.tag_deleted_key("v1") == "refs/tag.v1/deleted.json"
    assert parse_key("config.yaml") == ParsedKey(role="config")
    assert parse_key("state.json") == ParsedKey(role="state")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "s/",
        "s/x.parquet",
        f"s/{ID}",
        f"s/{ID}.parquet/",
        f"s/{ID}.parquet\n",
        f"s/{ID.lower()}.parquet",
        f"s/{ID[:-1]}1.parquet",
        f"s/../{ID}.parquet",
        f"/s/{ID}.parquet",
        f"x/{ID}.parquet",
        f"sub/s/{ID}.parquet",
        f"c/{ID}.parquet",
        "c/..",
        "c/../../etc/passwd",
        f"c/{ID}/x",
        "refs/branch.main/",
        "refs/branch.main/ZZZZZZZZ",
        "refs/branch.main/ZZZZZZZ.json",
        "refs/branch.main/ZZZZZZZU.json",
        "refs/branch.main/zzzzzzzz.json",
        "refs/branch.main/ZZZZZZZZ.json.tmp",
        "refs/branch./ZZZZZZZZ.json",
        "refs/branch.a/b/ZZZZZZZZ.json",
        "refs/branch. a/ZZZZZZZZ.json",
        "refs/branch.a\n/ZZZZZZZZ.json",
        "refs/branch.a\\b/ZZZZZZZZ.json",
        "refs/twig.a/ZZZZZZZZ.json",
        "refs/tag.v1/ref.json.bak",
        "refs/tag./ref.json",
        "refs/tag.\x7f/deleted.json",
        "config.yml",
        "config.yaml ",
        "state.json.1",
        "xstate.json",
    ],
)
def test_hostile_keys_are_none_of_ours(key: str) -> None:
    """What only resembles a key is not read as one."""
    assert parse_key(key) is None


@given(st.text(st.sampled_from("sica/t.refsbranchg.mainZ0\n\\.jsonparquet"), max_size=40))
def test_whatever_parses_is_made_again(key: str) -> None:
    """There is one way to write each key."""
    found = parse_key(key)
    if found is not None:
        assert remade(found) == key


def remade(found: ParsedKey) -> str:
    """The key of what a key says."""
    kinds = {role: kind for kind, (_, role) in ROLES.items()}
    if found.role in kinds:
        return layout.key_of(kinds[found.role], found.identifier or "")
    name = found.ref or ""
    return {
        "chunk": lambda: layout.chunk_key(found.identifier or ""),
        "branch": lambda: layout.branch_key(name, found.sequence or 0),
        "tag": lambda: layout.tag_key(name),
        "tag-deleted": lambda: layout.tag_deleted_key(name),
        "config": lambda: layout.CONFIG_KEY,
        "state": lambda: layout.STATE_KEY,
    }[found.role]()


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "/", "..\\x", "a\nb", "\x00", "\x7f", " a", "a ", "\u2003a", "\ud800", "ä" * 101],
)
def test_names_that_no_branch_or_tag_has(name: str) -> None:
    """Each is refused with its name and a reason, and no folder is read as one."""
    with pytest.raises(InvalidInputError, match=r"cannot name a tag: it .* Choose another name"):
        layout.check_ref_name(name, "tag")
    assert layout.parse_folder(f"branch.{name}") is None


@pytest.mark.parametrize("name", ["main", "v1.0", "a.b.c", "..", "ä", "Ω feature", "x" * 200, "-"])
def test_names_that_branches_and_tags_have(name: str) -> None:
    """Dots, spaces inside and any letters are fine, up to 200 bytes."""
    assert layout.check_ref_name(name) == name


@pytest.mark.parametrize("folder", ["main", "branch", "branches.main", "Branch.main", ".main"])
def test_folders_that_are_no_references(folder: str) -> None:
    """Other folders below ``refs/`` are passed over."""
    assert layout.parse_folder(folder) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".parquet",
        ID,
        f"{ID}.parquet ",
        f"../{ID}.parquet",
        f"{ID}.parquet.parquet",
        "x.parquet",
    ],
)
def test_file_names_lead_nowhere_else(name: str) -> None:
    """A name inside a file is an id with its ending, or refused."""
    with pytest.raises(InvalidInputError, match="not the name of a file"):
        layout.file_id(name)


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", ID.lower(), f"{ID}.parquet", "/etc/passwd"]
)
def test_chunk_file_names_lead_nowhere_else(name: str) -> None:
    """A bare chunk file name is an id, or refused."""
    with pytest.raises(InvalidInputError, match="not the name of a chunk file"):
        layout.chunk_key(name)


@given(ref_names)
def test_the_hint_of_a_branch_sorts_behind_its_entries(name: str) -> None:
    """So that a sorted listing that stops at its first key gives the newest entry."""
    key = layout.hint_key(name)

    assert parse_key(key) == ParsedKey(role="hint", ref=name)
    assert key > layout.branch_key(name, 0)


@given(st.integers(0, 2**40 - 1))
def test_keys_of_the_ledger(sequence: int) -> None:
    """They are named as entries of branches are."""
    assert parse_key(layout.ledger_key(sequence)) == ParsedKey(role="ledger", sequence=sequence)
