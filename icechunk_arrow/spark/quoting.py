"""Names, values and paths as Spark takes them: what comes from a repository is never anything but one of these."""

from __future__ import annotations

import re

__all__ = ["file_pattern", "identifier", "is_readable", "spark_root", "text"]

_PLAIN = re.compile(r"[A-Za-z0-9_/.: =-]*")
_WILD = re.compile(r"([\\*?\[\]{}])")


def identifier(name: str) -> str:
    """Quote the name of a view or function."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """Write a text; one with other than harmless characters as its bytes.

    Spark replaces ``${…}`` in statements, and a setting decides what a backslash means in a literal.
    """
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"cast(X'{value.encode().hex()}' AS STRING)"


def spark_root(root: str) -> str:
    """Give a repository's URI as Spark's file systems name it."""
    return "s3a" + root[2:] if root.startswith("s3://") else root


def file_pattern(path: str) -> str:
    """Write a path as a pattern that matches nothing but it."""
    return _WILD.sub(r"\\\1", path)


def is_readable(root: str) -> bool:
    """Tell whether Spark can read files below a place: it takes patterns apart wrongly at colons."""
    path = root.partition("://")[2]
    return ":" not in path or not _WILD.search(path)
