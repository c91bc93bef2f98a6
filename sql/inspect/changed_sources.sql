-- purpose:    chunks whose external file is not what was recorded: another etag, a younger time, or too short
-- engines:    DuckDB, Spark
-- parameters: observed_files  table  what was found there: location, size_bytes, etag, last_modified
-- relations:  chunks
-- columns:    path text, index integers, location text, first_byte integer, length integer, problem text,
--             recorded_etag text, observed_etag text, recorded_time time, observed_time time, observed_bytes integer
-- problem is the first of etag, time and length that does not fit. What was not recorded, or not observed, is not
-- compared. Quotes around an etag do not count. A file is younger than a record of whole seconds only if it is so by
-- a second.
SELECT
    p.path,
    p.index,
    p.location,
    p.first_byte,
    p.length,
    p.problem,
    p.recorded_etag,
    p.observed_etag,
    p.recorded_time,
    p.observed_time,
    p.observed_bytes
FROM (
    SELECT
        c.path,
        c.index,
        c.location,
        c.offset AS first_byte,
        c.length,
        CASE
            WHEN replace(c.etag, '"', '') <> replace(o.etag, '"', '') THEN 'etag'
            WHEN o.last_modified > c.last_modified
                AND (c.last_modified <> date_trunc('second', c.last_modified)
                    OR date_trunc('second', o.last_modified) > c.last_modified)
            THEN 'time'
            WHEN c.offset + c.length > o.size_bytes THEN 'length'
        END AS problem,
        c.etag AS recorded_etag,
        o.etag AS observed_etag,
        c.last_modified AS recorded_time,
        o.last_modified AS observed_time,
        o.size_bytes AS observed_bytes
    FROM {chunks} AS c
    JOIN {observed_files} AS o ON o.location = c.location
    WHERE c.kind = 'virtual'
) AS p
WHERE p.problem IS NOT NULL
