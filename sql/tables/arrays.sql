-- purpose:    one row for each array: what there is of it and what is missing, stored and logical size
-- engines:    DuckDB, Spark
-- relations:  nodes       the table of this name
--             entries     one row for each array in each live manifest: path
--             array_rows  the rows of all live manifests: path, kind, location, length
-- columns:    path, node_id, grid_chunk_count, chunk_count, missing, inline_chunks, native_chunks, virtual_chunks,
--             stored_bytes, logical_bytes, compression_ratio, files, manifests, snapshot
-- Rows are counted by file before they are counted by array: count(DISTINCT location) would be as fast, but a condition
-- on the path would not come through it.
SELECT
    n.path,
    n.node_id,
    n.grid_chunk_count,
    coalesce(c.chunk_count, 0) AS chunk_count,
    n.grid_chunk_count - coalesce(c.chunk_count, 0) AS missing,
    coalesce(c.inline_chunks, 0) AS inline_chunks,
    coalesce(c.native_chunks, 0) AS native_chunks,
    coalesce(c.virtual_chunks, 0) AS virtual_chunks,
    coalesce(c.stored_bytes, 0) AS stored_bytes,
    n.logical_bytes,
    CASE WHEN c.stored_bytes > 0 AND n.grid_chunk_count > 0
        THEN CAST(n.logical_bytes AS DOUBLE) * c.chunk_count / n.grid_chunk_count / c.stored_bytes
    END AS compression_ratio,
    coalesce(c.files, 0) AS files,
    coalesce(e.manifests, 0) AS manifests,
    {snapshot} AS snapshot
FROM {nodes} AS n
LEFT JOIN (
    SELECT
        f.path,
        CAST(sum(f.chunks) AS BIGINT) AS chunk_count,
        CAST(sum(f.chunks) FILTER (WHERE f.kind = 'inline') AS BIGINT) AS inline_chunks,
        CAST(sum(f.chunks) FILTER (WHERE f.kind = 'native') AS BIGINT) AS native_chunks,
        CAST(sum(f.chunks) FILTER (WHERE f.kind = 'virtual') AS BIGINT) AS virtual_chunks,
        CAST(sum(f.bytes) AS BIGINT) AS stored_bytes,
        count(f.location) AS files
    FROM (
        SELECT r.path, r.kind, r.location, count(*) AS chunks, CAST(sum(r.length) AS BIGINT) AS bytes
        FROM {array_rows} AS r
        GROUP BY r.path, r.kind, r.location
    ) AS f
    GROUP BY f.path
) AS c ON c.path = n.path
LEFT JOIN (SELECT path, count(*) AS manifests FROM {entries} GROUP BY path) AS e ON e.path = n.path
WHERE n.type = 'array'
