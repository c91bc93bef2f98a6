"""The conformance kit: this package and a second reader find what it says, and refuse what it says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from icechunk_arrow.errors import (
    CorruptFileError,
    IcechunkArrowError,
    SnapshotNotFoundError,
    UnsupportedFormatError,
)
from icechunk_arrow.storage.memory import MemoryStorage
from tests.conformance.foreign import second_reader
from tests.conformance.kit.reading import read_all
from tests.conformance.kit.refused import REFUSED, Refused
from tests.conformance.kit.sound import SOUND
from tests.conformance.kit.writing import (
    FOLDER,
    SUMS,
    make_refused,
    make_sound,
    read_case,
    sums_of,
    text_of,
    write_kit,
)
from tests.servers import served

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = sorted(path.parent.name for path in FOLDER.glob("*/expected.json"))
REFUSALS = sorted(path.parent.name for path in FOLDER.glob("refused/*/error.json"))
PENDING = [each for each in REFUSED if each.pending]
SCHEMAS = FOLDER.parent


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name / "expected.json").read_text())
    return found


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", CASES)
def test_the_package_finds_what_is_expected(name: str) -> None:
    """Documents, chunks, references, history, branches and tags are those that the kit says."""
    assert read_case(FOLDER / name) == expected(name)


@pytest.mark.parametrize("name", CASES)
def test_what_is_expected_has_the_published_form(name: str) -> None:
    """Another implementation can rely on the schema."""
    validator("expected").validate(expected(name))


def in_memory(folder: Path, name: str) -> str:
    """Put a folder's files into memory; give the URL."""
    place = MemoryStorage(f"kit-{name}")
    for path in folder.rglob("*"):
        if path.is_file():
            place.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return place.url


@pytest.mark.parametrize("name", ["references", "foreign", "ledger", "chunks", "state-beside"])
def test_the_package_finds_the_same_in_memory(name: str) -> None:
    """Another kind of place, with other ways to list."""
    url = in_memory(FOLDER / name / "repository", name)

    assert json.loads(json.dumps(read_all(url))) == expected(name)


OVER_HTTP = ["references", "foreign", "ledger", "info", "state-beside"]
OVER_HTTP += [name for name in CASES if name.startswith("hint")]


@pytest.mark.parametrize("name", OVER_HTTP)
def test_the_package_finds_the_same_over_http(name: str) -> None:
    """A static host cannot list: branches are found by hints and galloping, whatever the hint says."""
    wanted = expected(name)
    with served(FOLDER / name / "repository") as url:
        found = read_all(url, branches=wanted["branches"], tags=wanted["tags"])

    assert json.loads(json.dumps(found)) == wanted


def refusal(folder: Path) -> IcechunkArrowError | None:
    """Read a case with this package; give the error."""
    try:
        read_case(folder)
    except IcechunkArrowError as error:
        return error
    return None


def judge(error: IcechunkArrowError | None, wanted: dict[str, Any]) -> str:
    """Say what is not right with an error; nothing where all is."""
    kinds = {
        "damage": (CorruptFileError, SnapshotNotFoundError),
        "unsupported": (UnsupportedFormatError,),
    }
    if not isinstance(error, kinds[wanted["kind"]]):
        return f"{wanted} gave {error!r}"
    names = [wanted["key"], *wanted["also"]]
    names += [Path(key).stem for key in names if not key.startswith("refs")]
    return "" if any(name in str(error) for name in names) else f"{error} does not name {names}"


@pytest.mark.parametrize("name", REFUSALS)
def test_the_package_refuses_what_it_must(name: str) -> None:
    """By an error of the right kind that names the file."""
    wanted = json.loads((FOLDER / "refused" / name / "error.json").read_text())
    validator("error").validate(wanted)

    assert not judge(refusal(FOLDER / "refused" / name), wanted)


