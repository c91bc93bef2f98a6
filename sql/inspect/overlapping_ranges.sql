-- purpose:    overlapping ranges in one file: each that begins before the end of a different one that begins earlier
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  chunks
-- columns:    location text, first_byte integer, length integer, chunk_count integer, earlier_stop integer,
--             shared_bytes integer
-- Of ranges that begin together the shorter is the earlier. earlier_stop is the furthest byte behind any range before.
-- Equal ranges are no overlap, but duplicates.
SELECT
    w.location,
    w.first_byte,
    w.length,
    w.chunk_count,
    w.earlier_stop,
    least(w.earlier_stop, w.first_byte + w.length) - w.first_byte AS shared_bytes
FROM (
    SELECT
        u.location,
        u.first_byte,
        u.length,
        u.chunk_count,
        max(u.first_byte + u.length) OVER (
            PARTITION BY u.location
            ORDER BY u.first_byte, u.length
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS earlier_stop
    FROM (
        SELECT c.location, c.offset AS first_byte, c.length, count(*) AS chunk_count
        FROM {chunks} AS c
        WHERE c.location IS NOT NULL AND c.length > 0
        GROUP BY c.location, c.offset, c.length
    ) AS u
) AS w
WHERE w.earlier_stop > w.first_byte
