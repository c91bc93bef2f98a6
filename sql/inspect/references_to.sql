-- purpose:    who still refers to a file, or to files below a prefix, in any snapshot of any branch or tag
-- engines:    DuckDB, Spark
-- parameters: location  text  URI of a file, or the beginning of the URIs of several
-- relations:  all_rows, all_entries, ref_snapshots
-- columns:    type text, name text, path text, at_tip boolean, snapshot_count integer, newest_snapshot text,
--             chunk_count integer, bytes integer
-- A row for each array of each branch and tag. snapshot_count is how many snapshots of its history refer there;
-- chunk_count and bytes are those of the newest such snapshot, which is the branch's or tag's own if at_tip.
WITH held AS (
    SELECT r.manifest, r.node_id, count(*) AS chunks, CAST(sum(r.length) AS BIGINT) AS bytes
    FROM {all_rows} AS r
    WHERE left(r.location, length({location})) = {location}
    GROUP BY r.manifest, r.node_id
),
referring AS (
    SELECT
        e.snapshot,
        e.path,
        CAST(sum(h.chunks) AS BIGINT) AS chunks,
        CAST(sum(h.bytes) AS BIGINT) AS bytes
    FROM {all_entries} AS e
    JOIN held AS h ON h.manifest = e.manifest AND h.node_id = e.node_id
    GROUP BY e.snapshot, e.path
)
SELECT
    s.type,
    s.name,
    f.path,
    min(s.age) = 0 AS at_tip,
    count(*) AS snapshot_count,
    min_by(f.snapshot, s.age) AS newest_snapshot,
    min_by(f.chunks, s.age) AS chunk_count,
    min_by(f.bytes, s.age) AS bytes
FROM {ref_snapshots} AS s
JOIN referring AS f ON f.snapshot = s.snapshot
GROUP BY s.type, s.name, f.path
