"""Whether files can become one: their variables, types, grids, storage and attributes, compared with the first's.

Owns what must be the same and what may differ. Pure: facts in, differences out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.cf import DECIDING, PACKING, shift_between
from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_arrow.ingest.source import FileContents, Variable

COMBINE_ATTRS = ("identical", "override", "drop_conflicts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What may differ, and is dealt with where files are put together."""

    layouts: tuple[str, ...]
    """Variables stored otherwise: in other chunks, through other filters, with another fill value."""
    packings: tuple[str, ...]
    """Variables whose numbers stand for other values: with another scale, offset or missing value."""
    units: tuple[str, ...]
    """Variables whose values are counted in other units."""
    attributes: tuple[str, ...]
    """As ``/path@name``."""


def units_givers(facts: FileContents) -> dict[str, str]:
    """Tell for variables that hold the bounds of another which one says their units."""
    givers = {}
    for each in facts.variables.values():
        bounds = each.attributes.get("bounds", each.attributes.get("climatology"))
        if isinstance(bounds, str):
            path = f"{each.path.rpartition('/')[0]}/{bounds}"
            if path in facts.variables and "units" not in facts.variables[path].attributes:
                givers[path] = each.path
    return givers


def compare_files(
    first: FileContents, other: FileContents, concat_dim: str, combine_attrs: str | None
) -> Differences:
    """Compare a file with the first.

    Parameters
    ----------
    first, other
        What they hold.
    concat_dim
        The dimension along which they are put together.
    combine_attrs
        ``identical``, ``override`` or ``drop_conflicts``, of all attributes that do not say what values mean.
        None: groups' those of the first, variables' identical.

    Raises
    ------
    InvalidInputError
        They cannot be put together; the message says why, and of which variable.
    """
    for kind, left, right in (
        ("group", first.groups, other.groups),
        ("variable", first.variables, other.variables),
    ):
        if left.keys() != right.keys():
            raise InvalidInputError(_membership(kind, set(left), set(right)))
    layouts: list[str] = []
    packings: list[str] = []
    recounted: list[str] = []
    attributes: list[str] = []
    givers = units_givers(first)
    for path, mine in first.variables.items():
        theirs = other.variables[path]
        _compare_variable(mine, theirs, concat_dim)
        grows = concat_dim in mine.dims
        giver = givers.get(path, path)
        units = [each.variables[giver].attributes.get("units") for each in (first, other)]
        if grows and not (
            _same_layout(mine, theirs) and _equal(mine.fill_value, theirs.fill_value)
        ):
            layouts.append(path)
        if units[0] != units[1]:
            recounted.append(path)
        packed = _is_packed(mine) and units[0] != units[1]  # what is counted are the decoded values
        if _compare_meaning(mine, theirs, grows=grows) or packed:
            packings.append(path)
        attributes += _attributes(
            path, mine.attributes, theirs.attributes, combine_attrs or "identical"
        )
    for path, own in first.groups.items():
        attributes += _attributes(path, own, other.groups[path], combine_attrs or "override")
    return Differences(
        layouts=tuple(layouts),
        packings=tuple(packings),
        units=tuple(recounted),
        attributes=tuple(attributes),
    )


def _membership(kind: str, left: set[str], right: set[str]) -> str:
    parts = []
    if left - right:
        parts.append(f"lacks the {kind} {min(left - right)!r}")
    if right - left:
        parts.append(f"has the {kind} {min(right - left)!r}, which the first does not have")
    names = sorted(left ^ right)
    return f"it {' and '.join(parts)}; leave such out with drop={names}"


def _compare_variable(mine: Variable, theirs: Variable, concat_dim: str) -> None:
    path = mine.path
    facts: list[tuple[str, Any, Any]] = [
        ("dimensions", mine.dims, theirs.dims),
        ("type", _type(mine), _type(theirs)),
    ]
    for name, own, its in facts:
        if own != its:
            raise InvalidInputError(
                f"the {name} of {path!r}: {its} here, {own} in the first file; leave it out with "
                f"drop=[{path!r}]"
            )
    for dim, own_length, its_length in zip(mine.dims, mine.shape, theirs.shape, strict=True):
        if dim != concat_dim and own_length != its_length:
            raise InvalidInputError(
                f"{path!r} has length {its_length} along {dim!r}, and {own_length} in the first file; "
                f"only {concat_dim!r} may differ"
            )
    if mine.fingerprint != theirs.fingerprint:
        raise InvalidInputError(
            f"the values of {path!r} differ from the first file's, and it has no dimension "
            f"{concat_dim!r} along which both could stand; leave it out with drop=[{path!r}]"
        )


