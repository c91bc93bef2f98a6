"""How a snapshot remembers which batches of streaming queries are in it, so that none is applied twice.

Specification: schemas/README.md#streams

Owns two names among a snapshot's properties: the batch that a commit brought, and the last batch of every query so
far. The latter goes from each snapshot to its child, whoever commits: see :func:`carried`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icechunk_arrow.errors import InvalidInputError

__all__ = ["LAST_BATCHES", "THIS_BATCH", "Batch", "carried"]

LAST_BATCHES = "icechunk_arrow.streams"
"""Last batch by query id."""
THIS_BATCH = "icechunk_arrow.stream_batch"
"""Query id and batch id of the commit itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of one streaming query."""

    query_id: str
    batch_id: int

    def is_in(self, properties: Mapping[str, Any]) -> bool:
        """Whether a snapshot with these properties has the batch.

        Only the last batch of a query is ever repeated: Spark begins with a batch when the one before stands in the
        query's checkpoint. One before the last is of another checkpoint, and would be lost if it were passed over.
        """
        last = _last_batches(properties).get(self.query_id)
        if last is None or self.batch_id > last:
            return False
        if self.batch_id < last:
            raise InvalidInputError(
                f"batch {self.batch_id} of the query {self.query_id!r} comes after batch {last}: this is another "
                f"checkpoint of the query, or an old copy of it. Nothing was changed. Give a query with a new "
                f"checkpoint a new query_id, or reset the branch to the commit that the checkpoint belongs to.",
                query_id=self.query_id,
                batch_id=self.batch_id,
            )
        return True

    def marks(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the commit of the batch has among its properties, on top of a snapshot with these."""
        return {
            THIS_BATCH: {"query_id": self.query_id, "batch_id": self.batch_id},
            LAST_BATCHES: {**_last_batches(properties), self.query_id: self.batch_id},
        }


def _last_batches(properties: Mapping[str, Any]) -> dict[str, int]:
    found = properties.get(LAST_BATCHES, {})
    return dict(found) if isinstance(found, Mapping) else {}


def carried(before: Mapping[str, Any], properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the properties of a snapshot whose parent has those ``before``."""
    if LAST_BATCHES not in before or LAST_BATCHES in properties:
        return properties
    return {**properties, LAST_BATCHES: before[LAST_BATCHES]}
