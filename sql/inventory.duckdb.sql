-- purpose:    every chunk of one snapshot of a repository, asked of the plain Parquet files
-- engines:    DuckDB
-- parameters: structure  the snapshot's structure file, such as /data/weather/s/51FAPMY2MK4SM5KQ2G70.parquet
--             manifests  the chunk manifests, such as /data/weather/i/*.parquet
--             both as variables: SET VARIABLE structure = '...'; SET VARIABLE manifests = '...';
-- columns:    path, coord (hexadecimal), kind, chunk_file, offset, length, manifest
WITH live AS (
    SELECT id, path, unnest(inventories).inventory_file AS manifest
    FROM read_parquet(getvariable('structure'))
    WHERE type = 'array'
)
SELECT
    live.path,
    hex(chunks.coord) AS coord,
    CASE
        WHEN chunks.inline_data IS NOT NULL THEN 'inline'
        WHEN contains(chunks.chunk_file, '/') THEN 'virtual'
        ELSE 'native'
    END AS kind,
    chunks.chunk_file,
    chunks."offset",
    chunks.length,
    live.manifest
FROM live
JOIN read_parquet(getvariable('manifests'), filename = true) AS chunks
  ON parse_filename(chunks.filename) = live.manifest AND chunks.array_id = live.id
ORDER BY live.path, chunks.coord;
