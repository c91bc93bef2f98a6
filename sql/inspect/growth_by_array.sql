-- purpose:    growth per commit and array: by how many chunks and bytes each commit let each array grow or shrink
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  snapshots, history_entries
-- columns:    snapshot text, written_at time, path text, node_id integer, chunk_count integer, added_chunks integer,
--             stored_bytes integer, added_bytes integer
-- An array is followed by its id, so that moving it is no growth; of one that is gone the last path stands.
WITH held AS (
    SELECT
        e.snapshot,
        e.node_id,
        min(e.path) AS path,
        sum(e.chunk_count) AS chunks,
        sum(e.stored_bytes) AS bytes
    FROM {history_entries} AS e
    GROUP BY e.snapshot, e.node_id
),
sides AS (
    SELECT h.snapshot, h.node_id, h.path, NULL AS earlier_path, h.chunks, h.bytes, 0 AS old_chunks, 0 AS old_bytes
    FROM held AS h
    UNION ALL
    SELECT n.snapshot, h.node_id, NULL, h.path, 0, 0, h.chunks, h.bytes
    FROM {snapshots} AS n
    JOIN held AS h ON h.snapshot = n.parent
),
compared AS (
    SELECT
        s.snapshot,
        s.node_id,
        coalesce(max(s.path), max(s.earlier_path)) AS path,
        CAST(sum(s.chunks) AS BIGINT) AS chunk_count,
        CAST(sum(s.chunks) - sum(s.old_chunks) AS BIGINT) AS added_chunks,
        CAST(sum(s.bytes) AS BIGINT) AS stored_bytes,
        CAST(sum(s.bytes) - sum(s.old_bytes) AS BIGINT) AS added_bytes
    FROM sides AS s
    GROUP BY s.snapshot, s.node_id
)
SELECT
    c.snapshot,
    n.written_at,
    c.path,
    c.node_id,
    c.chunk_count,
    c.added_chunks,
    c.stored_bytes,
    c.added_bytes
FROM compared AS c
JOIN {snapshots} AS n ON n.snapshot = c.snapshot
WHERE c.added_chunks <> 0 OR c.added_bytes <> 0
