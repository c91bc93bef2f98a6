"""Commands that write: a new repository, and its settings."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from icechunk_arrow.cli.consoles import say
from icechunk_arrow.cli.options import (
    Format,
    FormatOption,
    Output,
    StorageOptions,
    Url,
    open_repository,
    pairs,
    storage_options_of,
)
from icechunk_arrow.cli.output import emit
from icechunk_arrow.core.plain_yaml import load_plain_yaml
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.repository import Repository
from icechunk_arrow.tables.metadata import config_table

__all__ = ["config", "init"]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a setting, as checksum-chunks=true or chunk-manifests.preload.max-manifests=0; the value is "
        "YAML. May be repeated.",
    ),
]


class Catalog(Enum):
    """Where branches and tags are kept."""

    BRANCHES = "branches"
    STATE = "state"


def init(
    url: Url,
    settings: Settings = None,
    catalog: Annotated[
        Catalog,
        typer.Option(help="Keep branches and tags as files of their own, or in one state file."),
    ] = Catalog.BRANCHES,
    storage_option: StorageOptions = None,
) -> None:
    """Make a repository where there is none."""
    chosen = _with_settings(RepositoryConfig(), settings) if settings else None
    options = storage_options_of(storage_option)
    made = Repository.create(url, options, config=chosen, catalog=catalog.value)
    say(f"made a repository at {made.url}")


def config(
    url: Url,
    settings: Settings = None,
    form: FormatOption = Format.TABLE,
    output: Output = None,
    storage_option: StorageOptions = None,
) -> None:
    """Show the settings in force, after those of --set were checked and saved."""
    repository = open_repository(url, storage_option)
    if settings:
        chosen = _with_settings(repository.config, settings)
        repository = Repository.open(url, storage_options_of(storage_option), config=chosen)
        repository.save_config()
        say(f"saved {len(settings)} in {repository.url}/config.yaml")
    emit(config_table(repository.config), form, output)


def _with_settings(base: RepositoryConfig, settings: list[str]) -> RepositoryConfig:
    """Lay settings over others; what is wrong is said with the key that it is wrong with."""
    found: dict[str, Any] = base.to_plain()
    for key, text in pairs(settings, "--set").items():
        try:
            value = load_plain_yaml(text)
        except InvalidInputError as error:
            raise InvalidInputError(f"the value of {key} is not plain YAML: {error}") from None
        *above, last = key.split(".")
        place: Any = found
        for name in above:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InvalidInputError(
                f"unknown configuration key {key!r}; `icechunk-arrow config` lists all"
            )
        place[last] = value
    return RepositoryConfig.from_plain(found)
