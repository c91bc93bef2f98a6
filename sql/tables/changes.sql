-- purpose:    what changed between two snapshots: nodes, and chunks one by one
-- engines:    DuckDB, Spark
-- relations:  node_changes  path, change, node_id, node_type, from_path: how the two structure files differ
--             before_rows   rows of the manifests that the earlier snapshot alone has: as chunk_rows, with inline_data
--             after_rows    rows of the manifests that the later one alone has
-- columns:    path, change, node_id, node_type, from_path, index, coord, before_kind, before_location, before_offset,
--             before_length, after_kind, after_location, after_offset, after_length, from_snapshot, to_snapshot
-- Manifests that both snapshots have hold the same chunks for both. Of the others, rows that only moved from one to
-- another are no changes.
SELECT
    d.path,
    d.change,
    d.node_id,
    d.node_type,
    d.from_path,
    NULL AS index,
    NULL AS coord,
    NULL AS before_kind,
    NULL AS before_location,
    NULL AS before_offset,
    NULL AS before_length,
    NULL AS after_kind,
    NULL AS after_location,
    NULL AS after_offset,
    NULL AS after_length,
    {from_snapshot} AS from_snapshot,
    {to_snapshot} AS to_snapshot
FROM {node_changes} AS d
UNION ALL
SELECT
    coalesce(a.path, b.path),
    CASE
        WHEN b.coord IS NULL THEN 'chunk_added'
        WHEN a.coord IS NULL THEN 'chunk_removed'
        ELSE 'chunk_replaced'
    END,
    coalesce(a.node_id, b.node_id),
    'array',
    NULL,
    coalesce(a.index, b.index),
    coalesce(a.coord, b.coord),
    b.kind,
    b.location,
    b.offset,
    b.length,
    a.kind,
    a.location,
    a.offset,
    a.length,
    {from_snapshot},
    {to_snapshot}
FROM {before_rows} AS b
FULL OUTER JOIN {after_rows} AS a ON a.node_id = b.node_id AND a.coord = b.coord
WHERE a.coord IS NULL
    OR b.coord IS NULL
    OR a.kind <> b.kind
    OR a.length <> b.length
    OR a.location IS DISTINCT FROM b.location
    OR a.offset IS DISTINCT FROM b.offset
    OR a.etag IS DISTINCT FROM b.etag
    OR a.last_modified IS DISTINCT FROM b.last_modified
    OR a.inline_data IS DISTINCT FROM b.inline_data
