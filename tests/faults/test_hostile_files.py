"""Parquet files made by somebody who wishes harm: clear errors, and nothing read outside.

Every file here is sealed rightly: it is what a person could make who has this package.
"""

from __future__ import annotations

import resource
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icechunk_arrow import (
    CorruptFileError,
    IcechunkArrowError,
    InvalidInputError,
    NotAuthorizedError,
    Repository,
)
from icechunk_arrow.core.chunks import ChunkRef
from icechunk_arrow.formats import manifest
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.storage.local import LocalStorage
from icechunk_arrow.storage.memory import MemoryStorage
from tests.faults.hostile import SECRET, Victim
from tests.faults.repositories import contents
from tests.faults.sealing import altered_footer
from tests.refs import table_of_refs

FAMILY = IcechunkArrowError


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A sound repository on a disk, to be altered."""
    return Victim(tmp_path)


def test_the_sound_one_can_be_read(victim: Victim) -> None:
    """The ways in which these tests alter files leave a sound file sound."""
    before = victim.read()
    victim.alter_structure()
    victim.set_refs(
        {
            key: ChunkRef(inline=b"y" * n, length=n)
            for n, key in enumerate([b"\x00", b"\x01", b"\x03"])
        }
    )
    after = victim.read()

    assert before.keys() == after.keys()
    assert after["/a/c/3"] == b"yy"


@pytest.mark.parametrize(
    "file",
    [
        "../secret",
        "../../secret",
        "..",
        ".",
        "",
        "tmp",
        "c/../../secret",
        "..\\secret",
        "{folder}/secret",
        "/{folder}/secret",
        "file://{folder}/secret",
        "file:///etc/passwd",
        "FILE://{folder}/secret",
        "local://{folder}/secret",
        "file:{folder}/secret",
        "file://localhost{folder}/secret",
        "file://{folder}/repository/../secret",
        "file://{folder}/repository/%2e%2e/secret",
        "file://{folder}/repositoryx/../secret",
        "file://{folder}/repository",
        "memory://other/secret",
        "http://127.0.0.1:1/secret",
        "simplecache::file://{folder}/secret",
        "dir://x::file://{folder}/secret",
        "python://os.system",
        "a\x00b",
    ],
)
def test_a_chunk_file_that_leads_elsewhere(victim: Victim, file: str) -> None:
    """A location that nobody allowed is refused, whatever it looks like, and says so."""
    location = file.format(folder=victim.folder)
    victim.set_first_ref(ChunkRef(file=location, length=len(SECRET)))
    for allowed in (None, [f"file://{victim.root}"], [f"file://{victim.folder}/repo"]):
        with pytest.raises(FAMILY) as caught:
            victim.read(allowed)
        assert isinstance(
            caught.value, (NotAuthorizedError, CorruptFileError, InvalidInputError)
        ), caught.value
        assert str(caught.value)


def test_what_is_allowed_can_be_read(victim: Victim) -> None:
    """The test before would notice a location that is read: with leave it is."""
    victim.set_first_ref(ChunkRef(file=f"file://{victim.folder}/secret", length=len(SECRET)))

    assert victim.read([f"file://{victim.folder}/"])["/a/c/0"] == SECRET


@pytest.mark.parametrize("kind", ["native", "native with checksum", "virtual"])
def test_a_chunk_of_impossible_size(victim: Victim, kind: str) -> None:
    """Offsets and lengths beyond the file are an error, and nothing is allocated for them."""
    native = victim.table["chunk_file"].drop_null()[0].as_py()
    file = f"file://{victim.folder}/secret" if kind == "virtual" else native
    crc = 5 if kind == "native with checksum" else None
    for length in (2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
        for offset in (0, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
            victim.set_first_ref(ChunkRef(file=file, offset=offset, length=length, crc32c=crc))

            with pytest.raises(FAMILY):
                victim.read([f"file://{victim.folder}/"])


@pytest.mark.parametrize("length", [0, 1, 5, 2**40])
def test_an_inline_chunk_of_another_length(victim: Victim, length: int) -> None:
    """An inline chunk is as long as its row says, or damaged."""
    victim.set_first_ref(ChunkRef(inline=b"four", length=length))

    with pytest.raises(CorruptFileError, match=victim.manifest):
        victim.read()


def test_a_chunk_that_is_nowhere(victim: Victim) -> None:
    """A row without file and without bytes is an error that names the manifest."""
    victim.set_first_ref(ChunkRef(length=5))

    with pytest.raises(CorruptFileError, match=victim.manifest):
        victim.read()


def test_rows_of_other_chunks(victim: Victim) -> None:
    """Where a structure file promises a coordinate, the manifest must have that one."""
    ref = ChunkRef(inline=b"x", length=1)
    dense = {bytes([n + 4]): ref for n in range(4)}  # the snapshot says 0 to 3
    snapshot = Repository.open(victim.root)._context.files.read_snapshot(victim.snapshot_id)
    node = snapshot.get_node("/b")
    assert node.inventories[0].is_dense
    mine = victim.table.filter(pc.equal(victim.table["array_id"], victim.array_id))
    table = pa.concat_tables([mine, table_of_refs(node.id, dense)])
    victim.write(
        key_of(FileKind.MANIFEST, victim.manifest), manifest.encode(table, victim.manifest)
    )

    with pytest.raises(CorruptFileError, match=victim.manifest):
        victim.read()


def inventories(rows: list[dict[str, Any]], path: str = "/a") -> dict[str, Any]:
    (found,) = [row for row in rows if row["path"] == path]
    first: dict[str, Any] = found["inventories"][0]
    return first


@pytest.mark.parametrize(
    "name",
    ["../../x.parquet", "../x", "/etc/passwd", "x.parquet", "", "..", "0" * 19 + "1.parquet"],
)
@pytest.mark.parametrize("member", ["inventory_file", "attrs_file"])
def test_a_structure_file_that_leads_elsewhere(victim: Victim, member: str, name: str) -> None:
    """Names of manifests and attributes files are ids, or the structure file is unsound."""

    def alter(rows: list[dict[str, Any]]) -> None:
        if member == "inventory_file":
            inventories(rows)[member] = name
        else:
            (row,) = [row for row in rows if row["path"] == "/a"]
            row["attrs_reference"][member] = name

    victim.alter_structure(alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()


@pytest.mark.parametrize("path", ["/a", "/b"])
@pytest.mark.parametrize("row", [1, 5, 7, 60_000])
def test_a_structure_file_with_wrong_rows(victim: Victim, path: str, row: int) -> None:
    """An array's rows that are not where the structure file says are an error, no other chunks."""

    def alter(rows: list[dict[str, Any]]) -> None:
        inventories(rows, path)["row"] += row

    victim.alter_structure(alter)

    with pytest.raises(CorruptFileError):
        victim.read()


