"""The settings of an open repository: ``config.yaml`` as it is when somebody asks, under what was given at opening.

Nobody who only reads has to wait for the file: it is fetched when a setting is wanted. A reader leaves out keys
that it does not know, since no setting changes what a file means; a writer that does not know them would not do
what they say.

Specification: schemas/README.md#configuration
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.plain_yaml import LONGEST_YAML_BYTES
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.engine.small_files import write_small
from icechunk_arrow.errors import InvalidInputError, ObjectNotFoundError, OversizedFileError
from icechunk_arrow.formats.layout import CONFIG_KEY

if TYPE_CHECKING:
    from icechunk_arrow.core.manifest_settings import ManifestPreload
    from icechunk_arrow.storage.port import Storage

__all__ = ["SavedConfig", "read_saved"]


class SavedConfig:
    """Settings in force; ``known`` where they need not be asked for."""

    def __init__(
        self,
        storage: Storage,
        given: RepositoryConfig | None = None,
        known: RepositoryConfig | None = None,
    ) -> None:
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
        given = self._given
        if given is not None and given.gives("chunk_manifests"):
            return given.chunk_manifests.given_preload
        return None

    def to_read(self) -> RepositoryConfig:
        """Give the settings to somebody who writes nothing."""
        if self._config is None:
            ignored: list[str] = []
            saved = self._load(ignored)
            self._ignored = ignored
            self._config = saved if self._given is None else saved.overridden_by(self._given)
        return self._config

    def to_write(self) -> RepositoryConfig:
        """Give the settings to somebody who writes: all that are saved must be known here."""
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
        write_small(self._storage, CONFIG_KEY, lambda _: data)


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
