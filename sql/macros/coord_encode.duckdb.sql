-- purpose:    the bytes of a chunk coordinate: what the column coord holds, and what the files are sorted by
-- engines:    DuckDB
-- parameters: indices  a list with the chunk's index along each dimension, from 0 to 2^62-1
-- columns:    a macro that gives a BLOB; an index that cannot be is a conversion error
-- A call with constants becomes a constant before files are read, so comparisons of coord with it skip row groups.
-- A failing cast is how it fails, because error() would never become a constant.
CREATE OR REPLACE MACRO {coord_encode}(indices) AS unhex(array_to_string(list_transform(indices, lambda i:
    CASE
        WHEN i BETWEEN 0 AND 63 THEN printf('%02X', i::BIGINT)
        WHEN i BETWEEN 64 AND 16383 THEN printf('%04X', i::BIGINT + 16384)
        WHEN i BETWEEN 16384 AND 1073741823 THEN printf('%08X', i::BIGINT + 2147483648)
        WHEN i BETWEEN 1073741824 AND 4611686018427387903
            THEN printf('%016X', i::UBIGINT + 13835058055282163712::UBIGINT)
        ELSE ('a chunk index is a number from 0 to 4611686018427387903, not '
            || coalesce(i::VARCHAR, 'null'))::BIGINT::VARCHAR
    END), ''))
