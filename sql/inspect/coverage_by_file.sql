-- purpose:    coverage of a dimension by file: which chunk indices along it each file of an array has
-- engines:    DuckDB, Spark
-- parameters: path       array              the array
--             dimension  dimension = 0      number of the dimension, from 0
-- relations:  chunks
-- columns:    location text, kind text, first_index integer, stop_index integer, index_count integer,
--             contiguous boolean, chunk_count integer, bytes integer
-- Inline chunks are in no file: they are the row whose location is null.
SELECT
    c.location,
    min(c.kind) AS kind,
    min(c.place) AS first_index,
    max(c.place) + 1 AS stop_index,
    count(DISTINCT c.place) AS index_count,
    count(DISTINCT c.place) = max(c.place) + 1 - min(c.place) AS contiguous,
    count(*) AS chunk_count,
    CAST(sum(c.length) AS BIGINT) AS bytes
FROM (
    SELECT r.location, r.kind, r.length, {item_at}(r.index, CAST({dimension} + 1 AS INT)) AS place
    FROM {chunks} AS r
    WHERE r.path = {path}
) AS c
GROUP BY c.location
