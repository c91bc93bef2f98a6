-- purpose:    fragmentation per array: over how many files its chunks lie, and how many of these are small
-- engines:    DuckDB, Spark
-- parameters: smaller_than_bytes  integer = 1048576 from 0  a file is small if fewer bytes of it are in use
-- relations:  chunks, files
-- columns:    path text, kind text, files integer, small_files integer, one_chunk_files integer, chunk_count integer,
--             stored_bytes integer, chunks_per_file number, bytes_per_file number
SELECT
    c.path,
    c.kind,
    count(*) AS files,
    count(CASE WHEN f.bytes_referenced < {smaller_than_bytes} THEN 1 END) AS small_files,
    count(CASE WHEN f.chunk_count = 1 THEN 1 END) AS one_chunk_files,
    CAST(sum(c.chunks) AS BIGINT) AS chunk_count,
    CAST(sum(c.bytes) AS BIGINT) AS stored_bytes,
    CAST(CAST(sum(c.chunks) AS BIGINT) AS DOUBLE) / count(*) AS chunks_per_file,
    CAST(CAST(sum(c.bytes) AS BIGINT) AS DOUBLE) / count(*) AS bytes_per_file
FROM (
    SELECT r.path, r.kind, r.location, count(*) AS chunks, CAST(sum(r.length) AS BIGINT) AS bytes
    FROM {chunks} AS r
    WHERE r.location IS NOT NULL
    GROUP BY r.path, r.kind, r.location
) AS c
JOIN {files} AS f ON f.location = c.location
GROUP BY c.path, c.kind
