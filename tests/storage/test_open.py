"""From URLs and settings to places, and what is said about wrong ones; named places in memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from icechunk_arrow.errors import InvalidInputError, StorageError
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Callable


def test_paths_and_file_urls_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a Path, file://, local://, a relative path and ~ lead to the same folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (
        str(tmp_path / "root"),
        tmp_path / "root",
        f"file://{tmp_path}/root",
        f"local://{tmp_path}/root/",
        "root",
        "./root",
        "~/root",
    ):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.url == f"{tmp_path}/root"
    assert not (tmp_path / "root").exists()


def test_a_path_is_a_plain_name(tmp_path: Path) -> None:
    """Nothing in a path is a pattern, an escape or a chain."""
    for name in ("a b", "[1]*?", "100%20", "a::b", "ü"):
        open_storage(tmp_path / name).put("k", b"x")
        assert (tmp_path / name / "k").read_bytes() == b"x"
        assert open_storage(str(tmp_path / name)).get("k") == b"x"


def test_named_memory_is_shared_and_nameless_is_not() -> None:
    """Within the process one name is one content; without a name each is alone."""
    open_storage("memory://test-open-shared").put("k", b"x")

    assert open_storage("memory://test-open-shared/").get("k") == b"x"
    assert not open_storage("memory://test-open-other").exists("k")
    alone = open_storage("memory://")
    alone.put("k", b"x")
    assert not open_storage("memory://").exists("k")


def test_memory_pickles_by_name_within_the_process() -> None:
    """A copy is on the same content; a nameless one is refused with the way out."""
    storage = MemoryStorage("test-open-pickled")
    storage.put("k", b"x")

    assert pickle.loads(pickle.dumps(storage)).get("k") == b"x"
    with pytest.raises(TypeError, match="memory://name"):
        pickle.dumps(MemoryStorage())


def test_memory_is_not_found_from_another_process() -> None:
    """There the pickle says where the content is, instead of being empty."""
    script = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(MemoryStorage("test-open-elsewhere")),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert b"lives in another process" in done.stderr


def test_a_fork_does_not_write_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forked child wrote would be lost without a word: it is refused."""
    storage = MemoryStorage()
    storage.put("k", b"x")
    _, token = storage.get_versioned("k")
    monkeypatch.setattr(os, "getpid", lambda: 1)

    writes: tuple[Callable[[], None], ...] = (
        lambda: storage.put("l", b"x"),
        lambda: storage.create("l", b"x"),
        lambda: storage.replace("k", b"y", token),
        lambda: storage.delete(["k"]),
    )
    for write in writes:
        with pytest.raises(StorageError, match="fork"):
            write()
    assert storage.get("k") == b"x"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("simplecache::s3://bucket/x", "chain"),
        ("zip::file.zip", "chain"),
        ("nonsense://x", "nobody knows the protocol 'nonsense'"),
        ("", "empty path"),
        ("s3://", "names no bucket"),
    ],
)
def test_urls_that_lead_nowhere(url: str, text: str) -> None:
    """The error says what is wrong with the URL, before anything is asked of a network."""
    with pytest.raises(InvalidInputError, match=text):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "module", "text"),
    [
        ("s3://bucket/x", "s3fs", "pip install 'icechunk-arrow[s3]'"),
        ("gs://bucket/x", "gcsfs", "pip install 'gcsfs'"),
        ("az://bucket/x", "adlfs", "pip install 'adlfs'"),
        ("sftp://host/x", "paramiko", "SFTPFileSystem requires"),
    ],
)
def test_a_missing_package_is_named(url: str, module: str, text: str) -> None:
    """Where the package of a protocol is not installed, the error says how to get it."""
    script = (
        "import sys\n"
        "sys.modules[sys.argv[2]] = None\n"
        "from icechunk_arrow.errors import InvalidInputError\n"
        "from icechunk_arrow.storage.open import open_storage\n"
        "try:\n"
        "    open_storage(sys.argv[1])\n"
        "except InvalidInputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, url, module],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )

    assert text in done.stdout.decode()


@pytest.mark.parametrize("url", ["/tmp/x", "memory://x"])
def test_options_that_do_nothing_are_refused(url: str) -> None:
    """An unknown option is an error, by its name."""
    with pytest.raises(InvalidInputError, match="anon"):
        open_storage(url, {"anon": True})


def test_options_of_a_file_system_are_checked() -> None:
    """What the file system does not take is our error too."""
    with pytest.raises(InvalidInputError, match="storage_options"):
        open_storage("s3://bucket/x", {"key": "a", "username": "b"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_tries": 0},
        {"retry_tries": 1.5},
        {"retry_backoff_seconds": -1},
        {"retry_backoff_max_seconds": float("nan")},
        {"timeout_seconds": 0},
        {"max_concurrency": 0},
        {"max_concurrency": True},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    """A setting out of its range is an error, by its name."""
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        StorageSettings(**wrong)  # type: ignore[arg-type]


def test_opening_loads_no_library_of_a_store() -> None:
    """Local and memory places load neither s3fs, aiohttp nor pandas."""
    script = (
        "import sys\n"
        "from icechunk_arrow.storage.open import open_storage\n"
        "open_storage('memory://x'), open_storage('/tmp/x')\n"
        "loaded = {'s3fs', 'aiohttp', 'botocore', 'pandas', 'fsspec.asyn'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
