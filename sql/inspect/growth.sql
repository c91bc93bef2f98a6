-- purpose:    growth per commit: chunks and stored bytes of each snapshot, and how many more than its parent has
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  snapshots, history_entries, history_rows
-- columns:    snapshot text, parent text, written_at time, message text, chunk_count integer, added_chunks integer,
--             stored_bytes integer, added_bytes integer, manifest_count integer, manifest_bytes integer
-- Bytes are added up once for each array in each manifest, however many snapshots have it.
WITH sums AS (
    SELECT r.manifest, r.node_id, CAST(sum(r.length) AS BIGINT) AS bytes
    FROM {history_rows} AS r
    GROUP BY r.manifest, r.node_id
),
held AS (
    SELECT e.snapshot, CAST(sum(s.bytes) AS BIGINT) AS bytes
    FROM {history_entries} AS e
    JOIN sums AS s ON s.manifest = e.manifest AND s.node_id = e.node_id
    GROUP BY e.snapshot
)
SELECT
    n.snapshot,
    n.parent,
    n.written_at,
    n.message,
    n.chunk_count,
    n.chunk_count - coalesce(p.chunk_count, 0) AS added_chunks,
    coalesce(h.bytes, 0) AS stored_bytes,
    coalesce(h.bytes, 0) - coalesce(b.bytes, 0) AS added_bytes,
    n.manifest_count,
    n.manifest_bytes
FROM {snapshots} AS n
LEFT JOIN {snapshots} AS p ON p.snapshot = n.parent
LEFT JOIN held AS h ON h.snapshot = n.snapshot
LEFT JOIN held AS b ON b.snapshot = n.parent
