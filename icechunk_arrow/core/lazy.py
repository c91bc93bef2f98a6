"""Values that are made when they are first asked for.

As :func:`functools.cached_property`, without the lock that it has before Python 3.12: one for all
instances, which a thread that was not forked would hold for ever in the child. Of two threads that ask at
once both may make the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lazy"]

V = TypeVar("V")


class _Lazy(Generic[V]):
    """A value among an instance's attributes, once it is made."""

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._name = ""
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> V: ...
    def __get__(self, instance: object | None, owner: type) -> Self | V:
        if instance is None:
            return self
        value = self._make(instance)
        instance.__dict__[self._name] = value
        return value


def lazy(make: Callable[[Any], V]) -> _Lazy[V]:
    """Make a method an attribute whose value is kept."""
    return _Lazy(make)