@pytest.mark.parametrize("pending", PENDING, ids=lambda each: each.folder)
def test_what_is_not_refused_yet(tmp_path: Path, pending: Refused) -> None:
    """The text demands it, the second reader does it: once this package does too, the case joins the kit."""
    make_refused(tmp_path / "case", pending)
    wanted = json.loads((tmp_path / "case" / "error.json").read_text())
    with pytest.raises(second_reader.RefusalError) as caught:
        second_reader.read(tmp_path / "case" / "repository")
    assert caught.value.kind == pending.kind
    assert caught.value.key in {wanted["key"], *wanted["also"]}
    try:
        wrong = judge(refusal(tmp_path / "case"), wanted)
    except Exception as error:
        wrong = repr(error)
    assert wrong, f"{pending.folder} is refused now: take `pending` away and run the script"


@pytest.fixture(scope="module")
def second() -> dict[str, dict[str, Any]]:
    """What the second reader says of every case, in a process that has neither this package nor zarr."""
    names = [*CASES, *(f"refused/{name}" for name in REFUSALS)]
    code = (
        "import runpy, sys\n"
        "for name in ('icechunk_arrow', 'zarr'): sys.modules[name] = None\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    program = str(Path(second_reader.__file__))
    done = subprocess.run(
        [sys.executable, "-I", "-c", code.replace("sys.argv[1]", "sys.argv.pop(1)"), program]
        + [str(FOLDER / name) for name in names],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_second_reader_finds_what_is_expected(
    second: dict[str, dict[str, Any]], name: str
) -> None:
    """Made from the specification alone, it finds the same."""
    assert second[name] == expected(name)


@pytest.mark.parametrize("name", REFUSALS)
def test_the_second_reader_refuses_what_it_must(
    second: dict[str, dict[str, Any]], name: str
) -> None:
    """The right kind, and one of the files that may be named."""
    wanted = json.loads((FOLDER / "refused" / name / "error.json").read_text())
    found = second[f"refused/{name}"]

    assert found.get("kind") == wanted["kind"], found.get("error", "it is taken")
    assert found["key"] in {wanted["key"], *wanted["also"]}, found


def test_the_second_reader_stands_alone() -> None:
    """It imports pyarrow, numpy, fastcrc and what Python has: nothing of ours."""
    tree = ast.parse(Path(second_reader.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"pyarrow", "numpy", "fastcrc"}


def test_nothing_of_the_kit_was_altered() -> None:
    """Cases are added, and never changed: whoever relies on them can."""
    text = "".join(f"{total}  {key}\n" for key, total in sums_of(FOLDER))

    assert (FOLDER / SUMS).read_text() == text


def test_the_script_makes_every_case_of_the_kit(tmp_path: Path) -> None:
    """What stands there comes from the script, and the script adds nothing to what is complete."""
    assert set(CASES) == set(SOUND)
    assert set(REFUSALS) == {each.folder for each in REFUSED if not each.pending}
    assert len({each.folder for each in REFUSED}) == len(REFUSED)
    before = (FOLDER / SUMS).read_bytes()
    assert write_kit() == []
    assert (FOLDER / SUMS).read_bytes() == before


def test_the_script_makes_the_same_each_time(tmp_path: Path) -> None:
    """Ids and times come from the case's name: two runs give the same bytes."""
    for name in ("operations", "state-apart"):
        for run in ("one", "two"):
            make_sound(tmp_path / run / name, name)
    (case,) = (each for each in REFUSED if each.folder == "R10-log-rows")
    for run in ("one", "two"):
        make_refused(tmp_path / run / "refused" / case.folder, case)

    one = dict(sums_of(tmp_path / "one"))
    assert len(one) == 3
    assert one == dict(sums_of(tmp_path / "two"))


def test_json_is_written_for_people() -> None:
    """Short things in one line, and nothing lost."""
    value = {"a": [{"b": list(range(60))}, {}], "ä": "x" * 200, "c": [[1, 2], None]}

    assert json.loads(text_of(value)) == value
    assert max(map(len, text_of(expected("narrow")).splitlines())) < 1000


def files() -> Iterator[Path]:
    return (path for path in FOLDER.rglob("*") if path.is_file())


def test_the_kit_is_small() -> None:
    """It is for people to look into, and for everybody to download."""
    assert sum(path.stat().st_size for path in files()) < 3_000_000
