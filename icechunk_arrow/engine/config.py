"""The settings of a repository: what ``config.yaml`` holds, what ``open`` may override, and which are in force.

They say how a repository is written, never what a reader's process may spend: durability, time-outs, budgets and
permissions belong to the process that opens.

No session that only reads has to wait for the file: it is fetched when a setting is wanted. A reader leaves out
keys that it does not know, since no setting changes what a file means; a writer that does not know them would not
do what they say.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import Meta

from icechunk_arrow.core.manifest_settings import ManifestSettings
from icechunk_arrow.engine.small_files import write_small
from icechunk_arrow.errors import InvalidInputError, ObjectNotFoundError, OversizedFileError
from icechunk_arrow.formats.layout import CONFIG_KEY
from icechunk_arrow.settings import (
    LONGEST_YAML_BYTES,
    Takes,
    check_settings,
    plain,
    read,
    settle,
)

if TYPE_CHECKING:
    from icechunk_arrow.core.manifest_settings import ManifestPreload
    from icechunk_arrow.storage.port import Storage

__all__ = ["RepositoryConfig", "SavedConfig", "read_saved"]

_MiB = 1 << 20
_MOST_HELD_BYTES = 1 << 30
"""So much a stranger's repository may make its writer hold."""

_Size = Annotated[int, Meta(ge=0), Takes(words="of type int, a number of bytes from 0")]
_InlineSize = Annotated[
    int,
    Meta(ge=0, le=_MiB),
    Takes(
        words=f"of type int, a number of bytes from 0 and at most {_MiB}, as larger chunks make manifests slow"
    ),
]
_HeldSize = Annotated[
    int,
    Meta(ge=0, le=_MOST_HELD_BYTES),
    Takes(
        words=f"of type int, a number of bytes from 0 and at most {_MOST_HELD_BYTES}, as so many are held in "
        "memory until they are written"
    ),
]
_Manifests = Annotated[
    ManifestSettings,
    Takes(words="a ManifestSettings, as ManifestSettings.from_plain makes one of a mapping"),
]


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
        How large such a chunk file becomes, not less than the threshold; so much is held in memory until it is
        written.
    checksum_chunks
        Store a CRC-32C with every native chunk (of large ones sums of their blocks too), and check it when the
        chunk is read.
    chunk_manifests
        How references are arranged in manifests, and which manifests are loaded ahead.
    """

    inline_chunk_threshold_bytes: _InlineSize = 512
    inline_attributes_threshold_bytes: _Size = 4096
    packed_chunk_threshold_bytes: _Size = _MiB
    chunk_file_size_bytes: _HeldSize = 64 * _MiB
    checksum_chunks: Annotated[bool, Takes(words="of type bool")] = True
    chunk_manifests: _Manifests = field(default_factory=ManifestSettings)
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Remember which settings were named: only these override others."""
        self = object.__new__(cls)
        settle(self, "_given", frozenset(given))
        return self

    def __post_init__(self) -> None:
        check_settings(self)
        if self.chunk_file_size_bytes < self.packed_chunk_threshold_bytes:
            raise InvalidInputError(
                f"chunk-file-size-bytes is {self.chunk_file_size_bytes}, and must not be less than "
                f"packed-chunk-threshold-bytes, which is {self.packed_chunk_threshold_bytes}"
            )

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

    @classmethod
    def from_yaml(cls, text: str | bytes, ignored: list[str] | None = None) -> RepositoryConfig:
        """Read settings; JSON is YAML too. With ``ignored`` unknown keys are left out, and named there.

        Raises
        ------
        InvalidInputError
            A key is unknown or its value has the wrong type.
        """
        from icechunk_arrow.core.plain_yaml import load_plain_yaml  # noqa: PLC0415 - slow to import

        try:
            parsed = load_plain_yaml(text)
        except InvalidInputError as error:
            raise InvalidInputError(f"the configuration is not plain YAML: {error}") from error
        return cls.from_plain(parsed, ignored)

    @classmethod
    def from_plain(cls, found: Any, ignored: list[str] | None = None) -> RepositoryConfig:
        """Read settings from what :meth:`to_plain` gives; what is left out has its default."""
        return read(cls, found, ignored=ignored)

    def to_plain(self) -> dict[str, Any]:
        """Give all settings as plain values."""
        return plain(self)

    def to_yaml(self) -> str:
        """Write all settings."""
        from icechunk_arrow.core.plain_yaml import dump_plain_yaml  # noqa: PLC0415 - slow to import

        return dump_plain_yaml(self.to_plain())


class SavedConfig:
    """The settings in force: ``config.yaml`` as it is when a caller asks, under what was given at opening."""

    def __init__(
        self,
        storage: Storage,
        given: RepositoryConfig | None = None,
        known: RepositoryConfig | None = None,
    ) -> None:
        """Begin with those that need not be asked for, if they are ``known``."""
        self._storage = storage
        self._given = given
        self._config = known
        self._ignored: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    @property
    def is_known(self) -> bool:
        """Whether asking costs no request."""
        return self._config is not None

    @property
    def preload_if_known(self) -> ManifestPreload | None:
        """What a session loads ahead; None where that has to be asked for."""
        if self._config is not None:
            return self._config.chunk_manifests.preload
        config = self._given
        if config is not None and config.gives("chunk_manifests"):
            return config.chunk_manifests.given_preload
        return None

    def to_read(self) -> RepositoryConfig:
        """Give the settings to a reader, which writes nothing."""
        if self._config is None:
            ignored: list[str] = []
            saved = self._load(ignored)
            self._ignored = ignored
            self._config = saved if self._given is None else saved.overridden_by(self._given)
        return self._config

    def to_write(self) -> RepositoryConfig:
        """Give the settings to a writer: all that are saved must be known here."""
        config = self.to_read()
        if self._ignored:
            raise InvalidInputError(
                f"{self._storage.url}/{CONFIG_KEY}: unknown configuration key {self._ignored[0]!r}, without "
                f"which this repository may be read and not written. Remove it, or install a newer icechunk-arrow"
            )
        return config

    def _load(self, ignored: list[str]) -> RepositoryConfig:
        data = read_saved(self._storage)
        if data is None:
            return RepositoryConfig()
        try:
            return RepositoryConfig.from_yaml(data, ignored)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._storage.url}/{CONFIG_KEY}: {error}") from error

    def save(self) -> None:
        """Write the settings in force as ``config.yaml``, over what is there."""
        data = self.to_write().to_yaml().encode()
        write_small(self._storage, CONFIG_KEY, lambda _: data, limit_bytes=LONGEST_YAML_BYTES)


def read_saved(storage: Storage) -> bytes | None:
    """Read what stands at the place of the settings, and no more of it than settings can be."""
    try:
        data = storage.get_range(CONFIG_KEY, 0, LONGEST_YAML_BYTES + 1)
    except ObjectNotFoundError:
        return None
    if len(data) > LONGEST_YAML_BYTES:
        raise OversizedFileError(
            f"{storage.url}/{CONFIG_KEY} has more than {LONGEST_YAML_BYTES} bytes, which no settings need; "
            f"shorten or remove it",
            key=CONFIG_KEY,
            limit_bytes=LONGEST_YAML_BYTES,
        )
    return data