def _type(variable: Variable) -> str:
    return "text" if variable.dtype is None else variable.dtype.newbyteorder("=").name


def _same_layout(mine: Variable, theirs: Variable) -> bool:
    if mine.unreferable or theirs.unreferable:
        return mine.unreferable == theirs.unreferable
    return (mine.chunks, _decoders(mine)) == (theirs.chunks, _decoders(theirs))


def _decoders(variable: Variable) -> list[Any]:
    """Codecs, without what only counts in writing."""
    return [
        {**codec, "configuration": {k: v for k, v in configuration.items() if k != "level"}}
        if (configuration := codec.get("configuration"))
        else codec
        for codec in variable.codecs
    ]


def _equal(own: Any, its: Any) -> bool:
    return bool(own == its) or (own != own and its != its)  # noqa: PLR0124 -- NaN


def _is_packed(variable: Variable) -> bool:
    return bool({"scale_factor", "add_offset"} & variable.attributes.keys())


def _compare_meaning(mine: Variable, theirs: Variable, *, grows: bool) -> bool:
    """Tell whether stored numbers have to be decoded before they can follow one another, or raise.

    Attributes that the caller wants to drop are compared as well: without them, numbers of two files that mean
    different values would look alike.
    """
    own, its = mine.attributes | mine.dropped, theirs.attributes | theirs.dropped
    decodes = False
    for name in sorted((own.keys() | its.keys()) & DECIDING):
        left, right = own.get(name), its.get(name)
        if repr(left) == repr(right) or (
            name == "calendar" and _calendar(left) == _calendar(right)
        ):
            continue
        fact = (
            f"the attribute {name!r} of {mine.path!r} is {right!r} here and {left!r} in the first file, and says "
            f"what stored values mean"
        )
        if name in mine.dropped or name in theirs.dropped:
            raise InvalidInputError(
                f"{fact}: it cannot be left out. Without drop=['{mine.path}@{name}'] values are decoded where "
                f"they are written (virtual=False, or rewrite); or leave the variable out with "
                f"drop=[{mine.path!r}]"
            )
        if name == "units" and grows and _convertible(mine.attributes, theirs.attributes):
            continue
        if not (name in PACKING and grows and mine.decoded and theirs.decoded):
            raise InvalidInputError(
                f"{fact}. Bring such files into groups of their own, or leave the variable out with "
                f"drop=[{mine.path!r}]"
            )
        decodes = True
    return decodes


def _calendar(name: Any) -> str:
    word = str(name or "standard").lower()
    return "standard" if word == "gregorian" else word


def _attributes(
    path: str, mine: dict[str, Any], theirs: dict[str, Any], combine_attrs: str
) -> list[str]:
    """Give the attributes that differ and may, or raise; those that decide values are compared elsewhere."""
    different = [
        name
        for name in sorted((mine.keys() | theirs.keys()) - DECIDING)
        if repr(mine.get(name)) != repr(theirs.get(name))
    ]
    if different and combine_attrs == "identical":
        name = different[0]
        raise InvalidInputError(
            f"the attribute {name!r} of {path!r} is {theirs.get(name)!r} here and {mine.get(name)!r} in the "
            f"first file; take the first file's with combine_attrs='override', or those that all agree on with "
            f"'drop_conflicts'"
        )
    return [f"{path}@{name}" for name in different]


def _convertible(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    units, wanted = theirs.get("units"), mine.get("units")
    calendar = str(mine.get("calendar", ""))
    return (
        isinstance(units, str)
        and isinstance(wanted, str)
        and shift_between(units, wanted, calendar) is not None
    )
