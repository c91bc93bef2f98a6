"""How a Spark session gets Delta Lake: in this process, or in one that is going to be killed."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["delta_settings", "end_java"]


def delta_settings() -> dict[str, str]:
    """Give the settings of a session with Delta; its jars come once, and are kept in the cache."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    settings = {
        "spark.jars.packages": builder._options["spark.jars.packages"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    cache = os.environ.get("ICECHUNK_ARROW_CACHE")
    return settings | ({"spark.jars.ivy": str(Path(cache) / "ivy")} if cache else {})


def end_java() -> None:
    """End the Java machine that this process began, if any: sessions after it get one of their own."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    if getattr(gateway, "proc", None) is not None:
        gateway.proc.stdin.close()
        gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
