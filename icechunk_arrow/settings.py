"""Settings, each declared once: a frozen dataclass, whose types say what is taken and whose docstring what for.

Limits are msgspec's ``Meta`` in a type, what else is to be said of it is :class:`Takes`. From the declaration come
the checks of what is given from Python, the keys with hyphens, reading and writing as plain values (YAML, JSON),
the JSON Schema, and the tables of keys in the specification (`engine.published`).

Knows no setting. What is read may come from a stranger: errors name the key, and write nothing out at length.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
import typing
from dataclasses import MISSING, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

LARGEST = 2**63 - 1
MOST_ENTRIES = 1000
"""A list that users write has no more."""
LONGEST_YAML_BYTES = 1 << 18
"""A file that users write has no more; so much takes a sixth of a second to read, half of one without libyaml."""
OPEN: Any = ...
"""The default of a setting that follows from others while it is not named."""
_LONGEST_KEY = 100
_short_repr = reprlib.Repr()
_short_repr.maxlevel = 2
shown = _short_repr.repr
"""Write a value for a message, in a few words however large it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What there is to say of a type beside its limits; stands in ``Annotated``."""

    words: str = ""
    """What comes behind "must be" in messages; of a list with ``item_name``, about each item."""
    also: str = ""
    """Another key for the same setting."""
    item_key: str = ""
    """Of a list: in files each item is a mapping with this one key."""
    item_name: str = ""
    """Of a list of settings: in files each item is a mapping with one key, which is the setting of this name."""


Natural = Annotated[int, Meta(ge=0, le=LARGEST), Takes(words=f"a whole number from 0 to {LARGEST}")]
Positive = Annotated[
    int, Meta(ge=1, le=LARGEST), Takes(words=f"a whole number from 1 to {LARGEST}")
]


class Form(NamedTuple):
    """A declared type, taken apart."""

    takes: Takes
    takes_null: bool = False
    settings: type[Any] | None = None
    """The class, if it is one of settings."""
    item: Any = None
    """The type of a list's items."""
    pair: tuple[Any, ...] = ()
    """The types in a tuple of fixed length."""


@cache
def form_of(wanted: Any) -> Form:
    """Take a declared type apart."""
    is_union = typing.get_origin(wanted) in {typing.Union, types.UnionType}
    members = typing.get_args(wanted) if is_union else (wanted,)
    rest = [each for each in members if each is not types.NoneType]
    takes_null = len(rest) < len(members)
    if len(rest) > 1:
        words = " or ".join(form_of(each).takes.words for each in rest)
        return Form(Takes(words=words), takes_null)
    bare, takes = rest[0], Takes()
    if typing.get_origin(bare) is Annotated:
        takes = [takes, *(each for each in bare.__metadata__ if isinstance(each, Takes))][-1]
        bare = bare.__origin__
    if dataclasses.is_dataclass(bare):
        return Form(takes, takes_null, settings=typing.cast("type[Any]", bare))
    inner = typing.get_args(bare) if typing.get_origin(bare) is tuple else ()
    if inner and inner[-1] is Ellipsis:
        return Form(takes, takes_null, item=inner[0])
    return Form(takes, takes_null, pair=inner)


_declared: dict[type[Any], Mapping[str, Any]] = {}


def declared(settings: type[Any]) -> Mapping[str, Any]:
    """Give the type of each setting of a class, by its name in Python."""
    if settings not in _declared:
        hints = typing.get_type_hints(settings, include_extras=True)
        names = [each.name for each in dataclasses.fields(settings) if each.init]
        _declared[settings] = {name: hints[name] for name in names}
    return _declared[settings]


def key_of(name: str) -> str:
    """Spell the name of a setting as files do."""
    return name.replace("_", "-")


# Checking what was given


def settle(settings: Any, name: str, value: Any) -> None:
    """Set an attribute of a frozen value that is being made."""
    object.__setattr__(settings, name, value)


def check_settings(settings: Any, where: str = "", *, spell: Callable[[str], str] = key_of) -> None:
    """Check the settings of a value that is being made; ``where`` is its key.

    What was left at its default is not looked at: every process makes such values before it reads anything.
    """
    for each in dataclasses.fields(settings):
        if each.init and (value := getattr(settings, each.name)) is not each.default:
            key = spell(each.name)
            wanted = declared(type(settings))[each.name]
            settle(settings, each.name, checked(value, wanted, f"{where}.{key}" if where else key))


