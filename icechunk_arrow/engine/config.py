"""The settings of a repository: what ``config.yaml`` holds, and what ``open`` may override.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Self

import yaml

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.storage.settings import StorageSettings

__all__ = ["RepositoryConfig"]

_MiB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryConfig:
    """Settings of a repository.

    Given to ``Repository.create`` they are saved; given to ``Repository.open``, those that are named override
    the saved ones.

    Parameters
    ----------
    inline_chunk_threshold_bytes
        Chunks up to this size stand in the manifest itself.
    inline_attributes_threshold_bytes
        Attributes up to this size stand in the structure file itself.
    packed_chunk_threshold_bytes
        Chunks below this size are gathered into chunk files; 0 gives every chunk a file of its own.
    chunk_file_size_bytes
        How large such a chunk file becomes; so much is held in memory until it is written.
    checksum_chunks
        Store a CRC-32C with every native chunk, and check it when the chunk is read.
    cache_bytes
        How much of structure files and manifests is kept in memory.
    storage
        How the storage is used: durability, tries, time-outs.
    """

    inline_chunk_threshold_bytes: int = 512
    inline_attributes_threshold_bytes: int = 4096
    packed_chunk_threshold_bytes: int = _MiB
    chunk_file_size_bytes: int = 64 * _MiB
    checksum_chunks: bool = False
    cache_bytes: int = 256 * _MiB
    storage: StorageSettings = field(default_factory=StorageSettings)
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Remember which settings were named: only these override others."""
        self = object.__new__(cls)
        object.__setattr__(self, "_given", frozenset(given))
        return self

    def gives(self, name: str) -> bool:
        """Whether a setting was named, rather than left at its default."""
        return name in self._given

    def overridden_by(self, other: RepositoryConfig) -> RepositoryConfig:
        """Give these settings, with those that the other names in their place."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in other._given})

    def __post_init__(self) -> None:
        for each in _settings(self):
            value = getattr(self, each.name)
            if each.name.endswith("_bytes") and (
                not isinstance(value, int) or isinstance(value, bool) or value < 0
            ):
                raise InvalidInputError(
                    f"{_key(each.name)} must be a number of bytes from 0, not {value!r}"
                )
        if self.inline_chunk_threshold_bytes > _MiB:
            raise InvalidInputError(
                f"inline-chunk-threshold-bytes is {self.inline_chunk_threshold_bytes}: chunks above "
                f"{_MiB} bytes make manifests slow; choose less"
            )
        if self.chunk_file_size_bytes < self.packed_chunk_threshold_bytes:
            raise InvalidInputError(
                "chunk-file-size-bytes must not be less than packed-chunk-threshold-bytes"
            )

    @classmethod
    def from_yaml(cls, text: str | bytes) -> RepositoryConfig:
        """Read settings; JSON is YAML too.

        Raises
        ------
        InvalidInputError
            A key is unknown or its value has the wrong type.
        """
        try:
            found = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise InvalidInputError(f"the configuration is not YAML: {error}") from error
        except RecursionError:
            raise InvalidInputError("the configuration is nested too deeply") from None
        config: RepositoryConfig = _build(cls, {} if found is None else found, "")
        return config

    def to_yaml(self) -> str:
        """Write all settings."""
        return yaml.safe_dump(_plain(self), sort_keys=False, allow_unicode=True)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _settings(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(each for each in dataclasses.fields(value) if each.init)


_short_repr = reprlib.Repr()
_short_repr.maxlevel = 2  # an alias can make a small file an endless value
_repr = _short_repr.repr


def _short(key: Any) -> str:
    return key[:100] if isinstance(key, str) else _repr(key)


def _plain(value: Any) -> dict[str, Any]:
    return {
        _key(each.name): _plain(inner) if dataclasses.is_dataclass(inner) else inner
        for each in _settings(value)
        for inner in [getattr(value, each.name)]
    }


def _build(cls: type[Any], found: Any, where: str) -> Any:
    """Make a settings object from a mapping, naming the key of whatever is wrong."""
    if not isinstance(found, dict):
        what = where or "the configuration"
        raise InvalidInputError(f"{what} must be a mapping, not {_repr(found)}")
    hints = typing.get_type_hints(cls)
    names = {_key(each.name): each.name for each in _settings(cls)}
    values = {}
    for key, value in found.items():
        place = f"{where}.{_short(key)}" if where else _short(key)
        if key not in names:
            near = difflib.get_close_matches(_short(key), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"
            raise InvalidInputError(f"unknown configuration key {place!r}; {hint}")
        wanted = hints[names[key]]
        if dataclasses.is_dataclass(wanted):
            values[names[key]] = _build(typing.cast("type[Any]", wanted), value, place)
            continue
        allowed = wanted.__args__ if isinstance(wanted, types.UnionType) else (wanted,)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            words = " or ".join(t.__name__ for t in allowed)
            raise InvalidInputError(f"{place} must be of type {words}, not {_repr(value)}")
        values[names[key]] = value
    return cls(**values)
