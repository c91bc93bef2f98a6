"""Writing the kit down: folders, what is expected, and the sums that show that nothing was altered since."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.kit.reading import read_all
from tests.conformance.kit.refused import REFUSED
from tests.conformance.kit.sound import SOUND, WITH_SCHEMA
from tests.conformance.kit.workshop import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.kit.refused import Refused

__all__ = ["FOLDER", "SUMS", "make_refused", "make_sound", "read_case", "sums_of", "write_kit"]

FOLDER = Path(__file__).parents[3] / "schemas" / "conformance" / "v1"
SUMS = "SHA256SUMS"
_LINE = 110


def read_case(folder: Path) -> dict[str, Any]:
    """Read a case with this package's reader, as JSON has it."""
    state = folder / "state"
    found = read_all(folder / "repository", state if state.is_dir() else None)
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def make_sound(folder: Path, name: str) -> None:
    """Make a case that is taken."""
    with Case.begun(folder, name) as case:
        SOUND[name](case)
        if name not in WITH_SCHEMA:
            case.shrink()
    (folder / "expected.json").write_text(text_of(read_case(folder)) + "\n")


def make_refused(folder: Path, refused: Refused) -> None:
    """Make a case that is refused."""
    with Case.begun(folder, refused.folder) as case:
        key = refused.make(case)
        also = sorted(key for letter in refused.also for key in case.keys(letter))
    error = {"rule": refused.rule, "kind": refused.kind, "key": key, "also": also}
    (folder / "error.json").write_text(text_of(error) + "\n")


def write_kit(folder: Path = FOLDER) -> list[str]:
    """Add the cases that are not there; give their names."""
    added = []
    for name in SOUND:
        if not (folder / name).exists():
            make_sound(folder / name, name)
            added.append(name)
    for refused in REFUSED:
        place = folder / "refused" / refused.folder
        if not refused.pending and not place.exists():
            make_refused(place, refused)
            added.append(f"refused/{refused.folder}")
    (folder / SUMS).write_text("".join(f"{total}  {key}\n" for key, total in sums_of(folder)))
    return added


def sums_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Give a sum of each case: SHA-256 of the lines that `sha256sum` writes for its files, sorted by name."""
    for case in sorted([*folder.iterdir(), *(folder / "refused").iterdir()]):
        if case.is_dir() and case.name != "refused":
            lines = hashlib.sha256()
            for path in sorted(path for path in case.rglob("*") if path.is_file()):
                total = hashlib.sha256(path.read_bytes()).hexdigest()
                lines.update(f"{total}  {path.relative_to(case).as_posix()}\n".encode())
            yield case.relative_to(folder).as_posix(), lines.hexdigest()


def text_of(value: Any, depth: int = 0) -> str:
    """Write JSON that people can read: what is short stands in one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + depth <= _LINE or not isinstance(value, (dict, list)):
        return line
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        return "[" + pad + ("," + pad).join(text_of(each, depth + 1) for each in value) + end + "]"
    parts = (
        json.dumps(name, ensure_ascii=False) + ": " + text_of(each, depth + 1)
        for name, each in value.items()
    )
    return "{" + pad + ("," + pad).join(parts) + end + "}"
