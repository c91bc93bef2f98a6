-- purpose:    the indices that a chunk coordinate stands for
-- engines:    DuckDB
-- parameters: coord  the bytes, as coord_encode gives them
--             ndim   how many dimensions the array has; may be left out, and is faster as a number in the query
-- columns:    a macro that gives a BIGINT[]; bytes that are no coordinate of so many dimensions are an error or
--             nonsense, and NULL with ndim is a list of nulls
-- The two top bits of an index say whether it takes 1, 2, 4 or 8 bytes. Up to eight bytes are taken as one number, of
-- which indices are cut by shifts; bits are those that are left, from the end. Terms that come again cost nothing as
-- long as no CASE is between them. Longer coordinates, and those of many dimensions, are cut as hexadecimal text.
CREATE OR REPLACE MACRO {_word}(coord) AS TRY_CAST(TRY_CAST(coord AS BIT) AS BIGINT);
CREATE OR REPLACE MACRO {_rest}(coord, bits) AS ((bits) - (8 << (({_word}(coord) >> (((bits) - 2) & 63)) & 3)));
CREATE OR REPLACE MACRO {_bits2}(coord) AS {_rest}(coord, 8 * octet_length(coord));
CREATE OR REPLACE MACRO {_bits3}(coord) AS {_rest}(coord, {_bits2}(coord));
CREATE OR REPLACE MACRO {decode_text}(coord) AS list_transform(
    regexp_extract_all(hex(coord), '[0-3].|[4-7].{3}|[89AB].{7}|[C-F].{15}'),
    lambda txt: (('0x' || txt)::UBIGINT & ((1::UBIGINT << (4 * strlen(txt) - 2)::UBIGINT) - 1))::BIGINT);
CREATE OR REPLACE MACRO {_cut}(coord, place, bits, rest) AS coalesce(
    ({_word}(coord) >> ((rest) & 63)) & ((1::BIGINT << (((bits) - (rest) - 2) & 63)) - 1),
    CASE WHEN octet_length(coord) > 8 THEN {decode_text}(coord)[place] END);
CREATE OR REPLACE MACRO {decode_1}(coord) AS [{_cut}(coord, 1, 8 * octet_length(coord), 0)];
CREATE OR REPLACE MACRO {decode_2}(coord) AS [
    {_cut}(coord, 1, 8 * octet_length(coord), {_bits2}(coord)),
    {_cut}(coord, 2, {_bits2}(coord), 0)];
CREATE OR REPLACE MACRO {decode_3}(coord) AS [
    {_cut}(coord, 1, 8 * octet_length(coord), {_bits2}(coord)),
    {_cut}(coord, 2, {_bits2}(coord), {_bits3}(coord)),
    {_cut}(coord, 3, {_bits3}(coord), 0)];
CREATE OR REPLACE MACRO {decode_4}(coord) AS [
    {_cut}(coord, 1, 8 * octet_length(coord), {_bits2}(coord)),
    {_cut}(coord, 2, {_bits2}(coord), {_bits3}(coord)),
    {_cut}(coord, 3, {_bits3}(coord), {_rest}(coord, {_bits3}(coord))),
    {_cut}(coord, 4, {_rest}(coord, {_bits3}(coord)), 0)];
CREATE OR REPLACE MACRO {coord_decode}
    (coord) AS CASE
        WHEN {_bits2}(coord) = 0 THEN {decode_1}(coord)
        WHEN {_bits3}(coord) = 0 THEN {decode_2}(coord)
        WHEN {_rest}(coord, {_bits3}(coord)) = 0 THEN {decode_3}(coord)
        ELSE {decode_text}(coord)
    END,
    (coord, ndim) AS CASE
        WHEN ndim = 0 THEN []::BIGINT[]
        WHEN ndim = 1 THEN {decode_1}(coord)
        WHEN ndim = 2 THEN {decode_2}(coord)
        WHEN ndim = 3 THEN {decode_3}(coord)
        WHEN ndim = 4 THEN {decode_4}(coord)
        ELSE {decode_text}(coord)
    END
