-- purpose:    gaps along a dimension: runs of chunk indices of which no chunk is there, or some are missing
-- engines:    DuckDB, Spark
-- parameters: path       array = null       the array; all arrays if null
--             dimension  dimension = 0      number of the dimension, from 0
-- relations:  dimensions, chunks
-- columns:    path text, dimension integer, state text, first_index integer, stop_index integer,
--             missing_chunks integer
-- state is missing or partial; missing_chunks is null in a grid of more than 2^63-1 chunks. An empty run lies between
-- two neighbouring indices that are there, so that it costs nothing to be long.
WITH axes AS (
    SELECT d.path, d.index_count, d.chunks_per_index
    FROM {dimensions} AS d
    WHERE d.dimension = {dimension}
        AND ({path} IS NULL OR d.path = {path})
        AND (d.chunks_per_index > 0 OR d.chunks_per_index IS NULL)
),
held AS (
    SELECT c.path, c.place, count(*) AS chunks
    FROM (
        SELECT r.path, {item_at}(r.index, CAST({dimension} + 1 AS INT)) AS place
        FROM {chunks} AS r
        WHERE {path} IS NULL OR r.path = {path}
    ) AS c
    GROUP BY c.path, c.place
),
marks AS (
    SELECT a.path, a.index_count, a.chunks_per_index, h.place, h.chunks
    FROM axes AS a
    JOIN held AS h ON h.path = a.path
    UNION ALL
    SELECT a.path, a.index_count, a.chunks_per_index, CAST(-1 AS BIGINT), NULL
    FROM axes AS a
),
empty_runs AS (
    SELECT
        m.path,
        m.chunks_per_index,
        m.place + 1 AS first_index,
        coalesce(lead(m.place) OVER (PARTITION BY m.path ORDER BY m.place), m.index_count) AS stop_index
    FROM marks AS m
),
partial_places AS (
    SELECT
        m.path,
        m.place,
        m.chunks_per_index - m.chunks AS missing_chunks,
        m.place - row_number() OVER (PARTITION BY m.path ORDER BY m.place) AS island
    FROM marks AS m
    WHERE m.chunks < coalesce(m.chunks_per_index, 9223372036854775807)
)
SELECT
    e.path,
    {dimension} AS dimension,
    'missing' AS state,
    e.first_index,
    e.stop_index,
    (e.stop_index - e.first_index) * e.chunks_per_index AS missing_chunks
FROM empty_runs AS e
WHERE e.first_index < e.stop_index
UNION ALL
SELECT
    p.path,
    {dimension},
    'partial',
    min(p.place),
    max(p.place) + 1,
    CAST(sum(p.missing_chunks) AS BIGINT)
FROM partial_places AS p
GROUP BY p.path, p.island
