"""The SQL texts of this package: found in an installed package and in a checkout alike.

Texts name relations and macros in braces, ``{chunk_rows}``; whoever runs them says what stands for each in an
engine. Nothing else of a text is ever filled in: values go in as quoted literals under such a name.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["fill", "list_sql", "read_sql", "statement"]

_NAME = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


@cache
def _folder() -> Path:
    package = Path(__file__).parent
    for place in (package / "sql", package.parent / "sql"):
        if (place / "tables").is_dir():
            return place
    raise InvalidInputError(
        f"the SQL texts of icechunk_arrow are neither in {package} nor beside it: the installation is "
        f"not complete; install the package again"
    )


def list_sql(folder: str) -> list[str]:
    """Names of the texts in one folder of ``sql/``, sorted."""
    return sorted(each.name for each in (_folder() / folder).glob("*.sql"))


@cache
def read_sql(name: str) -> str:
    """Read a text as it stands, such as ``tables/chunks.sql``."""
    return (_folder() / name).read_text(encoding="utf-8")


@cache
def statement(name: str) -> str:
    """Read a text without the comments at its beginning, and without a semicolon at its end."""
    lines = read_sql(name).splitlines()
    while lines and (not lines[0] or lines[0].startswith("--")):
        del lines[0]
    return "\n".join(lines).rstrip().rstrip(";")


def fill(text: str, names: Mapping[str, str]) -> str:
    """Put what stands for each name into a text; a name that nobody gives is a ``KeyError``."""
    return _NAME.sub(lambda match: names[match[1]], text)
