"""Delta tables that show the chunk inventories of repositories, kept up to date from snapshot to snapshot.

>>> import icechunk_arrow.delta
>>> icechunk_arrow.delta.publish(spark, "s3://bucket/weather", "lake.chunks")  # doctest: +SKIP
>>> icechunk_arrow.delta.version_of(spark, "lake.chunks", snapshot_id)  # doctest: +SKIP

Each publishing is one commit of the table, which says in its user metadata what it shows: nothing is left half
done, and what has been done already is not done again.
"""

from __future__ import annotations

from icechunk_arrow.delta.publishing import (
    Publication,
    publish,
    published,
    snapshot_of,
    version_of,
)

__all__ = ["Publication", "publish", "published", "snapshot_of", "version_of"]
