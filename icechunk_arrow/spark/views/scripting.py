# ruff: noqa: S608  (making SQL is what this does; tests/sql attack it)
"""A script of Spark SQL that makes the same views, without Python and this package.

Owns what such a script must hold itself, and how it finds out whether a manifest has gone: Spark passes over names
of a pattern that there are not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.formats.layout import FileKind, key_of
from icechunk_arrow.spark.quoting import file_pattern, identifier, rows_text, spark_root, text
from icechunk_arrow.spark.views.attaching import check_name
from icechunk_arrow.spark.views.definitions import (
    Maker,
    Rows,
    coordinate_statements,
    define,
    names_of,
    place_statements,
    view_name,
)
from icechunk_arrow.spark.views.making import VERIFYING, check_place
from icechunk_arrow.spark.views.relations import make_relations
from icechunk_arrow.tables.attaching import members_of
from icechunk_arrow.tables.places import root_uri
from icechunk_arrow.tables.selection import Selection, find_earlier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from icechunk_arrow.tables.attaching import Place

__all__ = ["sql_script"]

_OWN_SCANS = 8
_HARMLESS = re.compile(r"[A-Za-z0-9_/.:=,{}-]*")
_KEEP_MEANING = "spark.sql.legacy.storeAnalyzedPlanForView"
"""With it a view made by a statement keeps what it means, files too, as one that is made of a frame does."""
_OPTIONS = "WITH ({})".format(
    ", ".join(
        f"`{name}` = '{value}'"
        for name, value in {
            "ignoreMissingFiles": "false",
            "ignoreCorruptFiles": "false",
            "mergeSchema": "false",
            **VERIFYING,
        }.items()
    )
)


def sql_script(
    repository: Place | Mapping[str, Place],
    name: str = "icechunk",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    since: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
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
    members = members_of(repository, storage_options)
    for context in members.contexts.values():
        check_place(context.storage.url)
        if ":" in root_uri(context.storage.url).partition("://")[2]:
            raise InvalidInputError(
                f"{context.storage.url} has a colon, and a script names files by patterns, which Spark takes "
                f"apart wrongly at colons; use icechunk_arrow.spark.attach, or link to it by another name"
            )
    selection = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
    maker = _ScriptMaker(name)
    maker.run(f"SET {_KEEP_MEANING} = true")
    for statement in coordinate_statements(name):
        maker.run(statement)
    comments, tables, known = [], {}, {}
    for label, context in members.contexts.items():
        found = selection.resolve(context)
        comments.append(f"-- snapshot {found} of {json.dumps(context.storage.url)}")
        before = find_earlier(context, found, since)
        made = make_relations(maker, context, found, before, names_of(name), own_scans=_OWN_SCANS)
        tables[label], known[label] = made.tables, made.known
    define(maker, name, tables, known, united=members.united)
    for statement in place_statements(name, united=members.united):
        maker.run(statement)
    maker.drop_own()
    maker.run(f"RESET {_KEEP_MEANING}")
    comments.append(
        "-- made by icechunk_arrow; read by Spark alone, such as: spark-sql -i this.sql"
    )
    return "\n".join([*comments, *(f"{each};" for each in maker.statements), ""])


class _ScriptMaker(Maker):
    """Writes statements down."""

    checked = False

    def __init__(self, name: str) -> None:
        self.statements: list[str] = []
        self._name = name
        self._own: list[str] = []

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

    def rows(self, root: str, manifests: Sequence[str], form: int) -> Rows:
        """Name the files in one pattern, and ask first whether all of them are there."""
        names = [key_of(FileKind.MANIFEST, each).rpartition("/") for each in manifests]
        folder = f"{spark_root(root)}/{names[0][0]}"
        pattern = f"{file_pattern(folder)}/{{{','.join(file for _, _, file in names)}}}"
        files = f"{_relation('parquet', pattern)} {_OPTIONS}"
        gone = f"concat({text(folder + '/')}, e.file, ' has gone, which this script is about')"
        wanted = ", ".join(f"'{file}'" for _, _, file in names)
        self.run(
            f"SELECT raise_error({gone}) AS gone FROM (SELECT explode(array({wanted})) AS file) AS e "
            f"LEFT ANTI JOIN {_relation('binaryFile', pattern)} AS b ON endswith(b.path, e.file)"
        )
        return Rows(
            plain=self._named(f"SELECT * FROM {files}"),
            with_file=self._named(f"SELECT *, _metadata.file_name AS file FROM {files}"),
            form=form,
        )

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
