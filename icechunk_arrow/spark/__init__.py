"""Spark and repositories: views over chunk inventories, reading arrays as rows, writing in one atomic commit.

>>> import icechunk_arrow.spark
>>> icechunk_arrow.spark.attach(spark, "s3://bucket/weather", name="weather")  # doctest: +SKIP
>>> spark.sql("SELECT path, chunk_count, missing FROM weather_arrays")  # doctest: +SKIP
"""

from icechunk_arrow.core.axis_lookup import RegularGrid
from icechunk_arrow.spark.reading.arrays import read_array
from icechunk_arrow.spark.source import register
from icechunk_arrow.spark.views.attaching import Attached, attach, detach, refresh
from icechunk_arrow.spark.views.scripting import sql_script
from icechunk_arrow.spark.writing.chunks import write_chunks, write_references
from icechunk_arrow.spark.writing.rows import write_rows
from icechunk_arrow.spark.writing.streams import each_batch
from icechunk_arrow.spark.writing.targets import WriteResult
from icechunk_arrow.spark.writing.tasks import TaskTotals

__all__ = [
    "Attached",
    "RegularGrid",
    "TaskTotals",
    "WriteResult",
    "attach",
    "detach",
    "each_batch",
    "read_array",
    "refresh",
    "register",
    "sql_script",
    "write_chunks",
    "write_references",
    "write_rows",
]
