"""Arrays made of many files: their documents, which values are referred to and which written, and in what pieces.

Owns every decision about it. Pure: facts of the first file and the lengths of all in, plans out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icechunk_arrow.core.cf import PACKING
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.agreement import units_givers
from icechunk_arrow.ingest.array_documents import (
    array_document,
    check_readable,
    data_type_of,
    default_codecs,
    fill_value_of,
)
from icechunk_arrow.ingest.source import group_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icechunk_arrow.ingest.source import FileContents, Variable

_MOST_PIECE_BYTES = 1 << 26
_LEAST_PIECE_BYTES = 1 << 16
_NATURAL_BYTES = 1 << 24
_COORDINATE_ITEMS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the caller chose about the arrays."""

    concat_dim: str | None
    virtual: bool
    rewrite: frozenset[str]
    """Variables to be written although the others are referred to."""
    rewrite_below_bytes: int
    """Variables that cannot be referred to are written if a file has less of them, and all store them alike."""
    chunks: Mapping[str, Any]
    """A length by dimension, or a shape by variable."""
    codecs: Mapping[str, Any] | Sequence[Any] | None
    """Of all variables, or by variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddOnes:
    """Variables that some file has otherwise than the first, with the first such file's name."""

    layouts: Mapping[str, str]
    """Stored in other chunks, through other filters, or with another fill value."""
    packings: Mapping[str, str]
    """With another scale, offset or missing value."""
    decoded: Mapping[str, np.dtype[Any]]
    """The type in which the decoded values of such variables can follow one another."""
    units: Mapping[str, str]
    """Counted in other units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What the values of a variable are counted in, in the first file."""

    path: str
    """The variable whose attributes say so."""
    text: Any
    calendar: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """One array that will be."""

    variable: Variable
    """As it will be in the array."""
    stored: np.dtype[Any] | None
    """The type in the files."""
    units: Units
    axis: int | None
    """The axis along which files follow one another; None where the first file has all."""
    chunks: tuple[int, ...]
    document: dict[str, Any]
    referred: bool
    decoded: bool
    """Whether values are written as they are once decoded, as files pack them differently."""

    @property
    def group(self) -> str:
        """The group of the variable."""
        return group_of(self.variable.path)

    @property
    def piece_bytes(self) -> int | None:
        """Bytes of a chunk of values that stand in one piece, which references cut; None where they are chunked."""
        variable = self.variable
        if variable.chunks is not None or variable.dtype is None:
            return None
        return math.prod(self.chunks) * variable.dtype.itemsize


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where each file begins, and where the last one ends."""
    return list(accumulate(lengths, initial=0))


def array_plans(
    first: FileContents,
    names: Sequence[str],
    lengths: Mapping[str, Sequence[int]],
    choices: Choices,
    odd: OddOnes,
) -> list[ArrayPlan]:
    """Plan all arrays.

    Parameters
    ----------
    first
        What the first file holds, which the others agree with.
    names
        The files, for messages.
    lengths
        By group, the length of each file along the dimension.
    choices
        What the caller chose.
    odd
        Variables that some file has otherwise than the first.
    """
    known = {name for path in first.variables for name in (path, path.lstrip("/"))}
    dims = {dim for each in first.variables.values() for dim in each.dims}
    _check_names("rewrite", choices.rewrite, known)
    _check_names("chunks", choices.chunks, known | dims)
    if not choices.virtual or choices.rewrite:
        by_name = choices.codecs if isinstance(choices.codecs, dict) else {}
        _check_names("codecs", by_name, known)
    plans = []
    givers = units_givers(first)
    for variable in first.variables.values():
        axis = None
        if choices.concat_dim in variable.dims:
            axis = variable.dims.index(choices.concat_dim)
        own = lengths[group_of(variable.path)] if axis is not None else [0]
        giver = first.variables[givers.get(variable.path, variable.path)]
        plans.append(_plan(variable, giver, axis, own, names, choices, odd))
    return plans


def _check_names(option: str, given: Any, known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidInputError(
            f"{option} names {unknown[0]!r}, which the files do not have; they have {sorted(known)}"
        )


def _plan(
    variable: Variable,
    giver: Variable,
    axis: int | None,
    lengths: Sequence[int],
    names: Sequence[str],
    choices: Choices,
    odd: OddOnes,
) -> ArrayPlan:
    shape = list(variable.shape)
    if axis is not None:
        shape[axis] = sum(lengths)
    must_decode = variable.path in odd.packings
    chunks, fault = None, "it is to be rewritten"
    if choices.virtual and not _named(variable, choices.rewrite):
        chunks, fault = _referable(variable, axis, lengths, names, odd)
        coordinate = variable.dims == (choices.concat_dim,) == (_name(variable),)
        if coordinate and len(names) > 1:
            chunks = None  # its units may differ, and one chunk reads faster than one per file
        elif chunks is None and (
            variable.size_bytes >= choices.rewrite_below_bytes
            or variable.path in odd.layouts
            or must_decode
        ):
            raise InvalidInputError(
                f"no virtual references to {variable.path!r}: {fault}. Write its values"
                + (f", decoded as {odd.decoded[variable.path]}," if must_decode else "")
                + f" with rewrite=[{variable.path!r}], all with virtual=False, or leave it out with "
                f"drop=[{variable.path!r}]",
                path=variable.path,
            )
    referred, stored = chunks is not None, variable.dtype
    if must_decode:
        variable = _decoded(variable, odd.decoded[variable.path])
    codecs: Sequence[Any] = variable.codecs
    if chunks is None:
        chunks = _target_chunks(variable, tuple(shape), choices.chunks)
        codecs = _target_codecs(variable, choices.codecs)
    document = array_document(
        shape=shape,
        chunks=chunks,
        data_type=variable.data_type,
        fill_value=variable.fill_value,
        codecs=codecs,
        dimension_names=variable.dims,
        attributes=variable.attributes,
    )
    if not referred:
        check_readable(document, variable.path)
    return ArrayPlan(
        variable=variable,
        stored=stored,
        units=Units(
            path=giver.path,
            text=giver.attributes.get("units"),
            calendar=str(giver.attributes.get("calendar", "")),
        ),
        axis=axis,
        chunks=tuple(chunks),
        document=document,
        referred=referred,
        decoded=must_decode,
    )


def _decoded(variable: Variable, dtype: np.dtype[Any]) -> Variable:
    """Say what a variable is once its values are decoded: nothing is packed any more, and no value is NaN."""
    attributes = {name: each for name, each in variable.attributes.items() if name not in PACKING}
    return replace(
        variable,
        dtype=dtype,
        data_type=data_type_of(dtype),
        fill_value=fill_value_of(dtype.type(np.nan) if dtype.kind == "f" else dtype.type(0), dtype),
        attributes=attributes,
    )


def _name(variable: Variable) -> str:
    return variable.path.rpartition("/")[2]


def _named(variable: Variable, given: Any) -> Any:
    """Find a variable's path among names, with and without a slash in front; None if it is not there."""
    return next((n for n in (variable.path, variable.path.lstrip("/")) if n in given), None)


