"""The settings of a repository: what ``config.yaml`` holds, and what ``open`` may override.

They say how a repository is written, never what a reader's process may spend: durability, time-outs, budgets and
permissions belong to whoever opens.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Self

from icechunk_arrow.core.manifest_settings import ManifestSettings
from icechunk_arrow.core.plain_settings import known_members, shown
from icechunk_arrow.core.plain_yaml import dump_plain_yaml, load_plain_yaml
from icechunk_arrow.errors import InvalidInputError

__all__ = ["RepositoryConfig"]

_MANIFESTS = "chunk-manifests"
_MiB = 1 << 20
_MOST_HELD_BYTES = 1 << 30
"""So much a stranger's repository may make its writer hold."""


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
    chunk_manifests
        How references are arranged in manifests, and which manifests are loaded ahead.
    """

    inline_chunk_threshold_bytes: int = 512
    inline_attributes_threshold_bytes: int = 4096
    packed_chunk_threshold_bytes: int = _MiB
    chunk_file_size_bytes: int = 64 * _MiB
    checksum_chunks: bool = True
    chunk_manifests: ManifestSettings = field(default_factory=ManifestSettings)
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
        if self.chunk_file_size_bytes > _MOST_HELD_BYTES:
            raise InvalidInputError(
                f"chunk-file-size-bytes is {self.chunk_file_size_bytes}: so much is held in memory until it is "
                f"written, and at most {_MOST_HELD_BYTES} may be"
            )
        if self.chunk_file_size_bytes < self.packed_chunk_threshold_bytes:
            raise InvalidInputError(
                "chunk-file-size-bytes must not be less than packed-chunk-threshold-bytes"
            )

    @classmethod
    def from_yaml(cls, text: str | bytes, ignored: list[str] | None = None) -> RepositoryConfig:
        """Read settings; JSON is YAML too. With ``ignored`` unknown keys are left out, and named there.

        Raises
        ------
        InvalidInputError
            A key is unknown or its value has the wrong type.
        """
        try:
            found = load_plain_yaml(text)
        except InvalidInputError as error:
            raise InvalidInputError(f"the configuration is not plain YAML: {error}") from error
        config: RepositoryConfig = _build(cls, {} if found is None else found, ignored)
        return config

    def to_plain(self) -> dict[str, Any]:
        """Give all settings as plain values."""
        values = {_key(each.name): getattr(self, each.name) for each in _settings(self)}
        return values | {_MANIFESTS: self.chunk_manifests.to_plain()}

    def to_yaml(self) -> str:
        """Write all settings."""
        return dump_plain_yaml(self.to_plain())


def _key(name: str) -> str:
    return name.replace("_", "-")


def _settings(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(each for each in dataclasses.fields(value) if each.init)


def _build(cls: type[Any], found: Any, ignored: list[str] | None) -> Any:
    """Make the settings from a mapping, naming the key of whatever is wrong."""
    names = {_key(each.name): each.name for each in _settings(cls)}
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in known_members(found, names, "", ignored).items():
        wanted = hints[names[key]]
        if key == _MANIFESTS:
            values[names[key]] = ManifestSettings.from_plain(value, ignored)
        elif isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
            values[names[key]] = value
        else:
            raise InvalidInputError(f"{key} must be of type {wanted.__name__}, not {shown(value)}")
    return cls(**values)
