-- purpose:    stored against logical bytes per chain of codecs and data type
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  arrays, nodes
-- columns:    codecs text, data_type text, array_count integer, chunk_count integer, stored_bytes integer,
--             held_bytes number, compression_ratio number
-- held_bytes is the size of the elements in the chunks that are there, by their share of each array's grid; arrays
-- whose elements have no fixed size are counted, and are in neither it nor the ratio.
SELECT
    c.codecs,
    c.data_type,
    count(*) AS array_count,
    CAST(sum(c.chunk_count) AS BIGINT) AS chunk_count,
    CAST(sum(c.stored_bytes) AS BIGINT) AS stored_bytes,
    sum(c.held_bytes) AS held_bytes,
    sum(c.held_bytes) / nullif(sum(CASE WHEN c.held_bytes IS NOT NULL THEN c.stored_bytes END), 0) AS compression_ratio
FROM (
    SELECT
        n.codecs,
        n.data_type,
        a.chunk_count,
        a.stored_bytes,
        CAST(
            floor(CAST(a.logical_bytes AS DOUBLE) * a.chunk_count / nullif(a.grid_chunk_count, 0)) AS DOUBLE
        ) AS held_bytes
    FROM {arrays} AS a
    JOIN {nodes} AS n ON n.path = a.path
) AS c
GROUP BY c.codecs, c.data_type