def checked(value: Any, wanted: Any, where: str) -> Any:
    """Give a value that is as declared; a list as a tuple.

    Raises
    ------
    InvalidInputError
        It is something else; the message names the key and what it must be.
    """
    form = form_of(wanted)
    if value is None and form.takes_null:
        return None
    if form.item is not None:
        numbered = enumerate(entries(value, where))
        return tuple(checked(each, form.item, f"{where}[{number}]") for number, each in numbered)
    if form.settings is not None:
        if isinstance(value, form.settings):
            return value
        words = form.takes.words or f"a {form.settings.__name__}"
        raise InvalidInputError(f"{where} must be {words}, not {shown(value)}")
    if form.pair and isinstance(value, tuple) and len(value) == len(form.pair):
        both = zip(value, form.pair, strict=True)
        return tuple(checked(each, its, where) for each, its in both)
    if form.pair or not _fits(value, wanted):
        null = " or null" if form.takes_null else ""
        raise InvalidInputError(f"{where} must be {form.takes.words}{null}, not {shown(value)}")
    return value


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value without parts is of a type, and within its limits."""
    if isinstance(value, str | float):  # numpy has kinds of its own, which msgspec does not take
        value = str.__str__(value) if isinstance(value, str) else float.__float__(value)
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def entries(found: Any, where: str) -> tuple[Any, ...]:
    """Check that this is a list, and of a length that is meant for users.

    Raises
    ------
    InvalidInputError
        It is something else; the message names the key.
    """
    if not isinstance(found, list | tuple):
        raise InvalidInputError(f"{where} must be a list, not {shown(found)}")
    if len(found) > MOST_ENTRIES:
        raise InvalidInputError(
            f"{where} has {len(found)} entries, and at most {MOST_ENTRIES} are taken; join some of them"
        )
    return tuple(found)


# Reading plain values, and writing them


def read(
    settings: type[T], found: Any, where: str = "", ignored: list[str] | None = None, **known: Any
) -> T:
    """Make settings of the mapping that stands for them in a file; null is one without keys.

    ``where`` is its key, empty for the whole. ``known`` are settings that do not stand in the mapping. With
    ``ignored`` unknown keys are left out, and named there.

    Raises
    ------
    InvalidInputError
        Something in it is unknown, missing, of the wrong type, or does not go together; the message names its key.
    """
    return settings(**_members(settings, found, where, ignored, known), **known)


def _members(
    settings: type[Any], found: Any, where: str, ignored: list[str] | None, known: Iterable[str]
) -> dict[str, Any]:
    """Read the settings in a mapping, by their names in Python."""
    wanted = {name: each for name, each in declared(settings).items() if name not in known}
    names = {key_of(name): name for name in wanted}
    names |= {form_of(each).takes.also or key_of(name): name for name, each in wanted.items()}
    body = known_members({} if found is None else found, names, where, ignored)
    members: dict[str, Any] = {}
    for key, value in body.items():
        name = names[key]
        if name in members:
            raise InvalidInputError(
                f"{where} has both {form_of(wanted[name]).takes.also} and {key_of(name)}, two words for one "
                "setting; remove one"
            )
        place = f"{where}.{key}" if where else key
        members[name] = _read_value(wanted[name], value, place, ignored)
    for each in dataclasses.fields(settings):
        if is_required(each) and each.name in wanted and each.name not in members:
            raise _missing(f"{where}.{key_of(each.name)}", wanted[each.name])
    return members


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a setting has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _missing(where: str, wanted: Any) -> InvalidInputError:
    return InvalidInputError(f"{where} is missing: give {form_of(wanted).takes.words}")


def _read_value(wanted: Any, found: Any, where: str, ignored: list[str] | None) -> Any:
    """Read a value into what its class checks; a value of another kind is left to that check."""
    form = form_of(wanted)
    if form.item is not None:
        items = enumerate(entries(found, where))
        return tuple(_read_item(form, each, where, number, ignored) for number, each in items)
    if form.settings is not None:
        return read(form.settings, found, where, ignored)
    return tuple(found) if form.pair and isinstance(found, list) else found


def _read_item(form: Form, found: Any, above: str, number: int, ignored: list[str] | None) -> Any:
    where, takes = f"{above}[{number}]", form.takes
    if takes.item_key:
        body = known_members(found, (takes.item_key,), where, ignored)
        if takes.item_key not in body:
            raise _missing(f"{where}.{takes.item_key}", form.item)
        return body[takes.item_key]
    kind = form_of(form.item).settings
    assert kind is not None
    if takes.item_name:
        if not isinstance(found, dict) or len(found) != 1:
            raise InvalidInputError(f"{where} must be {takes.words}, not {shown(found)}")
        [(name, inner)] = found.items()
        place = f"{above}.{short_key(name)}"
        return read(kind, inner, place, ignored, **{takes.item_name: name})
    members = _members(kind, found, where, ignored, ())
    try:
        return kind(**members)
    except InvalidInputError as error:  # it does not know where it stands, as what has a name does
        raise InvalidInputError(f"{where}.{error.message}") from None


def plain(settings: Any, *without: str) -> dict[str, Any]:
    """Write settings as plain values, under their keys."""
    return {
        key_of(name): plain_value(wanted, getattr(settings, name))
        for name, wanted in declared(type(settings)).items()
        if name not in without
    }


def plain_value(wanted: Any, value: Any) -> Any:
    """Write the value of one setting as it stands in files."""
    form = form_of(wanted)
    if form.settings is not None:
        return value.to_plain()
    if form.item is None:
        return list(value) if isinstance(value, tuple) else value
    if form.takes.item_key:
        return [{form.takes.item_key: each} for each in value]
    return [each.to_plain() for each in value]


# Keys


def short_key(key: Any) -> str:
    """Write a key for a message."""
    return key[:_LONGEST_KEY] if isinstance(key, str) else shown(key)


def closest(name: Any, known: Iterable[str]) -> str:
    """Say which of the known names was meant, or which there are."""
    import difflib  # noqa: PLC0415 - for errors alone

    names = list(known)
    near = difflib.get_close_matches(short_key(name), names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"


def known_members(
    found: Any, known: Iterable[str], where: str, ignored: list[str] | None = None
) -> Mapping[str, Any]:
    """Check that this is a mapping with known keys only; ``where`` is empty for the whole.

    With ``ignored`` unknown keys are left out, and named there.

    Raises
    ------
    InvalidInputError
        It is no mapping, or has a key that is not known; the message names it.
    """
    if not isinstance(found, dict):
        raise InvalidInputError(
            f"{where or 'the configuration'} must be a mapping, not {shown(found)}"
        )
    names = list(known)
    unknown = [key for key in found if key not in names]
    for key in unknown:
        place = f"{where}.{short_key(key)}" if where else short_key(key)
        if ignored is None:
            raise InvalidInputError(f"unknown configuration key {place!r}; {closest(key, names)}")
        ignored.append(place)
    return {key: found[key] for key in found if key in names} if unknown else found
