-- purpose:    the bytes of a chunk coordinate: what the column coord holds, and what the files are sorted by
-- engines:    Spark
-- parameters: indices  an array with the chunk's index along each dimension, from 0 to 2^62-1
-- columns:    a function that gives a BINARY; an index that cannot be is an error, and so are more than 16
-- A call with constants becomes a constant before files are read, so comparisons of coord with it skip row groups.
-- Spark computes no lambda while it plans, nor takes one of a function's result: so dimensions are written out. It
-- copies an argument to wherever it stands, so it stands in few places: what marks the width of an index is looked up
-- by how many bits the index has.
CREATE OR REPLACE TEMPORARY FUNCTION {coord_octets}(indices ARRAY<BIGINT>, marks ARRAY<BIGINT>) RETURNS BINARY RETURN
CASE
    WHEN size(indices) > 16
    THEN raise_error(concat('Spark encodes up to 16 indices, not ', cast(size(indices) AS STRING)))
    WHEN array_min(indices) < 0 OR array_max(indices) > 4611686018427387903
        OR size(array_intersect(indices, array(CAST(NULL AS BIGINT)))) > 0
    THEN raise_error(concat(
        'a chunk index is a number from 0 to 4611686018427387903, which not all of these are: ',
        array_join(indices, ', ', 'null')))
    WHEN indices IS NOT NULL THEN concat(
        coalesce(unhex(hex(get(indices, 0) + get(marks, length(bin(get(indices, 0)))))), X''),
        coalesce(unhex(hex(get(indices, 1) + get(marks, length(bin(get(indices, 1)))))), X''),
        coalesce(unhex(hex(get(indices, 2) + get(marks, length(bin(get(indices, 2)))))), X''),
        coalesce(unhex(hex(get(indices, 3) + get(marks, length(bin(get(indices, 3)))))), X''),
        coalesce(unhex(hex(get(indices, 4) + get(marks, length(bin(get(indices, 4)))))), X''),
        coalesce(unhex(hex(get(indices, 5) + get(marks, length(bin(get(indices, 5)))))), X''),
        coalesce(unhex(hex(get(indices, 6) + get(marks, length(bin(get(indices, 6)))))), X''),
        coalesce(unhex(hex(get(indices, 7) + get(marks, length(bin(get(indices, 7)))))), X''),
        coalesce(unhex(hex(get(indices, 8) + get(marks, length(bin(get(indices, 8)))))), X''),
        coalesce(unhex(hex(get(indices, 9) + get(marks, length(bin(get(indices, 9)))))), X''),
        coalesce(unhex(hex(get(indices, 10) + get(marks, length(bin(get(indices, 10)))))), X''),
        coalesce(unhex(hex(get(indices, 11) + get(marks, length(bin(get(indices, 11)))))), X''),
        coalesce(unhex(hex(get(indices, 12) + get(marks, length(bin(get(indices, 12)))))), X''),
        coalesce(unhex(hex(get(indices, 13) + get(marks, length(bin(get(indices, 13)))))), X''),
        coalesce(unhex(hex(get(indices, 14) + get(marks, length(bin(get(indices, 14)))))), X''),
        coalesce(unhex(hex(get(indices, 15) + get(marks, length(bin(get(indices, 15)))))), X''))
END;
CREATE OR REPLACE TEMPORARY FUNCTION {coord_encode}(indices ARRAY<BIGINT>) RETURNS BINARY RETURN
{coord_octets}(indices, flatten(array(
    array_repeat(0L, 7), array_repeat(16384L, 8), array_repeat(2147483648L, 16),
    array_repeat(-4611686018427387904L, 32))))
