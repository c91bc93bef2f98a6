-- purpose:    the chunks of one array within a box of its grid
-- engines:    DuckDB
-- parameters: array_path  the array's path
--             lower       the first index along each dimension, a list; null is no bound
--             upper       the index behind the last along each dimension, a list; null is no bound
--             lists may be shorter than the array has dimensions: there is no bound along the rest
-- relations:  entries        one row for each array in each live manifest: path, node_id, file, starts, stops
--             manifest_rows  the rows of all live manifests
-- columns:    those of chunks
-- Of manifests whose extents do not meet the box not even the footers are read: the files that entries lets through
-- become a condition on the names of files (for up to 50 of them, dynamic_or_filter_threshold). In the others the
-- comparisons with coord, constant by then, leave out row groups. The box ends, as bytes, with its last chunk, and if
-- there is no bound along the last dimension, behind all that begin with the indices before.
CREATE OR REPLACE MACRO {chunks_in}(array_path, lower, upper) AS TABLE
SELECT
    c.path,
    c.node_id,
    c.index,
    c.coord,
    c.kind,
    c.location,
    c.offset,
    c.length,
    c.etag,
    c.last_modified,
    c.crc32c,
    c.manifest,
    {snapshot} AS snapshot
FROM (
    SELECT e.path, {decode_text}(r.coord) AS index, r.*
    FROM {manifest_rows} AS r
    JOIN {entries} AS e ON e.file = r.file AND e.node_id = r.node_id
    WHERE e.path = array_path
        AND len(lower) <= e.ndim
        AND len(upper) <= e.ndim
        AND NOT list_contains(
            list_transform(
                range(1, e.ndim + 1),
                lambda d: coalesce(e.starts[d] < upper[d], true) AND coalesce(e.stops[d] > lower[d], true)),
            false)
        AND r.coord >= {coord_encode}(
            list_transform(lower, lambda i: least(greatest(coalesce(i, 0), 0), 4611686018427387903)))
        AND r.coord < CASE
            WHEN coalesce(upper[-1], 4611686018427387904) > 4611686018427387903
            THEN {coord_encode}(list_transform(
                    upper[:len(upper) - 1],
                    lambda i: least(greatest(coalesce(i, 4611686018427387904), 1), 4611686018427387904) - 1))
                || unhex(repeat('FF', 64))
            ELSE {coord_encode}(list_transform(
                range(1, len(upper) + 1),
                lambda d: least(greatest(
                    coalesce(upper[d], 4611686018427387904) - (d < len(upper))::BIGINT, 0), 4611686018427387903)))
        END
) AS c
WHERE NOT list_contains(
    list_transform(
        range(1, len(c.index) + 1),
        lambda d: coalesce(c.index[d] < upper[d], true) AND coalesce(c.index[d] >= lower[d], true)),
    false)
