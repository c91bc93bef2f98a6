-- purpose:    the chunk that an element of an array is in
-- engines:    DuckDB
-- parameters: array_path  the array's path
--             place       the element's position along each dimension, a list
-- relations:  nodes      the table of this name
--             grid_runs  the edges of arrays whose chunks are unequal: node_id, and for each dimension runs of equal
--                        edges, each with its first position, its first chunk and its edge
-- columns:    a macro that gives the chunk's index along each dimension; null if there is no such element or array
CREATE OR REPLACE MACRO {chunk_of}(array_path, place) AS (
    SELECT CASE
        WHEN len(place) = len(n.shape) AND NOT list_contains(
            list_transform(
                range(1, len(place) + 1),
                lambda d: coalesce(place[d] >= 0 AND place[d] < n.shape[d], false)),
            false)
        THEN list_transform(
            range(1, len(place) + 1),
            lambda d: CASE
                WHEN g.runs IS NULL THEN (place[d] // n.chunk_shape[d])::BIGINT
                ELSE list_transform(
                    [list_filter(g.runs[d], lambda run: run.position <= place[d])[-1]],
                    lambda run: (run.chunk + (place[d] - run.position) // run.edge)::BIGINT)[1]
            END)
    END
    FROM {nodes} AS n
    LEFT JOIN {grid_runs} AS g ON g.node_id = n.node_id
    WHERE n.path = array_path
)
