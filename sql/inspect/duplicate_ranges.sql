-- purpose:    duplicate byte ranges: one range of one file that several chunks refer to
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  chunks
-- columns:    location text, first_byte integer, length integer, chunk_count integer, array_count integer,
--             repeated_bytes integer
-- A range without bytes is none.
SELECT
    c.location,
    c.offset AS first_byte,
    c.length,
    count(*) AS chunk_count,
    count(DISTINCT c.node_id) AS array_count,
    (count(*) - 1) * c.length AS repeated_bytes
FROM {chunks} AS c
WHERE c.location IS NOT NULL AND c.length > 0
GROUP BY c.location, c.offset, c.length
HAVING count(*) > 1
