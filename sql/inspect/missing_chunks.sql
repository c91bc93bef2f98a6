-- purpose:    arrays that lack chunks of their grid, and how many
-- engines:    DuckDB, Spark
-- parameters: path  array = null  the array; all arrays if null
-- relations:  arrays
-- columns:    path text, grid_chunk_count integer, chunk_count integer, missing integer, present_share number
-- Of a grid of more than 2^63-1 chunks neither their number nor how many are missing is known as an integer.
SELECT
    a.path,
    a.grid_chunk_count,
    a.chunk_count,
    a.missing,
    CAST(a.chunk_count AS DOUBLE) / a.grid_chunk_count AS present_share
FROM {arrays} AS a
WHERE ({path} IS NULL OR a.path = {path})
    AND (a.missing > 0 OR a.grid_chunk_count IS NULL)
