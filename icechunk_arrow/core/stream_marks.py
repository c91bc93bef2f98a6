"""How a snapshot remembers which batches of streaming queries are in it, so that none is applied twice.

Specification: schemas/README.md#streams

Owns two names among a snapshot's properties: the batch that a commit brought, and the last batch of every query so
far. The latter goes from each snapshot to its child, whichever session commits: see :func:`carried`. A query is
known by its name and by what it writes: batches of one source that go to two places are two queries, and each has
to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from icechunk_arrow.errors import InvalidInputError

__all__ = [
    "LAST_BATCHES",
    "THIS_BATCH",
    "Advance",
    "Batch",
    "Marks",
    "Query",
    "carried",
    "last_batches",
]

LAST_BATCHES = "icechunk_arrow.streams"
"""Last batch by query id."""
THIS_BATCH = "icechunk_arrow.stream_batch"
"""Query id and batch id of the commit itself."""


class Marks(Protocol):
    """What a commit brings of queries."""

    def is_in(self, properties: Mapping[str, Any]) -> bool:
        """Whether a snapshot with these properties has it."""
        ...

    def marks(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Give what its commit has among its properties, on top of a snapshot with these."""
        ...


class Query(Struct, frozen=True, kw_only=True):
    """A streaming query that writes into some places of a repository."""

    kind: str
    targets: tuple[str, ...] = ()
    checkpoint: str | None = None
    """The id that Spark keeps in its checkpoint; None where it cannot be seen."""
    name: str | None = None
    """What a user calls it."""

    @property
    def id(self) -> str:
        """What it is called among properties."""
        parts = [each for each in (self.name, self.checkpoint) if each is not None]
        return "@".join(parts) + self._into

    @property
    def _into(self) -> str:
        return f":{self.kind}:{','.join(sorted(self.targets))}"

    def batch(self, number: int) -> Batch:
        """Give one of its batches."""
        return Batch(query_id=self.id, batch_id=number, query=self)

    def namesake(self, properties: Mapping[str, Any]) -> str | None:
        """Find a query of the same name into the same places whose checkpoint is another one."""
        if self.name is None or self.checkpoint is None:
            return None
        before, behind = f"{self.name}@", self._into
        for each in last_batches(properties):
            other = each.removeprefix(before).removesuffix(behind)
            if each == f"{before}{other}{behind}" and other != self.checkpoint:
                return each
        return None


class Batch(Struct, frozen=True, kw_only=True):
    """One batch of one streaming query."""

    query_id: str
    batch_id: int
    query: Query | None = None
    """What is known of the query."""

    def is_in(self, properties: Mapping[str, Any]) -> bool:
        """Whether a snapshot with these properties has the batch.

        Only the last batch of a query is ever repeated: Spark begins with a batch when the one before stands in the
        query's checkpoint. One before the last is of another checkpoint, and would be lost if it were passed over;
        so would be one of any number that is of another checkpoint under the same name.
        """
        namesake = None if self.query is None else self.query.namesake(properties)
        if namesake is not None:
            raise InvalidInputError(
                f"batch {self.batch_id} of the query {self.query_id!r} is of another checkpoint than those of "
                f"{namesake!r}, which has the same name. Nothing was changed. Give a query with a new checkpoint a "
                f"new query_id, or reset the branch to the commit that the checkpoint belongs to.",
                query_id=self.query_id,
                batch_id=self.batch_id,
            )
        last = last_batches(properties).get(self.query_id)
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
            LAST_BATCHES: {**last_batches(properties), self.query_id: self.batch_id},
        }


class Advance(Struct, frozen=True, kw_only=True):
    """Several queries that one commit brings further, such as a table into several arrays."""

    since: Mapping[str, int | None]
    """By query, the batch that was the last one when the work began."""
    reached: Mapping[str, int]

    def is_in(self, properties: Mapping[str, Any]) -> bool:
        """Whether a snapshot has all of it; what it has in part was brought by another writer in the meantime."""
        last = last_batches(properties)
        moved = sorted(query for query in self.reached if last.get(query) != self.since[query])
        if not moved:
            return False
        if all(last.get(query, -1) >= number for query, number in self.reached.items()):
            return True
        raise InvalidInputError(
            f"somebody else has brought {moved[0]!r} to {last.get(moved[0])} in the meantime. Nothing was changed; "
            f"run this again, and it takes what is missing.",
            query_id=moved[0],
        )

    def marks(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the commit has among its properties, on top of a snapshot with these."""
        brought = [{"query_id": q, "batch_id": n} for q, n in sorted(self.reached.items())]
        return {THIS_BATCH: brought, LAST_BATCHES: {**last_batches(properties), **self.reached}}


def last_batches(properties: Mapping[str, Any]) -> dict[str, int]:
    """Give the last batch of every query that a snapshot with these properties has."""
    batches = properties.get(LAST_BATCHES, {})
    return dict(batches) if isinstance(batches, Mapping) else {}


def carried(before: Mapping[str, Any], properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the properties of a snapshot whose parent has those ``before``."""
    if LAST_BATCHES not in before or LAST_BATCHES in properties:
        return properties
    return {**properties, LAST_BATCHES: before[LAST_BATCHES]}
