"""JSON as a tree whose members may come twice and in any order, and damage to one place of it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

__all__ = ["MUTATIONS", "OTHERS", "Members", "UnfitError", "dump", "interesting_text", "parse"]


class UnfitError(Exception):
    """A mutation has nothing to change here; another is drawn."""


class Members(list[Any]):
    """The members of an object, as pairs."""


class Raw(str):
    """Text that stands in JSON as it is."""

    __slots__ = ()


Place = tuple[Any, int]
"""A list or object, and which of its items."""


def parse(text: str | bytes) -> Any:
    """Read JSON."""
    return json.loads(text, object_pairs_hook=Members)


def dump(value: Any) -> str:
    """Write JSON."""
    if isinstance(value, Members):
        return "{" + ", ".join(f"{json.dumps(name)}: {dump(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return str(value) if isinstance(value, Raw) else json.dumps(value)


def _places(value: Any, path: str = "") -> Iterator[tuple[str, Any, int]]:
    """All members and items, at any depth."""
    if isinstance(value, list):
        for place, each in enumerate(value):
            name, inner = each if isinstance(value, Members) else (place, each)
            yield f"{path}/{name}", value, place
            yield from _places(inner, f"{path}/{name}")


def _choose(tree: Any, draw: Random, fits: Callable[[Any, Any], bool]) -> tuple[str, Any, int]:
    chosen = [each for each in _places(tree) if fits(each[1], _get(each[1], each[2]))]
    if not chosen:
        raise UnfitError
    return draw.choice(chosen)


def _get(owner: Any, place: int) -> Any:
    return owner[place][1] if isinstance(owner, Members) else owner[place]


def _set(owner: Any, place: int, value: Any) -> None:
    owner[place] = (owner[place][0], value) if isinstance(owner, Members) else value


NUMBERS: tuple[int, ...] = (
    0,
    1,
    -1,
    2,
    15,
    16,
    17,
    63,
    64,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 32,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    -(1 << 63),
    10**30,
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 1e300, "", "x", "0", [], [None], [[]]),
    *map(
        Raw, ("{}", "NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e999", "1.0", "01", "{", "nul")
    ),
    *(Raw('"\\ud800"'), Raw('"\\u0000"'), Raw("9" * 5000), Raw("[" * 2000 + "]" * 2000)),
)


def _other(draw: Random) -> Any:
    """Draw one of those: a copy, since what stands in a tree is changed there."""
    return copy.deepcopy(draw.choice(OTHERS))


WORDS = ("", " ", "/", "..", "a\0b", "\u00e9", "x" * 300, "main", "../x", "state", "null")


def interesting_text(text: str, draw: Random, names: tuple[str, ...] = ()) -> str:
    """Give another text: a word, a name of a file, or the same with something changed."""
    way = draw.randrange(7)
    at = draw.randrange(len(text) + 1)
    if way == 0 or (way == 1 and not names):
        return draw.choice(WORDS)
    if way in {1, 2} and names:
        return draw.choice(names)
    if way == 3:
        return text[:at] + text[at + 1 :]
    if way == 4:
        return text[:at] + draw.choice("0G1Zz/.:-+ \u00e9") + text[at:]
    if way == 5:
        return text.swapcase()
    return text[:at] + draw.choice("0123456789GZz") + text[at + 1 :]


def change_value(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Give a leaf another value of its kind."""

    def is_leaf(_: Any, value: Any) -> bool:
        return not isinstance(value, list) and value is not None

    path, owner, place = _choose(tree, draw, is_leaf)
    old = _get(owner, place)
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, (int, float)):
        near = [int(old) - 1, int(old) + 1, 2 * int(old)]
        new = draw.choice([*NUMBERS, *near])
    else:
        new = interesting_text(str(old), draw, names)
    _set(owner, place, new)
    return f"{path} is {new!r:.60} for {old!r:.60}"


def change_type(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Put something of another kind into a place."""
    path, owner, place = _choose(tree, draw, lambda *_: True)
    new = _other(draw)
    _set(owner, place, new)
    return f"{path} is {new!r:.60}"


def nest(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Put a value into a list or an object, or take it out of one."""
    path, owner, place = _choose(tree, draw, lambda *_: True)
    old = _get(owner, place)
    new = draw.choice([[old], Members([("x", old)]), *(_inner(old))])
    _set(owner, place, new)
    return f"{path} is {dump(new):.60}"


def _inner(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        return []
    return [_get(value, 0)]


def drop(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Leave a member or item out."""
    path, owner, place = _choose(tree, draw, lambda *_: True)
    del owner[place]
    return f"{path} is left out"


def double(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Let a member or item come twice, somewhere, with its value or another."""
    path, owner, place = _choose(tree, draw, lambda *_: True)
    again = owner[place]
    if isinstance(owner, Members) and draw.random() < 0.5:
        again = (again[0], _other(draw))
    owner.insert(draw.randrange(len(owner) + 1), again)
    return f"{path} comes twice"


def add(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Add a member that nobody knows, or one of the names."""
    objects = [("", tree)] if isinstance(tree, Members) else []
    objects += [
        (path, _get(owner, place))
        for path, owner, place in _places(tree)
        if isinstance(_get(owner, place), Members)
    ]
    if not objects:
        raise UnfitError
    path, owner = draw.choice(objects)
    name = draw.choice(("new", "info", "", "deleted", "catalog", "key", "write_id", *names))
    owner.append((name, _other(draw)))
    return f"{path} has a member {name!r} more"


def reorder(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Let two members or items change places."""
    path, owner, place = _choose(tree, draw, lambda owner, _: len(owner) > 1)
    other = draw.randrange(len(owner))
    owner[place], owner[other] = owner[other], owner[place]
    return f"{path} changes places with number {other}"


def rename(tree: Any, draw: Random, names: tuple[str, ...]) -> str:
    """Give a member another name."""
    path, owner, place = _choose(tree, draw, lambda owner, _: isinstance(owner, Members))
    old, value = owner[place]
    new = interesting_text(old, draw, names)
    owner[place] = (new, value)
    return f"{path} is called {new!r:.60}"


MUTATIONS: dict[str, Callable[[Any, Random, tuple[str, ...]], str]] = {
    "value": change_value,
    "type": change_type,
    "nesting": nest,
    "missing": drop,
    "doubled": double,
    "added": add,
    "order": reorder,
    "name": rename,
}
"""What is done to one place, by the kind of damage; each says what it did."""
