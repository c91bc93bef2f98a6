-- purpose:    what changed between two snapshots: for each node how often each change, and bytes before and after
-- engines:    DuckDB, Spark
-- parameters: since  snapshot = null  the earlier snapshot, by id, branch or tag; the parent if null
-- relations:  changes
-- columns:    path text, change text, node_type text, change_count integer, before_bytes integer,
--             after_bytes integer
-- The relation is what changed since that snapshot.
SELECT
    c.path,
    c.change,
    c.node_type,
    count(*) AS change_count,
    CAST(sum(coalesce(c.before_length, 0)) AS BIGINT) AS before_bytes,
    CAST(sum(coalesce(c.after_length, 0)) AS BIGINT) AS after_bytes
FROM {changes} AS c
GROUP BY c.path, c.change, c.node_type
