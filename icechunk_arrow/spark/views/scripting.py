# ruff: noqa: S608  (making SQL is what this does; tests/sql attack it)
"""A script of Spark SQL that makes the same views, without Python and this package.

Owns what such a script must hold itself, and how it finds out whether a manifest has gone: Spark passes over names
of a pattern that there are not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Unpack

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.spark.quoting import file_pattern, identifier, rows_text, spark_root, text
from icechunk_arrow.spark.views.attaching import READING, check_name, check_place
from icechunk_arrow.spark.views.definitions import (
    Target,
    coordinate_functions,
    define,
    place_functions,
    snapshot_queries,
    view_name,
)
from icechunk_arrow.tables.attaching import Attachment
from icechunk_arrow.tables.queries import root_uri
from icechunk_arrow.tables.selection import Selection, Which

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from icechunk_arrow.tables.attaching import Place
    from icechunk_arrow.tables.scans import Scan

__all__ = ["sql_script"]

_OWN_SCANS = 8
_HARMLESS = re.compile(r"[A-Za-z0-9_/.:=,{}-]*")
_KEEP_MEANING = "spark.sql.legacy.storeAnalyzedPlanForView"
"""With it a view made by a statement keeps what it means, files too, as one that is made of a frame does."""
_OPTIONS = "WITH ({})".format(", ".join(f"`{name}` = '{value}'" for name, value in READING.items()))


def sql_script(
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **which: Unpack[Which],
) -> str:
    """Write SQL that makes temporary views with the tables of a snapshot, for Spark alone.

    The views and functions are those of :func:`icechunk_arrow.spark.attach`. A manifest that has gone makes the
    script fail, or a query later.

    Parameters
    ----------
    repository
        A path, URL or open repository; or several, by names, and then every view has a first column ``repository``.
    name
        What names of views begin with: letters, digits and underscores.
    branch, tag, snapshot_id, as_of
        Which snapshot; ``main`` if nothing is named.
    since
        The snapshot, branch or tag that ``<name>_changes`` compares with; the parent if nothing is named.
    storage_options
        What the file system of a URL takes. None of it gets into the script.

    Returns
    -------
    str
        Statements with ``;`` at the ends of lines: ``spark-sql -i script.sql`` makes the views and goes on.
    """
    check_name(name)
    attachment = Attachment.of(name, repository, storage_options, Selection(**which), since)
    united = attachment.united
    for context in attachment.contexts.values():
        check_place(context.storage.url)
        if ":" in root_uri(context.storage.url).partition("://")[2]:
            raise InvalidInputError(
                f"{context.storage.url} has a colon, and a script names files by patterns, which Spark takes "
                f"apart wrongly at colons; use icechunk_arrow.spark.attach, or link to it by another name"
            )
    script = _ScriptTarget(name)
    script.run(f"SET {_KEEP_MEANING} = true")
    coordinate_functions(script, name)
    comments, members = [], {}
    for label, context, snapshot_id, before in attachment.resolved():
        comments.append(f"-- snapshot {snapshot_id} of {json.dumps(context.storage.url)}")
        members[label] = snapshot_queries(
            script, name, context, snapshot_id, before, own_scans=_OWN_SCANS
        )
    define(script, name, members, united=united)
    place_functions(script, name, united=united)
    script.drop_own()
    script.run(f"RESET {_KEEP_MEANING}")
    comments.append(
        "-- made by icechunk_arrow; read by Spark alone, such as: spark-sql -i this.sql"
    )
    return "\n".join([*comments, *(f"{each};" for each in script.statements), ""])


class _ScriptTarget(Target):
    """Writes statements down."""

    def __init__(self, name: str) -> None:
        self.statements: list[str] = []
        self._name = name
        self._own: list[str] = []
        self._asked: set[str] = set()
        self._files: dict[str, str] = {}

    def _named(self, query: str) -> str:
        name = view_name(self._name, f"_{len(self._own)}")
        self._own.append(name)
        self.view(name, query)
        return name

    def drop_own(self) -> None:
        """Remove the views that the others are made of."""
        self.statements += [f"DROP VIEW {name}" for name in self._own]

    def table(self, rows: pa.Table) -> str:
        """Write the rows down."""
        return self._named(rows_text(rows))

    def files(self, root: str, scan: Scan, *, named: bool) -> str:
        """Name the files in one pattern, and ask first whether all of them are there."""
        names = [key_of(FileKind.MANIFEST, each).rpartition("/") for each in scan.manifests]
        folder = f"{spark_root(root)}/{names[0][0]}"
        pattern = f"{file_pattern(folder)}/{{{','.join(file for _, _, file in names)}}}"
        if pattern not in self._asked:
            self._asked.add(pattern)
            gone = f"concat({text(folder + '/')}, e.file, ' has gone, which this script is about')"
            wanted = ", ".join(f"'{file}'" for _, _, file in names)
            self.run(
                f"SELECT raise_error({gone}) AS gone FROM (SELECT explode(array({wanted})) AS file) AS e "
                f"LEFT ANTI JOIN {_relation('binaryFile', pattern)} AS b ON endswith(b.path, e.file)"
            )
        columns = "*, _metadata.file_name AS file" if named else "*"
        query = f"SELECT {columns} FROM {_relation('parquet', pattern)} {_OPTIONS}"
        if query not in self._files:
            self._files[query] = self._named(query)
        return self._files[query]

    def view(self, name: str, query: str) -> None:
        """Make a view."""
        self.run(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")

    def run(self, command: str) -> None:
        """Write it down."""
        self.statements.append(command)


def _relation(kind: str, pattern: str) -> str:
    """Name files; in a statement with other than harmless characters Spark would replace some of them."""
    name = f"{kind}.{identifier(pattern)}"
    return name if _HARMLESS.fullmatch(pattern) else f"IDENTIFIER({text(name)})"