@pytest.mark.parametrize(
    "extent", [[[0, 60_000]], [[5, 2]], [[0, 0]], [[3, 7]], [], [[0, 4], [0, 1]]]
)
def test_a_structure_file_with_wrong_extents(victim: Victim, extent: list[list[int]]) -> None:
    """An extent that is not that of the rows is an error, or hides chunks; it shows no others."""
    sound = victim.read()

    def alter(rows: list[dict[str, Any]]) -> None:
        inventories(rows, "/b")["extent"] = extent

    victim.alter_structure(alter)

    try:
        found = victim.read()
    except CorruptFileError:
        return
    assert found.items() <= sound.items()


@pytest.mark.parametrize("number", [-1, 2**31, 2**40, 2**60, 2**64, "many", None, 1e300])
@pytest.mark.parametrize("member", ["count", "entries"])
def test_facts_with_impossible_counts(victim: Victim, member: str, number: object) -> None:
    """A count that is not that of the rows is an error, and nothing is allocated for it."""

    def alter(facts: dict[str, Any]) -> None:
        facts["manifest_files"][member] = number

    victim.alter_structure(facts=alter)

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": None},
        {"metadata": {"id": "../../x"}},
        {"short_term_history": [{"id": "../../x"}]},
        {"short_term_history": "x"},
        {"properties": 5},
        {"total_parents": "x"},
        {"next_node_id": -1},
        {"started_at": "yesterday"},
        {"manifest_files": []},
    ],
    ids=str,
)
def test_facts_of_another_form(victim: Victim, change: dict[str, Any]) -> None:
    """Facts that are not what they should be are an error, by sessions and by the history."""
    victim.alter_structure(facts=lambda facts: facts.update(change))

    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        victim.read()
    if "manifest_files" in change:  # of which the history knows nothing
        return
    with pytest.raises(CorruptFileError, match=victim.snapshot_id):
        Repository.open(victim.root).lookup_snapshot(victim.snapshot_id)