def _referable(
    variable: Variable,
    axis: int | None,
    lengths: Sequence[int],
    names: Sequence[str],
    odd: OddOnes,
) -> tuple[tuple[int, ...] | None, str]:
    """Give the chunks of references; or why there can be none."""
    if variable.unreferable is not None:
        return None, variable.unreferable
    path = variable.path
    if path in odd.packings:
        return None, (
            f"{odd.packings[path]} has it with another scale, offset, missing value or valid range than the "
            f"first file, so that the same stored number means another value there"
        )
    if path in odd.layouts:
        return None, (
            f"{odd.layouts[path]} has it with other chunks or filters, or another fill value, than the first "
            f"file"
        )
    if path in odd.units:
        return None, f"{odd.units[path]} counts it in other units than the first file"
    if variable.chunks is None:
        return _pieces(variable, axis, lengths, names)
    if axis is not None:
        edge = variable.chunks[axis]
        for name, length in zip(names[:-1], lengths, strict=False):
            if length % edge:
                return None, (
                    f"{name} has length {length} along {variable.dims[axis]!r}, which chunks of {edge} do "
                    f"not fill, and other files follow"
                )
    return variable.chunks, ""


def _pieces(
    variable: Variable, axis: int | None, lengths: Sequence[int], names: Sequence[str]
) -> tuple[tuple[int, ...] | None, str]:
    """Cut values that stand in one piece; only along the first axis is a part of them one range."""
    shape = variable.shape
    if not shape:
        return (), ""
    if axis:  # not the first
        odd = next((i for i, n in enumerate(lengths) if n != lengths[0]), None)
        if odd is not None:
            return None, (
                f"its values are not chunked, and {names[odd]} has length {lengths[odd]} along "
                f"{variable.dims[axis]!r}, others {lengths[0]}"
            )
    common = math.gcd(*lengths) if axis == 0 else shape[0]
    row_bytes = max(1, variable.size_bytes // max(1, shape[0]))
    edge = _divisor(common, row_bytes)
    return (edge, *(max(1, length) for length in shape[1:])), ""


def _divisor(length: int, row_bytes: int) -> int:
    """Give the greatest divisor of a length that makes a piece of a good size; all of it, if none does."""
    if length * row_bytes <= _MOST_PIECE_BYTES:
        return max(1, length)
    fitting = [
        divisor
        for small in range(1, math.isqrt(length) + 1)
        if length % small == 0
        for divisor in (small, length // small)
        if _LEAST_PIECE_BYTES <= divisor * row_bytes <= _MOST_PIECE_BYTES
    ]
    return max(fitting, default=length)


def _target_chunks(
    variable: Variable, shape: tuple[int, ...], chosen: Mapping[str, Any]
) -> tuple[int, ...]:
    """Choose the chunks of values that are written."""
    name = _named(variable, chosen)
    if name is not None and not isinstance(chosen[name], int):
        wanted = tuple(chosen[name])
        if len(wanted) != len(shape) or any(edge < 1 for edge in wanted):
            raise InvalidInputError(
                f"the chunks {wanted} of {variable.path!r} are not {len(shape)} lengths of 1 or more"
            )
        return wanted
    if variable.chunks is not None and len(shape) > 1:
        natural = variable.chunks
    elif len(shape) == 1:
        natural = (_COORDINATE_ITEMS,)
    else:
        natural = _natural(variable, shape)
    edges = [
        chosen.get(dim, min(edge, max(1, length)))
        for dim, edge, length in zip(variable.dims, natural, shape, strict=True)
    ]
    if any(not isinstance(edge, int) or edge < 1 for edge in edges):
        raise InvalidInputError(
            f"the chunks of {variable.path!r} would be {edges}; give lengths of 1 or more"
        )
    return tuple(edges)


def _natural(variable: Variable, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Cut along the first axes until a chunk is not large."""
    edges = [max(1, length) for length in shape]
    item_bytes = variable.dtype.itemsize if variable.dtype is not None else 16
    for place in range(len(edges)):
        rest = math.prod(edges[place + 1 :]) * item_bytes
        edges[place] = max(1, min(edges[place], _NATURAL_BYTES // rest))
        if edges[place] > 1:
            break
    return tuple(edges)


def _target_codecs(variable: Variable, chosen: Any) -> Sequence[Any]:
    codecs = chosen
    if isinstance(chosen, dict):
        name = _named(variable, chosen)
        codecs = chosen[name] if name is not None else None
    if codecs is None:
        return default_codecs(variable.dtype)
    plain = [codec if isinstance(codec, dict | str) else codec.to_dict() for codec in codecs]
    return [{"name": codec} if isinstance(codec, str) else codec for codec in plain]


class Piece(NamedTuple):
    """A part of one file along the dimension of files; a tuple, since an ingest has one for each block and file."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteItem:
    """A block of whole chunks of one array, and where its values are."""

    path: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    pieces: tuple[Piece, ...]


def write_items(plan: ArrayPlan, starts: Sequence[int], most_bytes: int) -> Iterator[WriteItem]:
    """Cut an array into blocks of whole chunks, each of which one task writes."""
    shape = tuple(plan.document["shape"])
    if 0 in shape:
        return
    item_bytes = plan.variable.dtype.itemsize if plan.variable.dtype is not None else 64
    block = list(plan.chunks)
    for axis in range(len(block) - 1, -1, -1):
        size = math.prod(block) * item_bytes
        count = -(-shape[axis] // block[axis])
        block[axis] *= max(1, min(count, most_bytes // size))
        if block[axis] < shape[axis]:
            break
    ranges = [range(0, length, edge) for length, edge in zip(shape, block, strict=True)]
    for corner in product(*ranges):
        stop = tuple(
            min(begin + edge, length)
            for begin, edge, length in zip(corner, block, shape, strict=True)
        )
        yield WriteItem(
            path=plan.variable.path,
            start=corner,
            stop=stop,
            pieces=_pieces_of(plan.axis, starts, corner, stop),
        )


def _pieces_of(
    axis: int | None, starts: Sequence[int], corner: tuple[int, ...], stop: tuple[int, ...]
) -> tuple[Piece, ...]:
    if axis is None:
        return (Piece(file=0, start=0, stop=0),)
    first, last = corner[axis], stop[axis]
    pieces = []
    file = bisect_right(starts, first) - 1
    while file < len(starts) - 1 and starts[file] < last:
        begin, end = max(first, starts[file]), min(last, starts[file + 1])
        if begin < end:
            pieces.append(Piece(file=file, start=begin - starts[file], stop=end - starts[file]))
        file += 1
    return tuple(pieces)
