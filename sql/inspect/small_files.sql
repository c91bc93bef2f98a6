-- purpose:    files of which few bytes are in use
-- engines:    DuckDB, Spark
-- parameters: smaller_than_bytes  integer = 1048576 from 0  a file is small if fewer bytes of it are in use
-- relations:  files
-- columns:    location text, kind text, bytes_referenced integer, chunk_count integer, array_count integer
SELECT f.location, f.kind, f.bytes_referenced, f.chunk_count, f.array_count
FROM {files} AS f
WHERE f.bytes_referenced < {smaller_than_bytes}
