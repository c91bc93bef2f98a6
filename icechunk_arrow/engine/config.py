"""The settings of a repository: what ``config.yaml`` holds, and what ``open`` may override.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Self

import yaml

from icechunk_arrow.core.manifest_settings import ManifestSettings
from icechunk_arrow.core.plain_settings import known_members, shown
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
    chunk_manifests
        How references are arranged in manifests, and which manifests are loaded ahead.
    storage
        How the storage is used: durability, tries, time-outs.
    """

    inline_chunk_threshold_bytes: int = 512
    inline_attributes_threshold_bytes: int = 4096
    packed_chunk_threshold_bytes: int = _MiB
    chunk_file_size_bytes: int = 64 * _MiB
    checksum_chunks: bool = False
    cache_bytes: int = 256 * _MiB
    chunk_manifests: ManifestSettings = field(default_factory=ManifestSettings)
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
        """Give these settings, with those that the other names in their place.

        Of ``chunk_manifests`` the parts that it names are taken: sets, rules, preload.
        """
        named = {name: getattr(other, name) for name in other._given}
        if "chunk_manifests" in named:
            manifests = self.chunk_manifests.overridden_by(other.chunk_manifests)
            named["chunk_manifests"] = manifests
        return dataclasses.replace(self, **named)

    def __post_init__(self) -> None:
        for each in _settings(self):
            value = getattr(self, each.name)
            if each.name.endswith("_bytes") and (
                not isinstance(value, int) or isinstance(value, bool) or value < 0
            ):
                raise InvalidInputError(
                    f"{_key(each.name)} must be a number of bytes from 0, not {value!r}"
                )
        if not isinstance(self.chunk_manifests, ManifestSettings):
            raise InvalidInputError(
                f"chunk_manifests must be a ManifestSettings, not {shown(self.chunk_manifests)}; "
                "ManifestSettings.from_plain makes one of a mapping"
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


def _plain(value: Any) -> Any:
    """Write a setting as YAML has it; a class with a plain form of its own writes itself."""
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if not dataclasses.is_dataclass(value):
        return value
    return {_key(each.name): _plain(getattr(value, each.name)) for each in _settings(value)}


def _build(cls: type[Any], found: Any, where: str) -> Any:
    """Make a settings object from a mapping, naming the key of whatever is wrong."""
    names = {_key(each.name): each.name for each in _settings(cls)}
    members = known_members(found, names, where)
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in members.items():
        place = f"{where}.{key}" if where else key
        wanted = hints[names[key]]
        if hasattr(wanted, "from_plain"):
            values[names[key]] = wanted.from_plain(value)
            continue
        if dataclasses.is_dataclass(wanted):
            values[names[key]] = _build(typing.cast("type[Any]", wanted), value, place)
            continue
        allowed = wanted.__args__ if isinstance(wanted, types.UnionType) else (wanted,)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            words = " or ".join(t.__name__ for t in allowed)
            raise InvalidInputError(f"{place} must be of type {words}, not {shown(value)}")
        values[names[key]] = value
    return cls(**values)
