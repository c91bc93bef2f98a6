"""``format("icechunk")``: what Spark asks of a Python data source, answered with reading and writing."""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """Let a Spark session, classic or of Spark Connect, read and write ``format("icechunk")``.

    The driver and the executors must be able to import this package: it is installed there, or shipped as a zip
    before this is called (``spark.addArtifacts(zip, pyfile=True)``, ``--py-files``, ``spark.submit.pyFiles``).
    """
    from icechunk_arrow.spark.source.data_source import IcechunkSource  # noqa: PLC0415  (needs pyspark, an extra)

    spark.dataSource.register(IcechunkSource)
