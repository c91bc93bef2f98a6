-- purpose:    the indices that a chunk coordinate stands for
-- engines:    Spark
-- parameters: coord  the bytes, as coord_encode gives them
-- columns:    a function that gives an ARRAY<BIGINT>; what bytes give that are no coordinate is not defined
-- The two top bits of an index say whether it takes 1, 2, 4 or 8 bytes: 2, 4, 8 or 16 hexadecimal digits.
CREATE OR REPLACE TEMPORARY FUNCTION {coord_decode}(coord BINARY) RETURNS ARRAY<BIGINT> RETURN
transform(
    regexp_extract_all(hex(coord), '([0-3].|[4-7].{3}|[89AB].{7}|[C-F].{15})', 1),
    digits -> cast(conv(digits, 16, -10) AS BIGINT) & (shiftleft(1L, 4 * length(digits) - 2) - 1L))
