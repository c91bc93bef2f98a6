-- purpose:    the largest chunks as stored
-- engines:    DuckDB, Spark
-- parameters: count  integer = 20 from 1 to 1000000  so many; of equal ones those that come first by path and place
--             path   array = null                    the array; all arrays if null
-- relations:  chunks
-- columns:    rank integer, path text, index integers, kind text, location text, first_byte integer, length integer
SELECT l.rank, l.path, l.index, l.kind, l.location, l.first_byte, l.length
FROM (
    SELECT
        row_number() OVER (ORDER BY c.length DESC, c.path, c.coord) AS rank,
        c.path,
        c.index,
        c.kind,
        c.location,
        c.offset AS first_byte,
        c.length
    FROM {chunks} AS c
    WHERE {path} IS NULL OR c.path = {path}
) AS l
WHERE l.rank <= {count}
