"""Commits as placement sees them: how many rows of which array each manifest has, and what is rewritten.

A simulation of counts alone, so that thousands of commits take a moment.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from icechunk_arrow.core import placement
from icechunk_arrow.core.placement import Live

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_arrow.core.manifest_settings import ManifestSettings
    from icechunk_arrow.core.packing import ArrayShape

__all__ = ["Appends"]


class Appends:
    """The live manifests of a branch to which rows are only added."""

    def __init__(
        self,
        settings: ManifestSettings,
        shapes: Mapping[int, ArrayShape],
        manifests: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self.settings = settings
        self.shapes = shapes
        self.manifests = {name: dict(held) for name, held in (manifests or {}).items()}
        self._last = 0

    def _add(self, rows: Mapping[int, int]) -> None:
        self._last += 1
        self.manifests[f"n{self._last:08}"] = dict(rows)

    def _placed(self, rows: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """What `place` makes of so many rows; arrays are cut into full manifests and a rest."""
        shapes = self.shapes
        for chosen, members in placement.groups_of(self.settings, rows, shapes):
            limit, size = placement.limit_of(chosen), sum(rows[each] for each in members)
            if size <= limit:
                yield {each: rows[each] for each in members}
                continue
            for start in range(0, size, limit):
                yield {members[0]: min(limit, size - start)}

    def merge(self) -> int:
        """Merge what has gathered, as a commit does first; gives the rows written again."""
        live = Live(
            row_counts={name: sum(held.values()) for name, held in self.manifests.items()},
            tenants=self.manifests,
        )
        shapes = self.shapes
        rewritten = 0
        for unit in placement.choose_units(live, (), (), self.settings, shapes):
            total: Counter[int] = Counter()
            for name in unit:
                total.update(self.manifests.pop(name))
            rewritten += total.total()
            for held in self._placed(total):
                self._add(held)
        return rewritten

    def commit(self, rows: Mapping[int, int]) -> int:
        """Add rows of arrays that stand somewhere already; gives the rows that were written again."""
        rewritten = self.merge()
        if sum(rows.values()) <= placement.SMALL_ROWS:
            self._add(rows)
        else:
            for held in self._placed(rows):
                self._add(held)
        return rewritten
