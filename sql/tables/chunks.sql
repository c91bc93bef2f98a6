-- purpose:    one row for each chunk of a snapshot, and where its bytes are
-- engines:    DuckDB, Spark
-- relations:  chunk_rows  the rows of all live manifests, with the paths of their arrays
-- columns:    path, node_id, index, coord, kind, location, offset, length, etag, last_modified, crc32c, manifest,
--             snapshot
SELECT
    r.path,
    r.node_id,
    r.index,
    r.coord,
    r.kind,
    r.location,
    r.offset,
    r.length,
    r.etag,
    r.last_modified,
    r.crc32c,
    r.manifest,
    {snapshot} AS snapshot
FROM {chunk_rows} AS r
