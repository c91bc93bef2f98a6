-- purpose:    sizes per array: chunks there and missing, files, bytes, and the share of all stored bytes
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  arrays
-- columns:    path text, grid_chunk_count integer, chunk_count integer, missing integer, files integer,
--             manifests integer, stored_bytes integer, logical_bytes integer, mean_chunk_bytes number, share number
SELECT
    a.path,
    a.grid_chunk_count,
    a.chunk_count,
    a.missing,
    a.files,
    a.manifests,
    a.stored_bytes,
    a.logical_bytes,
    CAST(a.stored_bytes AS DOUBLE) / nullif(a.chunk_count, 0) AS mean_chunk_bytes,
    CAST(a.stored_bytes AS DOUBLE) / nullif(t.stored_bytes, 0) AS share
FROM {arrays} AS a
CROSS JOIN (SELECT sum(CAST(stored_bytes AS DOUBLE)) AS stored_bytes FROM {arrays}) AS t
