-- purpose:    the chunk that an element of an array is in
-- engines:    Spark
-- parameters: array_path  the array's path; over several repositories the name of one comes first
--             place       the element's position along each dimension, an array
-- relations:  which  the parameter for the name of a repository, if there are several
--             array  what is known of the array: shape, and for each dimension runs of equal chunk edges, as the first
--                    position of each (positions), its first chunk (chunks) and its edge (edges)
-- columns:    a function that gives the chunk's index along each dimension; null if there is no such element or array
-- Of constants it becomes a constant before files are read: there is no lambda in it, so dimensions are written
-- out, eight of them; an array with more is an error. A position that is put in its order among the first ones of
-- all runs says by its place there which run is its own.
CREATE OR REPLACE TEMPORARY FUNCTION {chunk_along}(
    place BIGINT, stop BIGINT, positions ARRAY<BIGINT>, chunks ARRAY<BIGINT>, edges ARRAY<BIGINT>) RETURNS BIGINT RETURN
CASE WHEN place >= 0 AND place < stop
    THEN get(chunks, CAST(array_position(sort_array(array_append(positions, place + 1)), place + 1) AS INT) - 2)
        + (place
            - get(positions, CAST(array_position(sort_array(array_append(positions, place + 1)), place + 1) AS INT)
                - 2))
        DIV get(edges, CAST(array_position(sort_array(array_append(positions, place + 1)), place + 1) AS INT) - 2)
END;
CREATE OR REPLACE TEMPORARY FUNCTION {without_nulls}(found ARRAY<BIGINT>) RETURNS ARRAY<BIGINT> RETURN
CASE WHEN size(array_intersect(found, array(CAST(NULL AS BIGINT)))) = 0 THEN found END;
CREATE OR REPLACE TEMPORARY FUNCTION {chunk_along_all}(
    place ARRAY<BIGINT>,
    shape ARRAY<BIGINT>,
    positions ARRAY<ARRAY<BIGINT>>,
    chunks ARRAY<ARRAY<BIGINT>>,
    edges ARRAY<ARRAY<BIGINT>>) RETURNS ARRAY<BIGINT> RETURN
CASE
    WHEN size(place) <> size(shape) THEN NULL
    WHEN size(place) > 8 THEN raise_error('Spark finds chunks of arrays that have up to 8 dimensions')
    ELSE {without_nulls}(slice(array(
    {chunk_along}(get(place, 0), get(shape, 0), get(positions, 0), get(chunks, 0), get(edges, 0)),
    {chunk_along}(get(place, 1), get(shape, 1), get(positions, 1), get(chunks, 1), get(edges, 1)),
    {chunk_along}(get(place, 2), get(shape, 2), get(positions, 2), get(chunks, 2), get(edges, 2)),
    {chunk_along}(get(place, 3), get(shape, 3), get(positions, 3), get(chunks, 3), get(edges, 3)),
    {chunk_along}(get(place, 4), get(shape, 4), get(positions, 4), get(chunks, 4), get(edges, 4)),
    {chunk_along}(get(place, 5), get(shape, 5), get(positions, 5), get(chunks, 5), get(edges, 5)),
    {chunk_along}(get(place, 6), get(shape, 6), get(positions, 6), get(chunks, 6), get(edges, 6)),
    {chunk_along}(get(place, 7), get(shape, 7), get(positions, 7), get(chunks, 7), get(edges, 7))
    ), 1, least(size(place), 8)))
END;
CREATE OR REPLACE TEMPORARY FUNCTION {chunk_of}({which}array_path STRING, place ARRAY<BIGINT>)
RETURNS ARRAY<BIGINT> RETURN
{chunk_along_all}(place, {array}.shape, {array}.positions, {array}.chunks, {array}.edges)
