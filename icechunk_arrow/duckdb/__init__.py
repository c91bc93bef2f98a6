"""DuckDB views over a repository: its chunk manifests are the tables, read where they are.

>>> import duckdb, icechunk_arrow.duckdb
>>> con = duckdb.connect()
>>> icechunk_arrow.duckdb.attach(con, "s3://bucket/weather", name="weather")  # doctest: +SKIP
>>> con.sql("SELECT path, chunk_count, missing FROM weather.arrays")  # doctest: +SKIP
"""

from icechunk_arrow.duckdb.attaching import Attached, attach, detach, refresh
from icechunk_arrow.duckdb.scripting import sql_script

__all__ = ["Attached", "attach", "detach", "refresh", "sql_script"]
