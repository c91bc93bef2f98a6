-- purpose:    what each commit did, read off the transaction logs themselves
-- engines:    DuckDB
-- relations:  logs  the rows of transaction logs, with the names of their files
-- columns:    snapshot, ordinal, operation, effect, path, from_path, node_id, node_type, index, coord, manifest,
--             extent, chunk_count, keys, shape_before, shape_after
SELECT
    parse_filename(l.filename, true) AS snapshot,
    l.id::BIGINT AS ordinal,
    l.operation,
    l.effect,
    l.path,
    l.from_path,
    l.node_id::BIGINT AS node_id,
    l.node_type,
    {decode_text}(l.coord) AS index,
    l.coord,
    replace(l.manifest, '.parquet', '') AS manifest,
    list_transform(l.extent, lambda e: struct_pack(start := e[1]::BIGINT, stop := e[2]::BIGINT)) AS extent,
    l.chunk_count::BIGINT AS chunk_count,
    l.keys,
    l.shape_before::BIGINT[] AS shape_before,
    l.shape_after::BIGINT[] AS shape_after
FROM {logs} AS l
WHERE l.operation <> 'snapshot'
