"""The commands that make a repository, show its settings and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_arrow.cli.consoles import say
from icechunk_arrow.cli.output import emit
from icechunk_arrow.core.plain_yaml import load_plain_yaml
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.metadata import config_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_arrow.cli.options import RowsTo

__all__ = ["config", "init"]


def init(
    url: str,
    *,
    settings: Mapping[str, str],
    catalog: str,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Make a repository where there is none."""
    chosen = _with_settings(RepositoryConfig(), settings) if settings else None
    repository = Repository.create(url, storage_options, config=chosen, catalog=catalog)
    say(f"made a repository at {repository.url}")


def config(
    url: str,
    *,
    settings: Mapping[str, str],
    to: RowsTo,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Show the settings in force, after those that were given were checked and saved."""
    repository = Repository.open(url, storage_options)
    if settings:
        chosen = _with_settings(repository.config, settings)
        repository = Repository.open(url, storage_options, config=chosen)
        repository.save_config()
        say(f"saved {len(settings)} in {repository.url}/config.yaml")
    emit(config_table(repository.config), to)


def _with_settings(base: RepositoryConfig, settings: Mapping[str, str]) -> RepositoryConfig:
    """Lay settings over others; what is wrong is said with the key that it is wrong with."""
    members: dict[str, Any] = base.to_plain()
    for key, text in settings.items():
        try:
            value = load_plain_yaml(text)
        except InvalidInputError as error:
            raise InvalidInputError(f"the value of {key} is not plain YAML: {error}") from None
        *above, last = key.split(".")
        place: Any = members
        for name in above:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InvalidInputError(
                f"unknown configuration key {key!r}; `icechunk-arrow config` lists all"
            )
        place[last] = value
    return RepositoryConfig.from_plain(members)
