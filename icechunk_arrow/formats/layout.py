"""Every key of a repository: made and parsed here, and nowhere else.

Specification: schemas/README.md#layout
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from icechunk_arrow.core.ids import is_id, sequence_name, sequence_number
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CONFIG_KEY",
    "LEDGER_FOLDER",
    "MAIN",
    "REFS_FOLDER",
    "STATE_KEY",
    "FileKind",
    "ParsedKey",
    "branch_folder",
    "branch_key",
    "check_ref_name",
    "chunk_key",
    "file_id",
    "file_name",
    "hint_key",
    "key_of",
    "ledger_key",
    "parse_folder",
    "parse_key",
    "tag_deleted_key",
    "tag_key",
]

CONFIG_KEY = "config.yaml"
STATE_KEY = "state.json"
REFS_FOLDER = "refs/"
LEDGER_FOLDER = "refs/ledger/"
MAIN = "main"
_PARQUET = ".parquet"
_MAX_REF_NAME_BYTES = 200


class FileKind(Enum):
    """The kinds of Parquet files, each with its folder."""

    STRUCTURE = "s"
    MANIFEST = "i"
    ATTRIBUTES = "a"
    TRANSACTION = "t"
    CENSUS = "g"

    @property
    def label(self) -> str:
        """The kind in words, for messages."""
        return _LABELS[self]


_LABELS = {
    FileKind.STRUCTURE: "structure file",
    FileKind.MANIFEST: "chunk manifest",
    FileKind.ATTRIBUTES: "attributes file",
    FileKind.TRANSACTION: "transaction log",
    FileKind.CENSUS: "census",
}


def file_name(identifier: str) -> str:
    """Name a Parquet file as other files refer to it."""
    return identifier + _PARQUET


def file_id(name: str) -> str:
    """Read the id of a Parquet file's name.

    Raises
    ------
    InvalidInputError
        It is no such name; in particular it leads nowhere else.
    """
    identifier = name.removesuffix(_PARQUET)
    if not name.endswith(_PARQUET) or not is_id(identifier):
        raise InvalidInputError(f"{name!r} is not the name of a file: expected <id>.parquet")
    return identifier


def key_of(kind: FileKind, identifier: str) -> str:
    """Key of the Parquet file of a kind with this id."""
    return f"{kind.value}/{file_name(identifier)}"


def chunk_key(name: str) -> str:
    """Key of a chunk file; its name is checked to be an id, so that it leads nowhere else."""
    if not is_id(name):
        raise InvalidInputError(f"{name!r} is not the name of a chunk file: expected an id")
    return f"c/{name}"


def _fault_of_ref_name(name: str) -> str:
    """Say why a name cannot be a branch's or tag's; empty where it can."""
    return (
        "it is empty" if not name
        else "it contains '/'" if "/" in name
        else "it contains a control character" if any(ord(c) < 32 or ord(c) == 127 for c in name)
        else "it begins or ends with a space" if name != name.strip()
        else "it contains a lone surrogate" if any(0xD800 <= ord(c) < 0xE000 for c in name)
        else f"it is longer than {_MAX_REF_NAME_BYTES} bytes"
        if len(name.encode()) > _MAX_REF_NAME_BYTES
        else "it contains a backslash" if "\\" in name
        else ""
    )  # fmt: skip


def check_ref_name(name: str, what: str = "branch") -> str:
    """Give a branch's or tag's name back, or say why it cannot be one."""
    problem = _fault_of_ref_name(name)
    if problem:
        raise InvalidInputError(f"{name!r} cannot name a {what}: {problem}. Choose another name.")
    return name


def branch_folder(name: str) -> str:
    """Folder of a branch's entries."""
    return f"{REFS_FOLDER}branch.{name}/"


def branch_key(name: str, sequence: int) -> str:
    """Key of entry ``sequence`` of a branch."""
    return f"{branch_folder(name)}{sequence_name(sequence)}.json"


def hint_key(branch: str) -> str:
    """Key of the hint at a branch's newest entry; it sorts behind all entries."""
    return f"{branch_folder(branch)}hint.json"


def ledger_key(sequence: int) -> str:
    """Key of entry ``sequence`` of the ledger."""
    return f"{LEDGER_FOLDER}{sequence_name(sequence)}.json"


def tag_key(name: str) -> str:
    """Key of a tag."""
    return f"{REFS_FOLDER}tag.{name}/ref.json"


def tag_deleted_key(name: str) -> str:
    """Key of the mark that a tag is withdrawn."""
    return f"{REFS_FOLDER}tag.{name}/deleted.json"


def parse_folder(folder: str) -> tuple[str, str] | None:
    """Read a folder below ``refs/`` as ("branch" or "tag", name)."""
    kind, _, name = folder.partition(".")
    return (kind, name) if kind in {"branch", "tag"} and not _fault_of_ref_name(name) else None


class ParsedKey(Struct, frozen=True, kw_only=True):
    """What a key of a repository says."""

    role: str
    """structure, manifest, attributes, transaction, census, chunk, branch, hint, tag, tag-deleted, ledger, config
    or state."""
    identifier: str | None = None
    ref: str | None = None
    sequence: int | None = None


def _parquet(role: str) -> Callable[[re.Match[str]], ParsedKey | None]:
    return lambda m: ParsedKey(role=role, identifier=m[1]) if is_id(m[1]) else None


def _branch(match: re.Match[str]) -> ParsedKey | None:
    sequence = sequence_number(match[2])
    if sequence is None or _fault_of_ref_name(match[1]):
        return None
    return ParsedKey(role="branch", ref=match[1], sequence=sequence)


def _hint(match: re.Match[str]) -> ParsedKey | None:
    return None if _fault_of_ref_name(match[1]) else ParsedKey(role="hint", ref=match[1])


def _ledger(match: re.Match[str]) -> ParsedKey | None:
    sequence = sequence_number(match[1])
    return None if sequence is None else ParsedKey(role="ledger", sequence=sequence)


def _tag(role: str) -> Callable[[re.Match[str]], ParsedKey | None]:
    return lambda m: None if _fault_of_ref_name(m[1]) else ParsedKey(role=role, ref=m[1])


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], ParsedKey | None]], ...] = (
    (re.compile(r"s/([^/]+)\.parquet\Z"), _parquet("structure")),
    (re.compile(r"i/([^/]+)\.parquet\Z"), _parquet("manifest")),
    (re.compile(r"a/([^/]+)\.parquet\Z"), _parquet("attributes")),
    (re.compile(r"t/([^/]+)\.parquet\Z"), _parquet("transaction")),
    (re.compile(r"g/([^/]+)\.parquet\Z"), _parquet("census")),
    (re.compile(r"c/([^/]+)\Z"), _parquet("chunk")),
    (re.compile(r"refs/branch\.([^/]+)/hint\.json\Z"), _hint),
    (re.compile(r"refs/ledger/([^/]+)\.json\Z"), _ledger),
    (re.compile(r"refs/branch\.([^/]+)/([^/]+)\.json\Z"), _branch),
    (re.compile(r"refs/tag\.([^/]+)/ref\.json\Z"), _tag("tag")),
    (re.compile(r"refs/tag\.([^/]+)/deleted\.json\Z"), _tag("tag-deleted")),
    (re.compile(r"config\.yaml\Z"), lambda _: ParsedKey(role="config")),
    (re.compile(r"state\.json\Z"), lambda _: ParsedKey(role="state")),
)


def parse_key(key: str) -> ParsedKey | None:
    """Read a key; None where it is none of ours."""
    for pattern, read in _PATTERNS:
        match = pattern.match(key)
        if match:
            return read(match)
    return None