def varint(number: int) -> bytes:
    """Encode an integer as Thrift's compact protocol does."""
    number *= 2
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def read_with_little_memory(
    objects: dict[str, bytes], key: str, strange: bytes, answer: Any
) -> None:
    """Read the repository in these objects, then with another one under a key and little memory."""
    place = MemoryStorage("hostile")
    for name, data in objects.items():
        place.put(name, data)
    contents(Repository.open(place.url).readonly_session("main"))
    place.delete([key])
    place.put(key, strange)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
    try:
        contents(Repository.open(place.url).readonly_session("main"))
    except IcechunkArrowError as error:
        answer.send(f"error {error}")
    except BaseException as error:
        answer.send(f"crash {error!r}")
    else:
        answer.send("right")


@pytest.mark.parametrize("kind", [FileKind.MANIFEST, FileKind.STRUCTURE, FileKind.ATTRIBUTES])
@pytest.mark.parametrize("number", [0, 1, 100, 2**20, 2**31, 2**40, 2**62])
def test_footers_with_impossible_counts(victim: Victim, kind: FileKind, number: int) -> None:
    """Numbers of rows that a footer makes up are an error, and no memory is taken for them."""
    place = LocalStorage(victim.root)
    objects = {info.key: place.get(info.key) for info in place.list()}
    (key,) = [k for k in objects if k.startswith(f"{kind.value}/") and k != first_structure(victim)]
    rows = pq.read_metadata(pa.BufferReader(objects[key])).num_rows
    # field headers of an i64 that follows the field before: rows of the file, of a group, of a column
    strange = altered_footer(
        objects[key],
        lambda footer: footer.replace(b"\x16" + varint(rows), b"\x16" + varint(number)),
    )
    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=read_with_little_memory, args=(objects, key, strange, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        verdict = ours.recv()
    except EOFError:
        process.join(10)
        verdict = f"crash of the interpreter, {process.exitcode}"
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()

    if number == rows:
        assert verdict == "right"
    else:
        assert verdict.startswith("error"), verdict
        assert key in verdict


def first_structure(victim: Victim) -> str:
    history = list(Repository.open(victim.root).ancestry(branch="main"))
    return key_of(FileKind.STRUCTURE, history[-1].id)


def test_a_seal_with_impossible_counts(victim: Victim) -> None:
    """Lengths and counts at a file's end are compared with its size before anything is read."""
    key = key_of(FileKind.MANIFEST, victim.manifest)
    sound = (victim.root / key).read_bytes()
    length = int.from_bytes(sound[-8:-4], "little")
    count_at = len(sound) - 8 - length - 32 - 8
    for number in (0, 2, 2**16, 2**31, 2**32 - 1):
        victim.write(key, sound[:count_at] + number.to_bytes(4, "little") + sound[count_at + 4 :])
        with pytest.raises(CorruptFileError, match=victim.manifest):
            victim.read()
    for number in (0, 1, length - 1, length + 1, 2**31, 2**32 - 1):
        victim.write(key, sound[:-8] + number.to_bytes(4, "little") + b"PAR1")
        with pytest.raises(CorruptFileError, match=victim.manifest):
            victim.read()


def test_symbolic_links_are_not_followed(victim: Victim) -> None:
    """A repository on a disk got from somebody cannot point out of itself by links."""
    native = victim.table["chunk_file"].drop_null()[0].as_py()
    (victim.root / "c" / native).unlink()
    (victim.root / "c" / native).symlink_to(victim.folder / "secret")

    with pytest.raises(FAMILY):
        victim.read()
