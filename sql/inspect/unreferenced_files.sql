-- purpose:    files on disk that no snapshot of any branch or tag references
-- engines:    DuckDB, Spark
-- parameters: observed_files  table = listing  what was found there: location, size_bytes, etag, last_modified
-- relations:  all_rows, live_files
-- columns:    location text, size_bytes integer, last_modified time
-- Nothing says that such a file may be deleted: it may be of a session that has not committed yet, or of a snapshot
-- that somebody knows by its id.
SELECT o.location, o.size_bytes, o.last_modified
FROM {observed_files} AS o
LEFT JOIN (
    SELECT r.location FROM {all_rows} AS r WHERE r.kind = 'native' GROUP BY r.location
    UNION ALL
    SELECT f.location FROM {live_files} AS f
) AS k ON k.location = o.location
WHERE k.location IS NULL
