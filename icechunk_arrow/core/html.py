"""How handles show themselves in notebooks: one small table each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["html_of"]


def html_of(title: str, facts: Mapping[str, str]) -> str:
    """Make a table of facts; empty ones are left out."""
    from html import escape  # noqa: PLC0415  (only notebooks wait for it)

    rows = "".join(
        f"<tr><th style='text-align:left;vertical-align:top'>{escape(name)}</th>"
        f"<td style='text-align:left'><pre style='margin:0'>{escape(value)}</pre></td></tr>"
        for name, value in facts.items()
        if value
    )
    return f"<div><strong>icechunk_arrow.{escape(title)}</strong><table>{rows}</table></div>"
