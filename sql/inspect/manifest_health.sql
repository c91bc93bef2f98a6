-- purpose:    health of manifests: fill, overlap with others, and order
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  manifests, extents, chunks
-- columns:    manifest text, manifest_set text, size_bytes integer, row_count integer, array_count integer,
--             fill number, bytes_per_row number, overlapping integer, out_of_order integer
-- overlapping is how many other manifests have a box in the grid of an array that meets the box of this one: a look-up
-- there opens them all. out_of_order is for how many arrays the chunks begin, as coordinates are ordered, before those
-- of an earlier manifest end.
WITH meeting AS (
    SELECT a.node_id, a.manifest, b.manifest AS other
    FROM {extents} AS a
    JOIN {extents} AS b ON b.node_id = a.node_id AND b.dimension = a.dimension AND b.manifest <> a.manifest
    WHERE a.first_index < b.stop_index AND b.first_index < a.stop_index
    GROUP BY a.node_id, a.manifest, b.manifest, a.ndim
    HAVING count(*) = a.ndim
),
met AS (
    SELECT m.manifest, count(DISTINCT m.other) AS overlapping
    FROM meeting AS m
    GROUP BY m.manifest
),
spans AS (
    SELECT c.node_id, c.manifest, min(c.coord) AS first_coord, max(c.coord) AS last_coord
    FROM {chunks} AS c
    GROUP BY c.node_id, c.manifest
),
placed AS (
    SELECT
        s.manifest,
        s.first_coord,
        max(s.last_coord) OVER (
            PARTITION BY s.node_id
            ORDER BY s.first_coord, s.manifest
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS earlier_last
    FROM spans AS s
),
disorder AS (
    SELECT p.manifest, count(*) AS out_of_order
    FROM placed AS p
    WHERE p.first_coord <= p.earlier_last
    GROUP BY p.manifest
)
SELECT
    m.manifest,
    m.manifest_set,
    m.size_bytes,
    m.row_count,
    m.array_count,
    m.fill,
    CAST(m.size_bytes AS DOUBLE) / nullif(m.row_count, 0) AS bytes_per_row,
    coalesce(o.overlapping, 0) AS overlapping,
    coalesce(d.out_of_order, 0) AS out_of_order
FROM {manifests} AS m
LEFT JOIN met AS o ON o.manifest = m.manifest
LEFT JOIN disorder AS d ON d.manifest = m.manifest
