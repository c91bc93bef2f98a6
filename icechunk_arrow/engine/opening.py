"""Making and opening repositories: which storage, which catalog, which settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.snapshot import SnapshotFacts
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.catalog import SequenceCatalog
from icechunk_arrow.engine.config import RepositoryConfig
from icechunk_arrow.engine.context import Context, new_id, now
from icechunk_arrow.engine.files import Files
from icechunk_arrow.engine.state_catalog import StateCatalog
from icechunk_arrow.engine.together import together
from icechunk_arrow.engine.virtual import VirtualAccess
from icechunk_arrow.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotAuthorizedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RepositoryNotFoundError,
    StorageError,
)
from icechunk_arrow.formats import structure
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import CONFIG_KEY, MAIN, STATE_KEY, FileKind, branch_key, key_of
from icechunk_arrow.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.engine.catalog import Catalog
    from icechunk_arrow.storage.port import Storage

    Allowed = Iterable[str] | Mapping[str, Mapping[str, Any] | None] | None

__all__ = ["create_context", "open_context", "repository_exists", "save_config"]

Place = str | os.PathLike[str]

_DEFAULTS = RepositoryConfig()


def _config_of(storage: Storage) -> RepositoryConfig | None:
    try:
        return RepositoryConfig.from_yaml(storage.get(CONFIG_KEY))
    except ObjectNotFoundError:
        return None
    except InvalidInputError as error:
        raise InvalidInputError(f"{storage.url}/{CONFIG_KEY}: {error}") from error


def save_config(storage: Storage, config: RepositoryConfig) -> None:
    """Write ``config.yaml``, over what is there."""
    data = config.to_yaml().encode()
    failure: StorageError | None = None
    while True:
        try:
            found, token = storage.get_versioned(CONFIG_KEY)
        except ObjectNotFoundError:
            found, token = None, ""
        if found == data:  # also when the answer was lost behind a success
            return
        if failure is not None:
            raise failure
        try:
            if found is None:
                storage.create(CONFIG_KEY, data)
            else:
                storage.replace(CONFIG_KEY, data, token)
        except (AlreadyExistsError, PreconditionFailedError):
            continue
        except StorageError as error:
            failure = error
            continue
        return


def _context(
    storage: Storage, catalog: Catalog, config: RepositoryConfig, allowed: Allowed
) -> Context:
    return Context(
        storage=storage,
        catalog=catalog,
        config=config,
        access=VirtualAccess(allowed, config.storage),
        files=Files(storage, ByteCache(config.cache_bytes)),
    )


def _state_place(state_url: Place) -> str:
    """A state file may be named itself or by its folder."""
    text = os.fspath(state_url)
    return text.removesuffix(f"/{STATE_KEY}")


def create_context(
    url: Place,
    storage_options: Mapping[str, Any] | None,
    config: RepositoryConfig | None,
    allowed: Allowed,
    *,
    catalog: str,
    state_url: Place | None,
) -> Context:
    """Make a repository with an empty first snapshot."""
    settled = config or RepositoryConfig()
    storage = open_storage(url, storage_options, settings=settled.storage)
    storage.require_writable()
    if catalog == "branches":
        if state_url is not None:
            raise InvalidInputError("state_url goes with catalog='state'")
        if storage.exists(STATE_KEY):
            raise AlreadyExistsError(f"there is a repository at {storage.url} already (state.json)")
        chosen: Catalog = SequenceCatalog(storage, new_id)
    elif catalog == "state":
        if storage.exists(branch_key(MAIN, 0)):
            raise AlreadyExistsError(f"there is a repository at {storage.url} already")
        apart = None if state_url is None else _state_place(state_url)
        place = (
            storage
            if apart is None
            else open_storage(apart, storage_options, settings=settled.storage)
        )
        chosen = StateCatalog(place, new_id, None if apart is None else storage.url)
    else:
        raise InvalidInputError(f"catalog must be 'branches' or 'state', not {catalog!r}")
    if chosen.exists():
        raise AlreadyExistsError(
            f"there is a repository at {storage.url} already; open it, or choose another place"
        )
    moment = now()
    first = structure.empty_snapshot(
        SnapshotFacts(
            id=new_id(),
            message="Repository created",
            written_at=moment,
            started_at=moment,
            properties={},
            history=(),
            total_parents=0,
            next_node_id=1,
            branch=MAIN,
            sequence=0 if catalog == "branches" else None,
        )
    )
    data = structure.encode(first)
    storage.put(key_of(FileKind.STRUCTURE, first.id), data, header_metadata(FileKind.STRUCTURE))
    if config is not None:
        save_config(storage, config)
    storage.sync()
    chosen.initialize(first.facts.info)
    return _context(storage, chosen, settled, allowed)


def open_context(
    url: Place,
    storage_options: Mapping[str, Any] | None,
    config: RepositoryConfig | None,
    allowed: Allowed,
    *,
    state_url: Place | None,
) -> Context:
    """Open a repository that exists."""
    settings = config.storage if config is not None and config.gives("storage") else None
    if state_url is not None:
        url_of_state = _state_place(state_url)
        state_storage = open_storage(url_of_state, storage_options, settings=settings)
        chosen: Catalog = StateCatalog(state_storage, new_id)
        if not chosen.exists():
            raise RepositoryNotFoundError(f"there is no {STATE_KEY} at {state_storage.url}")
        storage = open_storage(url, storage_options, settings=settings)
    else:
        storage = open_storage(url, storage_options, settings=settings)
        found = _by_branches(storage, config)
        if found is not None:
            chosen, settled = found
            if settings is None and settled.storage != _DEFAULTS.storage:
                # the repository's own storage settings become known only now
                storage = open_storage(url, storage_options, settings=settled.storage)
                chosen = chosen.through(storage)
            return _context(storage, chosen, settled, allowed)
        storage, chosen = _by_state_file(storage, storage_options, settings, allowed)
    settled = _settled(_config_of(storage), config)
    if settings is None and settled.storage != _DEFAULTS.storage:
        return open_context(url, storage_options, settled, allowed, state_url=state_url)
    return _context(storage, chosen, settled, allowed)


def _by_branches(
    storage: Storage, config: RepositoryConfig | None
) -> tuple[SequenceCatalog, RepositoryConfig] | None:
    """Open a repository with branch sequences, and its settings."""
    catalog = SequenceCatalog(storage, new_id)
    exists, saved = together(storage, catalog.exists, lambda: _config_of(storage))
    return (catalog, _settled(saved, config)) if exists else None


def _settled(saved: RepositoryConfig | None, override: RepositoryConfig | None) -> RepositoryConfig:
    """Lay what somebody gave over what is saved."""
    settings = saved or _DEFAULTS
    return settings if override is None else settings.overridden_by(override)


def _by_state_file(
    storage: Storage,
    storage_options: Mapping[str, Any] | None,
    settings: Any,
    allowed: Allowed,
) -> tuple[Storage, Catalog]:
    """Open a repository whose catalog is the state file at this place."""
    chosen = StateCatalog(storage, new_id)
    if not chosen.exists():
        raise RepositoryNotFoundError(
            f"there is no repository at {storage.url}; Repository.create makes one"
        )
    root = chosen.read().store_root
    if root is None or root.rstrip("/") == storage.url.rstrip("/"):
        return storage, chosen
    inside = (root.rstrip("/") + "/").startswith(storage.url.rstrip("/") + "/")
    outside = not inside or ".." in root.split("/")
    if outside and not VirtualAccess(allowed, _DEFAULTS.storage).allows_root(root):
        raise NotAuthorizedError(
            f"the state file at {storage.url} says that its data is at {root!r}, outside the place that "
            f"was opened. If you trust it, open it with authorize_virtual_chunk_access=[{root!r}], or "
            f"name both: Repository.open({root!r}, state_url={storage.url!r}).",
            location=root,
        )
    return open_storage(root, storage_options, settings=settings), chosen


def repository_exists(
    url: Place, storage_options: Mapping[str, Any] | None, *, state_url: Place | None
) -> bool:
    """Whether there is a repository at a place."""
    if state_url is not None:
        return open_storage(_state_place(state_url), storage_options).exists(STATE_KEY)
    storage = open_storage(url, storage_options)
    return storage.exists(branch_key(MAIN, 0)) or storage.exists(STATE_KEY)
