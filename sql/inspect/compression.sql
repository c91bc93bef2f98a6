-- purpose:    stored against logical bytes per array, with its codecs
-- engines:    DuckDB, Spark
-- parameters: none
-- relations:  arrays, nodes
-- columns:    path text, data_type text, codecs text, chunk_count integer, stored_bytes integer,
--             logical_bytes integer, compression_ratio number
SELECT
    a.path,
    n.data_type,
    n.codecs,
    a.chunk_count,
    a.stored_bytes,
    a.logical_bytes,
    a.compression_ratio
FROM {arrays} AS a
JOIN {nodes} AS n ON n.path = a.path
