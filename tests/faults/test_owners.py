"""Places of other users, and files made under any umask: read as far as one may, and told where one may not."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository
from icechunk_arrow.storage.scratch import SCRATCH
from tests.faults.repositories import make_base, picture
from tests.promises import required

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.root, pytest.mark.alone]

OTHER = """
import contextlib, json, os, pwd, shutil, sys, tempfile, traceback
from icechunk_arrow import IcechunkArrowError, Repository
from tests.faults.repositories import contents, group_document, make_base, picture
root, catalog = sys.argv[1], sys.argv[4]

def create():
    Repository.create(root + "/own/r", catalog=catalog)

def read():
    return picture(Repository.open(root))

def commit():
    session = Repository.open(root).writable_session("main")
    session.set_document("/theirs", group_document(a=1))
    session.write_chunk("/a", (1,), b"x" * 3000)
    return session.commit("theirs")

def tag():
    repo = Repository.open(root)
    repo.create_tag("theirs", repo.lookup_branch("main"))

def delete():
    repo = Repository.open(root)
    repo.delete_branch("other")

def tidy():
    Repository.open(root)._context.storage.tidy()

# Python may lie where the other user may not look: all that is imported on first use is used once before
root = tempfile.mkdtemp() + "/r"
os.makedirs(root + "/own")
make_base(root, catalog=catalog)
for name in ("create", "read", "commit", "tag", "delete", "tidy"):
    globals()[name]()
with contextlib.suppress(IcechunkArrowError):
    Repository.open(root + "/nowhere")
shutil.rmtree(root)
root = sys.argv[1]
user = int(sys.argv[5])
os.setgroups([])
os.setgid(pwd.getpwuid(user).pw_gid)
os.setuid(user)
os.umask(int(sys.argv[3], 8))

told = {}
for name in sys.argv[2].split(","):
    try:
        told[name] = ["well", globals()[name]()]
    except IcechunkArrowError as error:
        told[name] = [type(error).__name__, str(error)]
    except BaseException as error:
        told[name] = ["raw", traceback.format_exc()]
print(json.dumps(told, default=repr))
"""


@pytest.fixture
def other() -> int:
    """Another user, whom root may become."""
    if os.geteuid() != 0:
        if required("root"):
            pytest.fail("root is promised, and these tests do not run as root")
        pytest.skip("only root can become another user")
    return pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can look into."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def as_other(
    other: int, root: Path, acts: str, mask: str = "022", catalog: str = "branches"
) -> dict[str, Any]:
    """Have another user do some things; give what each came to."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(root), acts, mask, catalog, str(other)],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert "raw" not in {kind for kind, _ in found.values()}, found
    return found


def in_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


@pytest.mark.parametrize("catalog", ["branches", "state"])
def test_what_may_be_read_is_read_and_not_written(folder: Path, other: int, catalog: str) -> None:
    """Who may only read is told so by every way of writing, and changes nothing; what is left over is not his."""
    root = folder / "r"
    with umask(0o022):
        make_base(str(root), catalog=catalog)
        old = root / SCRATCH / f"unfinished-{'0a' * 12}"
        old.write_bytes(b"x")
        os.utime(old, (0, 0))
    told = as_other(other, root, "read,commit,tag,delete,tidy", catalog=catalog)
    assert told["read"] == ["well", in_json(picture(Repository.open(root)))]

    for name in ("commit", "tag", "delete"):
        assert told[name][0] == "ReadOnlyError"
        assert f"{root} cannot be written: Permission denied" in told[name][1]
    assert told["tidy"] == ["well", None]
    assert old.exists()
    assert len(picture(Repository.open(root))["branches"]) == 2


def test_what_may_not_be_read_is_not_missing(folder: Path, other: int) -> None:
    """A closed place, a closed folder and a closed file are errors that name it, and never an empty repository."""
    root = folder / "r"
    with umask(0o077):
        make_base(str(root))
    for closed in (root, root / "refs/branch.main", *(root / "s").iterdir()):
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)
        closed.chmod(0o700)
        told = as_other(other, root, "read,commit")
        for name in ("read", "commit"):
            kind, said = told[name]
            assert kind in {"StorageError", "ReadOnlyError"}, told
            assert "Permission denied" in said
            assert str(root) in said


@pytest.mark.parametrize("mask", ["777", "277"])
def test_who_makes_files_that_he_cannot_use_is_told(folder: Path, other: int, mask: str) -> None:
    """Under an umask that takes his own rights a user makes nothing, and hears why."""
    (folder / "own").mkdir()
    os.chown(folder / "own", other, -1)
    kind, said = as_other(other, folder, "create", mask)["create"]

    assert (kind, "Permission denied" in said) == ("ReadOnlyError", True), said


def test_a_folder_that_is_shared_is_written_by_both(folder: Path, other: int) -> None:
    """With rights for a group, and umasks that leave them, two users commit in turns, with a state file too."""
    for catalog in ("branches", "state"):
        root = folder / catalog
        with umask(0o000):
            make_base(str(root), catalog=catalog)
            os.chmod(root, 0o777)  # noqa: PTH101
            before = len(list(Repository.open(root).ancestry(branch="main")))
            told = as_other(other, root, "commit,tag", "000", catalog)
            assert {kind for kind, _ in told.values()} == {"well"}, told
            session = Repository.open(root).writable_session("main")
            session.write_chunk("/a", (2,), b"y" * 500)
            session.commit("ours")
        assert len(list(Repository.open(root).ancestry(branch="main"))) == before + 2
