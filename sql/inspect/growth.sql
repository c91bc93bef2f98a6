-- purpose:    growth per commit: chunks and stored bytes of each snapshot, and how many more than its parent has
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  snapshots
-- columns:    snapshot text, parent text, written_at time, message text, chunk_count integer, added_chunks integer,
--             stored_bytes integer, added_bytes integer, manifest_count integer, manifest_bytes integer
SELECT
    n.snapshot,
    n.parent,
    n.written_at,
    n.message,
    n.chunk_count,
    n.chunk_count - coalesce(p.chunk_count, 0) AS added_chunks,
    n.stored_bytes,
    n.stored_bytes - coalesce(p.stored_bytes, 0) AS added_bytes,
    n.manifest_count,
    n.manifest_bytes
FROM {snapshots} AS n
LEFT JOIN {snapshots} AS p ON p.snapshot = n.parent
