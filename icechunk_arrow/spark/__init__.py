"""Spark views over a repository: its chunk manifests are the tables, read by Spark where they are.

>>> import icechunk_arrow.spark
>>> icechunk_arrow.spark.attach(spark, "s3://bucket/weather", name="weather")  # doctest: +SKIP
>>> spark.sql("SELECT path, chunk_count, missing FROM weather_arrays")  # doctest: +SKIP
"""

from icechunk_arrow.spark.attaching import Attached, attach, detach, refresh

__all__ = ["Attached", "attach", "detach", "refresh"]
