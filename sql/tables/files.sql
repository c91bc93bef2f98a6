-- purpose:    one row for each chunk file of the repository, and for each file of somebody else that chunks are in
-- engines:    DuckDB, Spark
-- relations:  manifest_rows  the rows of all live manifests: node_id, kind, location, offset, length
-- columns:    location, kind, bytes_referenced, chunk_count, array_count, first_byte, last_byte, snapshot
SELECT
    r.location,
    min(r.kind) AS kind,
    CAST(sum(r.length) AS BIGINT) AS bytes_referenced,
    count(*) AS chunk_count,
    count(DISTINCT r.node_id) AS array_count,
    min(r.offset) AS first_byte,
    max(r.offset + r.length) - 1 AS last_byte,
    {snapshot} AS snapshot
FROM {manifest_rows} AS r
WHERE r.location IS NOT NULL
GROUP BY r.location
