"""JSON and YAML written by somebody who wishes harm: clear errors, and nothing read outside."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import (
    CorruptFileError,
    InvalidInputError,
    NotAuthorizedError,
    Repository,
    RepositoryNotFoundError,
)
from icechunk_arrow.core.ids import sequence_name
from icechunk_arrow.formats import state
from icechunk_arrow.storage.local import LocalStorage
from tests.faults.hostile import Victim, state_victim
from tests.faults.repositories import CONFIG
from tests.places import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


DEEP = 100_000


@pytest.mark.parametrize(
    "key", [f"refs/branch.main/{sequence_name(1)}.json", "refs/tag.v1/ref.json"]
)
@pytest.mark.parametrize(
    "text",
    [
        '{"snapshot":' * DEEP,
        "[" * DEEP + "]" * DEEP,
        '{"snapshot": "../../x"}',
        '{"snapshot": 5}',
        '{"snapshot": null}',
        "5",
        '"x"',
        "null",
        "",
        "9" * 10_000,
        "{}",
        "\x00",
    ],
    ids=lambda text: text[:20] + str(len(text)),
)
def test_hostile_references(victim: Victim, key: str, text: str) -> None:
    """JSON of any form and depth in a reference is an error that names the file."""
    (victim.root / key).parent.mkdir(parents=True, exist_ok=True)
    victim.write(key, text.encode())
    session: Callable[[Repository], object] = (
        (lambda repo: repo.readonly_session(tag="v1"))
        if "tag" in key
        else (lambda repo: repo.readonly_session("main"))
    )

    with pytest.raises(CorruptFileError, match=re.escape(key)):
        session(Repository.open(victim.root))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {folder}/done']",
        "!!python/object/new:tuple [[1]]",
        "!!python/name:os.system",
        "storage: !!python/object/apply:os.getcwd []",
        "[" * DEEP,
        "{{" * DEEP,
        "- " * 5000,
        "{bomb}",
        "inline-chunk-threshold-bytes: {bomb_inside}",
        "storage: {bomb_inside}",
        "x: {bomb_inside}",
        "2001-01-01: 1",
        "2001-99-99: 1",
        "? [1, 2]\n: 3",
        "1: 2",
        "cache-bytes: 1e999",
        "cache-bytes: .nan",
        "cache-bytes: " + "9" * 10_000,
        "storage: {{timeout-seconds: .inf}}",
        "storage: {{retry-tries: true}}",
        "\x00",
        "\ufeff\ufeff",
        "&a [*a]",
    ],
    ids=lambda text: text[:30] + str(len(text)),
)
def test_hostile_settings(victim: Victim, text: str) -> None:
    """YAML of any form is an error that names the file; nothing of it is run, or written out; readers need none."""
    lines = ["&a0 [x, x]"] + [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb = "[" + ", ".join(lines) + "]"
    if text == "{bomb}" or "{bomb_inside}" in text:
        filled = text.replace("{bomb}", bomb).replace("{bomb_inside}", bomb)
    else:
        filled = text.format(folder=victim.folder)
    victim.write("config.yaml", filled.encode())

    with pytest.raises(InvalidInputError, match=r"config\.yaml") as caught:
        Repository.open(victim.root).writable_session("main")

    assert victim.read()
    assert len(str(caught.value)) < 20_000
    assert not (victim.folder / "done").exists()


@pytest.mark.parametrize(
    "root",
    [
        "{folder}/other",
        "file://{folder}/other",
        "{folder}/repository/../other",
        "{folder}/repository/./../other",
        "file://{folder}/repository/../other",
        "../other",
        "other",
        "{folder}/repository2",
        "{folder}/repositoryx/../other",
        "memory://other",
        "simplecache::file://{folder}/other",
        "http://127.0.0.1:1/other",
        "~",
        ".",
        "\x00",
    ],
)
@pytest.mark.parametrize("beside", [True, False], ids=["beside data", "apart"])
def test_a_state_file_that_leads_elsewhere(tmp_path: Path, root: str, beside: bool) -> None:
    """The data of a state file lie below it, or where the person who opens it says they may."""
    victim = state_victim(tmp_path)
    for name in ("other", "repository2"):
        copy = LocalStorage(tmp_path / name)
        for info in LocalStorage(victim).list():
            copy.put(info.key, (victim / info.key).read_bytes())
        copy.sync()
    found = json.loads((victim / "state.json").read_bytes())
    found["store_root"] = root.format(folder=tmp_path)
    del found["crc32c"]
    (victim / "state.json").write_text(json.dumps(found))
    if not beside:
        shutil.rmtree(victim / "refs")

    with pytest.raises(
        (NotAuthorizedError, InvalidInputError, CorruptFileError, RepositoryNotFoundError)
    ) as caught:
        Repository.open(victim).readonly_session("main")

    below = root in {".", "other"} and not beside
    assert isinstance(caught.value, RepositoryNotFoundError) is below


def test_a_state_file_may_lead_elsewhere_with_leave(tmp_path: Path) -> None:
    """The test before would notice data elsewhere that are read: with leave they are."""
    repo = Repository.create(
        tmp_path / "data",
        catalog="state",
        state_url=tmp_path / "state",
        config=CONFIG,
        storage_settings=UNSYNCED,
    )
    snapshot_id = repo.lookup_branch("main")
    with pytest.raises(NotAuthorizedError, match="outside"):
        Repository.open(tmp_path / "state")
    opened = Repository.open(
        tmp_path / "state", authorize_virtual_chunk_access=[f"file://{tmp_path}/data"]
    )

    assert opened.readonly_session("main").snapshot_id == snapshot_id


@pytest.mark.parametrize(
    "change",
    [
        {"store_root": 5},
        {"generation": "x"},
        {"generation": 2**70},
        {"snapshots": 5},
        {"snapshots": [5]},
        {"snapshots": [{}]},
        {"refs": [5]},
        {"refs": {"branch.main": None}},
        {"refs": {"branch.main": {"name": "main", "type": "branch", "snapshot-id": "../x"}}},
        {"refs": {"branch.main": {"name": ["x"], "type": "branch", "snapshot-id": "0" * 20}}},
        {"id": "../../x"},
        {"write-id": []},
        {"snapshots": "timestamp"},
        {"snapshots": "metadata"},
        {"snapshots": "name"},
    ],
    ids=str,
)
def test_hostile_state_files(tmp_path: Path, change: dict[str, Any]) -> None:
    """A state file of another form is an error that names it."""
    victim = state_victim(tmp_path)
    found = json.loads((victim / "state.json").read_bytes())
    sound = found["snapshots"][0]
    special = {
        "timestamp": {**sound, "timestamp-ms": 10**20},
        "metadata": {**sound, "properties": [5]},
        "name": {**sound, "structure-file": "../../x.parquet"},
    }
    if change.get("snapshots") in list(special):
        change = {"snapshots": [special[change["snapshots"]], *found["snapshots"][1:]]}
    found.update(change)
    del found["crc32c"]
    (victim / "state.json").write_text(json.dumps(found))

    with pytest.raises(CorruptFileError, match=r"state\.json"):
        Repository.open(victim).readonly_session("main")


@pytest.mark.parametrize("text", ["[" * DEEP, '{"id":' * DEEP, "", "5", "null", "[]", "\x00"])
def test_state_files_that_are_none(tmp_path: Path, text: str) -> None:
    """Whatever else stands there is an error that names the file."""
    victim = state_victim(tmp_path)
    (victim / "state.json").write_text(text)

    with pytest.raises(CorruptFileError, match=r"state\.json"):
        Repository.open(victim).readonly_session("main")


def test_the_state_format_refuses_what_it_cannot_be() -> None:
    """A reference to a snapshot that the file does not list is damage."""
    with pytest.raises(CorruptFileError, match="does not list"):
        state.decode(
            json.dumps(
                {
                    "id": "0" * 20,
                    "generation": 1,
                    "snapshots": [],
                    "refs": {
                        "branch.main": {
                            "name": "main",
                            "type": "branch",
                            "snapshot-id": "0" * 20,
                        }
                    },
                }
            ).encode(),
            "state.json",
        )
