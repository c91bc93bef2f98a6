"""What a table's commits say of repositories: the note that publishing leaves, and what notes come to.

Pure. A note stands in the user metadata of the one commit that it is about. Delta forgets old commits, so a note
repeats what its writer knew of the other repositories of the table.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Commit", "Note", "Shown", "app_id", "decode", "encode", "placed", "shown_after"]

_KEY = "icechunk_arrow"
_HARMLESS = frozenset(
    {
        "ADD CONSTRAINT",
        "CLUSTER BY",
        "COMPUTE STATS",
        "CREATE TABLE",
        "DROP CONSTRAINT",
        "OPTIMIZE",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Operations of others that leave all rows as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a table shows of one repository."""

    snapshot: str
    place: str
    """The repository's root, with which locations begin."""
    number: int
    """Counts the publishings of the repository; Delta makes sure that each number is used once."""
    version: int
    """The table's version that began to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What one publishing says of itself."""

    repository: str
    snapshot: str
    place: str
    number: int
    write_id: str
    seen: int
    """The table's version that the publishing was worked out from."""
    others: Mapping[str, Shown] = field(default_factory=dict)
    """What that version showed of other repositories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit of the table."""

    version: int
    operation: str
    note: Note | None
    """None for what others did."""

    @property
    def may_change_rows(self) -> bool:
        """Whether another writer may have written rows."""
        return self.note is None and self.operation not in _HARMLESS


def app_id(repository: str) -> str:
    """Name the writer of a repository's rows, as Delta's transactions count by it."""
    return f"{_KEY}.delta.publish:{repository}"


def encode(note: Note) -> str:
    """Write a note as user metadata."""
    return json.dumps({_KEY: asdict(note)}, separators=(",", ":"))


def decode(user_metadata: str | None) -> Note | None:
    """Read a note; None where the text is anything else."""
    try:
        note: Any = json.loads(user_metadata or "")[_KEY]
        others = {name: Shown(**each) for name, each in note.pop("others").items()}
        return Note(**note, others=others)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def placed(note: Note, version: int) -> Shown:
    """Give what a note says of its own repository, once it is known which version it became."""
    return Shown(snapshot=note.snapshot, place=note.place, number=note.number, version=version)


def shown_after(commits: Sequence[Commit]) -> dict[str, Shown]:
    """Tell what a table shows after the oldest to newest of some commits that follow one another.

    What is not known for certain is left out: where another writer may have written rows meanwhile, or where the
    commits at hand do not reach back far enough.
    """
    shown: dict[str, Shown] = {}
    written: dict[str, int] = {}  # in which version last
    # a note is worth nothing if rows may have changed between what it was worked out from and itself
    unsure = commits[0].version - 1 if commits else -1
    for commit in commits:
        note = commit.note
        if commit.may_change_rows:
            shown.clear()
            unsure = commit.version
        if note is None:
            continue
        if note.seen < unsure:
            shown.pop(note.repository, None)
        else:
            for name, each in note.others.items():
                if written.get(name, -1) <= note.seen:
                    shown.setdefault(name, each)
            shown[note.repository] = placed(note, commit.version)
        written[note.repository] = commit.version
    return shown


def numbers_used(commits: Iterable[Commit], repository: str) -> int | None:
    """Find the largest number that a repository's publishings are known to have; None where none is."""
    numbers = [
        number
        for commit in commits
        if commit.note is not None
        for number in (
            commit.note.number if commit.note.repository == repository else None,
            commit.note.others[repository].number if repository in commit.note.others else None,
        )
        if number is not None
    ]
    return max(numbers, default=None)
