-- purpose:    one row for each chunk of a snapshot, and where its bytes are
-- engines:    DuckDB, Spark
-- relations:  chunk_rows     the rows of all live manifests, with the paths of their arrays
--             chunk_columns  the names of the columns, but for the last
-- columns:    path, node_id, index, coord, kind, location, offset, length, etag, last_modified, crc32c,
--             manifest, snapshot
SELECT {chunk_columns}, {snapshot} AS snapshot
FROM {chunk_rows} AS r
