-- purpose:    the chunks of one array within a box of its grid
-- engines:    Spark
-- parameters: array_path  the array's path
--             lower       the first index along each dimension, an array; null is no bound
--             upper       the index behind the last along each dimension, an array; null is no bound
--             arrays may be shorter than the array has dimensions: there is no bound along the rest
-- relations:  chunks   the table of this name
--             columns  its columns and their types
--             array    what is known of the array: manifests, a map from the first letter of a manifest's id to a map
--                      from ids to extents, which are lists of start and stop
-- columns:    those of chunks
-- The last condition is about nothing but the name of a file and constants: files it is not true of are not opened.
-- In the others the comparisons with coord, constant by then, leave out row groups; they take in what lies between the
-- first chunk of the box and all that begin with its last. Nothing here that becomes a constant has a lambda in it.
CREATE OR REPLACE TEMPORARY FUNCTION {first_coord}(lower ARRAY<BIGINT>) RETURNS BINARY RETURN
{coord_encode}(slice(array(
    least(greatest(coalesce(get(lower, 0), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 1), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 2), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 3), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 4), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 5), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 6), 0), 0), 4611686018427387903),
    least(greatest(coalesce(get(lower, 7), 0), 0), 4611686018427387903)), 1, greatest(least(size(lower), 8), 0)));
CREATE OR REPLACE TEMPORARY FUNCTION {behind_coord}(upper ARRAY<BIGINT>) RETURNS BINARY RETURN
concat({coord_encode}(slice(array(
    least(greatest(coalesce(get(upper, 0), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 1), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 2), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 3), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 4), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 5), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 6), 4611686018427387904), 1), 4611686018427387904) - 1,
    least(greatest(coalesce(get(upper, 7), 4611686018427387904), 1), 4611686018427387904) - 1
    ), 1, greatest(least(size(upper), 8), 0))), unhex(repeat('FF', 64)));
CREATE OR REPLACE TEMPORARY FUNCTION {chunks_in}(array_path STRING, lower ARRAY<BIGINT>, upper ARRAY<BIGINT>)
RETURNS TABLE ({columns}) RETURN
SELECT c.*
FROM {chunks} AS c
WHERE c.path = array_path
    AND lower IS NOT NULL
    AND upper IS NOT NULL
    AND c.coord >= {first_coord}(lower)
    AND c.coord < {behind_coord}(upper)
    AND forall(zip_with(c.index, lower, (i, l) -> coalesce(i >= l, true)), fits -> fits)
    AND forall(zip_with(c.index, upper, (i, u) -> coalesce(i < u, true)), fits -> fits)
    AND exists(
        array(try_element_at(try_element_at({array}.manifests, left(c.manifest, 1)), c.manifest)),
        extent -> size(lower) <= size(extent)
            AND size(upper) <= size(extent)
            AND forall(zip_with(extent, lower, (e, l) -> coalesce(e[1] > l, true)), meets -> meets)
            AND forall(zip_with(extent, upper, (e, u) -> coalesce(e[0] < u, true)), meets -> meets))
