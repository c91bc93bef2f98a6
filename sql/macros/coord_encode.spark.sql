-- purpose:    the bytes of a chunk coordinate: what the column coord holds, and what the files are sorted by
-- engines:    Spark
-- parameters: indices  an array with the chunk's index along each dimension, from 0 to 2^62-1
-- columns:    a function that gives a BINARY; an index that cannot be is an error
-- A call with constants becomes a constant before files are read, so comparisons of coord with it skip row groups.
-- Spark computes no lambda while it plans, so eight dimensions are written out; with more, nothing is skipped.
CREATE OR REPLACE TEMPORARY FUNCTION {index_digits}(i BIGINT) RETURNS STRING RETURN
CASE
    WHEN i BETWEEN 0 AND 63 THEN lpad(hex(i), 2, '0')
    WHEN i BETWEEN 64 AND 16383 THEN hex(i + 16384)
    WHEN i BETWEEN 16384 AND 1073741823 THEN hex(i + 2147483648)
    WHEN i BETWEEN 1073741824 AND 4611686018427387903 THEN hex(i - 4611686018427387904)
    ELSE raise_error(concat(
        'a chunk index is a number from 0 to 4611686018427387903, not ', coalesce(cast(i AS STRING), 'null')))
END;
CREATE OR REPLACE TEMPORARY FUNCTION {coord_encode}(indices ARRAY<BIGINT>) RETURNS BINARY RETURN
unhex(CASE WHEN size(indices) <= 8 THEN concat(
    CASE WHEN size(indices) > 0 THEN {index_digits}(get(indices, 0)) ELSE '' END,
    CASE WHEN size(indices) > 1 THEN {index_digits}(get(indices, 1)) ELSE '' END,
    CASE WHEN size(indices) > 2 THEN {index_digits}(get(indices, 2)) ELSE '' END,
    CASE WHEN size(indices) > 3 THEN {index_digits}(get(indices, 3)) ELSE '' END,
    CASE WHEN size(indices) > 4 THEN {index_digits}(get(indices, 4)) ELSE '' END,
    CASE WHEN size(indices) > 5 THEN {index_digits}(get(indices, 5)) ELSE '' END,
    CASE WHEN size(indices) > 6 THEN {index_digits}(get(indices, 6)) ELSE '' END,
    CASE WHEN size(indices) > 7 THEN {index_digits}(get(indices, 7)) ELSE '' END)
WHEN size(indices) > 8 THEN array_join(transform(indices, i -> CASE
    WHEN i BETWEEN 0 AND 63 THEN lpad(hex(i), 2, '0')
    WHEN i BETWEEN 64 AND 16383 THEN hex(i + 16384)
    WHEN i BETWEEN 16384 AND 1073741823 THEN hex(i + 2147483648)
    WHEN i BETWEEN 1073741824 AND 4611686018427387903 THEN hex(i - 4611686018427387904)
    ELSE raise_error(concat(
        'a chunk index is a number from 0 to 4611686018427387903, not ', coalesce(cast(i AS STRING), 'null')))
END), '')
END)
