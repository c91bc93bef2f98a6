"""YAML with nothing in it but mappings, lists and plain scalars: settings that a stranger may have written.

Owns what is taken and what is refused. Anchors, aliases, tags, merges and directives can make a few bytes into
endless values and numbers; words such as ``yes`` and ``010`` mean different things to different readers. All of
these are refused, none is read as something else. Scalars without quotes are those of JSON, or text.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.settings import LONGEST_YAML_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LONGEST_YAML_BYTES", "dump_plain_yaml", "load_plain_yaml"]

_MAX_DEPTH = 32
_LONGEST_NUMBER = 40
_MOST_DIGITS = 20
_LONGEST_WORD = 200
_WORDS = {"null": None, "true": True, "false": False, "": None}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_plain_yaml(text: str | bytes) -> Any:
    """Read one document of mappings, lists and plain scalars.

    Raises
    ------
    InvalidInputError
        It is something else, too long, too deep, or has a key twice; the message says in which line.
    """
    if len(text) > LONGEST_YAML_BYTES:
        raise InvalidInputError(
            f"it has {len(text)} bytes, and at most {LONGEST_YAML_BYTES} are read"
        )
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        if "\ufeff" in decoded:
            raise InvalidInputError("it has a byte order mark; save it as UTF-8 without one")
        return _document(yaml.parse(decoded, _Loader))
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"it is not YAML: {str(error)[:500]}") from None


def _document(events: Iterator[Any]) -> Any:
    content: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _refused(event, "a second document; keep one")
            if event.version or event.tags:
                raise _refused(event, "a directive; leave it out")
        elif isinstance(event, yaml.NodeEvent):
            content = _node(event, events, 0)
    return content


def _node(event: Any, events: Iterator[Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent):
        raise _refused(event, "an alias (*); write the value out")
    if event.anchor is not None:
        raise _refused(event, "an anchor (&); write the value out where it is used")
    if event.tag is not None:
        raise _refused(event, f"the tag {event.tag[:50]!r}; leave it out")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth >= _MAX_DEPTH:
        raise _refused(event, f"more than {_MAX_DEPTH} levels; make it flatter")
    if isinstance(event, yaml.SequenceStartEvent):
        return [_node(each, events, depth + 1) for each in _until(yaml.SequenceEndEvent, events)]
    return _mapping(events, depth)


def _until(end: type[Any], events: Iterator[Any]) -> Iterator[Any]:
    """Give what comes next, up to the end of a list or mapping; a caller that takes one takes all that is in it."""
    for event in events:
        if isinstance(event, end):
            return
        yield event


def _mapping(events: Iterator[Any], depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for event in _until(yaml.MappingEndEvent, events):
        if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
            raise _refused(event, "a key that is no plain text; write text")
        if not event.style and event.value == "<<":
            raise _refused(event, "a merge (<<); write the members out")
        key = _scalar(event)
        if not isinstance(key, str):
            raise _refused(event, f"the key {event.value[:50]!r}, which is no text without quotes")
        if key in members:
            raise _refused(event, f"the key {key[:100]!r} twice; keep one of them")
        members[key] = _node(next(events), events, depth + 1)
    return members


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.style:  # in quotes, or a block
        return text
    try:
        return _plain_value(text)
    except ValueError as error:
        raise _refused(event, str(error)) from None


def _plain_value(text: str) -> Any:
    """Read a scalar without quotes; ``ValueError`` where readers of YAML disagree on it."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is not None:
        return _number(text, is_whole=number[1] is None and number[2] is None)
    if len(text) > _LONGEST_WORD:
        return text
    first = text[0]
    for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(first, ()):
        if pattern.match(text):
            kind = tag.rpartition(":")[2]
            raise ValueError(
                f"{text[:50]!r}, which some readers take for a {kind}; write it in quotes if it is text, and as "
                "JSON has it if not"
            )
    return text


def _number(text: str, *, is_whole: bool) -> int | float:
    if len(text) > (_MOST_DIGITS + 1 if is_whole else _LONGEST_NUMBER):
        raise ValueError(f"a number of {len(text)} characters; write a shorter one")
    value = int(text) if is_whole else float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text}, which is too large")
    return value


def _refused(event: Any, what: str) -> InvalidInputError:
    return InvalidInputError(f"line {event.start_mark.line + 1} has {what}")


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever :func:`load_plain_yaml` would not read it as that text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    try:
        is_plain = _plain_value(text) == text
    except ValueError:
        is_plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else "'")


_Dumper.add_representer(str, _represent_text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def dump_plain_yaml(value: Any) -> str:
    """Write plain values so that :func:`load_plain_yaml` reads them back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
