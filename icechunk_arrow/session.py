"""The session that people hold: the engine's, with its store and its pictures."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from icechunk_arrow.core.html import html_of
from icechunk_arrow.engine.session import BaseSession
from icechunk_arrow.tables.reading import read_table
from icechunk_arrow.zarr import IcechunkStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Session"]


class Session(BaseSession):
    """Reads one snapshot; on a branch, also gathers changes and commits them.

    Sessions come from :meth:`Repository.readonly_session` and :meth:`Repository.writable_session`. They and
    their stores are safe to use from many threads. A read-only session pickles.
    """

    @cached_property
    def store(self) -> IcechunkStore:
        """The Zarr store: what ``zarr.open_group`` and ``xarray.open_zarr`` take."""
        return IcechunkStore(self, read_only=self.read_only)

    def table(self, name: str, *, since: str | None = None) -> pa.Table:
        """Give a table about the snapshot that this session began on; :meth:`Repository.tables` names them.

        Changes that are not committed are in none.
        """
        return read_table(self._context, name, self.snapshot_id, since)

    def _repr_html_(self) -> str:
        return html_of(
            "Session",
            {
                "repository": self._context.storage.url,
                "branch": self.branch or "(read-only)",
                "snapshot": self.snapshot_id,
                "uncommitted changes": str(self.status()) if not self.read_only else "",
            },
        )
