-- purpose:    storage by bucket and prefix of virtual references
-- engines:    DuckDB, Spark
-- parameters: depth  integer = 1 from 0 to 100  folders below the bucket that a prefix has at most
-- relations:  chunks
-- columns:    bucket text, prefix text, files integer, chunk_count integer, array_count integer, bytes integer
SELECT
    v.bucket,
    v.prefix,
    count(DISTINCT v.location) AS files,
    count(*) AS chunk_count,
    count(DISTINCT v.node_id) AS array_count,
    CAST(sum(v.length) AS BIGINT) AS bytes
FROM (
    SELECT
        c.location,
        c.node_id,
        c.length,
        regexp_extract(c.location, '^[^:/]+://[^/]*', 0) AS bucket,
        regexp_extract(c.location, '^[^:/]+://[^/]*(/[^/]*){0,' || CAST({depth} AS STRING) || '}/', 0) AS prefix
    FROM {chunks} AS c
    WHERE c.kind = 'virtual'
) AS v
GROUP BY v.bucket, v.prefix
