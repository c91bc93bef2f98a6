"""Making and opening repositories: which storage, which catalog, which settings.

Specification: schemas/README.md#references

Whatever the catalog, entry 0 of ``main`` stands at the data's root and is created once: it decides which process
made the repository. The snapshot that it names is the repository's identity.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, field

from icechunk_arrow.core.plain_yaml import LONGEST_YAML_BYTES
from icechunk_arrow.core.snapshot import SnapshotFacts
from icechunk_arrow.engine.cache import ByteCache
from icechunk_arrow.engine.catalog import SequenceCatalog, create_entry, read_entry
from icechunk_arrow.engine.commit import check_clock, check_year
from icechunk_arrow.engine.config import RepositoryConfig, SavedConfig, read_saved
from icechunk_arrow.engine.context import Context, new_id, now
from icechunk_arrow.engine.files import Files
from icechunk_arrow.engine.sequences import together
from icechunk_arrow.engine.small_files import create_small
from icechunk_arrow.engine.state_catalog import StateCatalog, read_state
from icechunk_arrow.engine.virtual import VirtualAccess, lies_within
from icechunk_arrow.errors import (
    AlreadyExistsError,
    CorruptFileError,
    FormatError,
    InvalidInputError,
    NotAuthorizedError,
    ObjectNotFoundError,
    RepositoryNotFoundError,
)
from icechunk_arrow.formats import structure
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.formats.envelope import header_metadata
from icechunk_arrow.formats.layout import (
    CONFIG_KEY,
    MAIN,
    STATE_KEY,
    FileKind,
    branch_key,
    key_of,
    parse_key,
)
from icechunk_arrow.formats.refs import STATE_CATALOG, RefEntry
from icechunk_arrow.settings import LARGEST, Natural, Takes, checked
from icechunk_arrow.storage.open import is_absolute, open_storage
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.engine.catalog import Catalog
    from icechunk_arrow.formats.state import State
    from icechunk_arrow.storage.port import Storage

    Allowed = Iterable[str] | Mapping[str, Mapping[str, Any] | None] | None

__all__ = [
    "CACHE_BYTES",
    "Choices",
    "claim",
    "create_context",
    "find_first_entry",
    "open_context",
    "repository_exists",
    "taken",
    "unfinished",
]

_FIRST = branch_key(MAIN, 0)
Place = str | os.PathLike[str]
_MiB = 1 << 20
_Limit = Annotated[
    int, Meta(ge=_MiB, le=LARGEST), Takes(words=f"a whole number from {_MiB} to {LARGEST}")
]
CACHE_BYTES = 256 * _MiB
"""So much of structure files and manifests is kept in memory, unless the caller that opens says otherwise."""


def find_first_entry(storage: Storage) -> RefEntry | None:
    """Read how a place says that there is a repository."""
    try:
        entry = read_entry(storage, _FIRST)
    except ObjectNotFoundError:
        return None
    if not entry.is_commit or entry.deleted:
        raise CorruptFileError(f"{_FIRST} is damaged: it names no first snapshot", key=_FIRST)
    return entry


def taken(storage: Storage) -> AlreadyExistsError:
    """Say that there is a repository."""
    return AlreadyExistsError(
        f"there is a repository at {storage.url} already; open it, or choose another place"
    )


def claim(storage: Storage, snapshot_id: str, *, state: bool) -> None:
    """Make a place the repository whose first snapshot this is; of several processes that try one does."""
    entry = RefEntry(snapshot=snapshot_id, catalog=STATE_CATALOG if state else None)
    if not create_entry(storage, _FIRST, entry):
        raise taken(storage)


def unfinished(storage: Storage, entry: RefEntry, catalog: StateCatalog) -> bool:
    """Whether a repository has no state file because the process that made it was stopped before writing that.

    There must be no log of a commit: a state file that was lost later takes the history with it.
    """
    if entry.catalog != STATE_CATALOG or catalog.exists():
        return False
    listed = (info.key for info in storage.list(f"{FileKind.TRANSACTION.value}/"))
    if any(parse_key(key) is not None for key in listed):
        raise CorruptFileError(
            f"{STATE_KEY}, the catalog of the repository at {storage.url}, is missing, although there were "
            f"commits: restore it from a copy",
            key=STATE_KEY,
        )
    return True


class Choices(Struct, frozen=True, kw_only=True):
    """What belongs to the process that opens a repository, and never to the repository.

    Parameters
    ----------
    storage_settings
        How the place is used: durability, tries, time-outs.
    cache_bytes
        How much of structure files and manifests is kept in memory.
    decode_limit_bytes
        How much any one file may take in memory while it is decoded.
    allowed
        URL prefixes from which virtual chunks may be read.
    pickle_secrets
        Whether pickles hold the secrets among all storage options.
    """

    storage_settings: StorageSettings = field(default_factory=StorageSettings)
    cache_bytes: int = CACHE_BYTES
    decode_limit_bytes: int = DECODE_LIMIT_BYTES
    allowed: Allowed = None
    pickle_secrets: bool = False

    def open_storage(self, url: Place, storage_options: Mapping[str, Any] | None) -> Storage:
        """Open a place as it was chosen to be used."""
        return open_storage(
            url,
            storage_options,
            settings=self.storage_settings,
            pickle_secrets=self.pickle_secrets,
        )

    def __post_init__(self) -> None:
        checked(self.cache_bytes, Natural, "cache_bytes")
        checked(self.decode_limit_bytes, _Limit, "decode_limit_bytes")


def _refuse_other_config(storage: Storage, wanted: bytes | None) -> RepositoryConfig | None:
    """Refuse a place with a configuration that would become the repository's, and was not made for one.

    One that is sound counts where none is ``wanted``, and is given then.
    """
    try:
        saved = read_saved(storage)
        if saved is not None and wanted is None:
            return RepositoryConfig.from_yaml(saved)
    except (FormatError, InvalidInputError):
        saved = b""
    if saved is not None and saved != wanted:
        raise _other_config(storage)
    return None


def _other_config(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"there is a {CONFIG_KEY} at {storage.url} already, which a repository there would take for its "
        f"own. It was left as it is: choose another place, or move it away.",
        key=CONFIG_KEY,
    )


def _create_config(storage: Storage, data: bytes) -> None:
    """Write the first configuration, over nothing."""
    if create_small(storage, CONFIG_KEY, data, limit_bytes=LONGEST_YAML_BYTES) != data:
        raise _other_config(storage)


def _context(
    storage: Storage,
    catalog: Catalog,
    repository: str,
    saved_config: SavedConfig,
    choices: Choices,
) -> Context:
    return Context(
        storage=storage,
        catalog=catalog,
        saved_config=saved_config,
        storage_settings=choices.storage_settings,
        access=VirtualAccess(
            choices.allowed, choices.storage_settings, pickle_secrets=choices.pickle_secrets
        ),
        files=Files(
            storage, ByteCache(choices.cache_bytes), choices.decode_limit_bytes, repository
        ),
    )


def _state_place(state_url: Place) -> str:
    """A state file may be named itself or by its folder."""
    text = os.fspath(state_url)
    return text.removesuffix(f"/{STATE_KEY}")


def create_context(
    url: Place,
    storage_options: Mapping[str, Any] | None,
    config: RepositoryConfig | None,
    choices: Choices,
    *,
    catalog: str,
    state_url: Place | None,
) -> Context:
    """Make a repository with an empty first snapshot."""
    storage = choices.open_storage(url, storage_options)
    if catalog not in {"branches", "state"}:
        raise InvalidInputError(f"catalog must be 'branches' or 'state', not {catalog!r}")
    if catalog == "branches" and state_url is not None:
        raise InvalidInputError("state_url goes with catalog='state'")
    if catalog == "branches" and storage.exists(STATE_KEY):
        raise AlreadyExistsError(f"there is a repository at {storage.url} already (state.json)")
    written = None if config is None else config.to_yaml().encode()
    chosen: Catalog
    if catalog == "branches":
        if find_first_entry(storage) is not None:
            raise taken(storage)
        saved = _refuse_other_config(storage, written)
        first = _first_snapshot(storage, state=False)
        claim(storage, first.id, state=False)
        chosen = SequenceCatalog(storage, first.id, new_id)
    else:
        saved = _refuse_other_config(storage, written)
        place = _state_storage(storage, storage_options, choices, state_url)
        first = _begin_with_state(storage, place, choices)
        chosen = StateCatalog(place, first.id, new_id, choices.decode_limit_bytes)
        apart = None if state_url is None else storage.url
        chosen.initialize(first.info, store_root=apart)
    if written is not None:  # by the process that made the repository: one that lost leaves nothing
        _create_config(storage, written)
        storage.sync()
    saved_config = SavedConfig(storage, known=config or saved or RepositoryConfig())
    return _context(storage, chosen, first.id, saved_config, choices)


def _state_storage(
    storage: Storage,
    storage_options: Mapping[str, Any] | None,
    choices: Choices,
    state_url: Place | None,
) -> Storage:
    """Open the place of the state file."""
    if state_url is None:
        return storage
    place = _state_place(state_url)
    return choices.open_storage(place, storage_options)


def _begin_with_state(storage: Storage, place: Storage, choices: Choices) -> SnapshotFacts:
    """Make the first snapshot and the first entry, or find those of a process that was stopped behind them."""
    entry = find_first_entry(storage)
    if entry is not None:
        catalog = StateCatalog(place, entry.snapshot, new_id, choices.decode_limit_bytes)
        if not unfinished(storage, entry, catalog):
            raise taken(storage)
        files = Files(storage, ByteCache(0), choices.decode_limit_bytes, entry.snapshot)
        return files.read_snapshot(entry.snapshot).facts
    if place.exists(STATE_KEY):
        raise AlreadyExistsError(
            f"there is a state file at {place.url} already; open it, or choose another place"
        )
    first = _first_snapshot(storage, state=True)
    claim(storage, first.id, state=True)
    return first


def _first_snapshot(storage: Storage, *, state: bool) -> SnapshotFacts:
    """Write the snapshot without nodes that a repository begins with."""
    storage.require_writable()
    moment, identity = check_year(now()), new_id()
    facts = SnapshotFacts(
        id=identity,
        repository=identity,
        message="Repository created",
        written_at=moment,
        started_at=moment,
        properties={},
        history=(),
        total_parents=0,
        next_node_id=1,
        branch=MAIN,
        sequence=None if state else 0,
        synced=storage.syncs,
    )
    data = structure.encode(structure.empty_snapshot(facts))
    key = key_of(FileKind.STRUCTURE, identity)
    storage.put(key, data, header_metadata(FileKind.STRUCTURE))
    check_clock(storage, key)
    storage.sync()
    return facts


def open_context(
    url: Place,
    storage_options: Mapping[str, Any] | None,
    config: RepositoryConfig | None,
    choices: Choices,
    *,
    state_url: Place | None,
) -> Context:
    """Open a repository that exists."""
    storage = choices.open_storage(url, storage_options)
    entry, sequences = _look(storage)
    place = _state_storage(storage, storage_options, choices, state_url)
    state: State | None = None
    if entry is None and state_url is None:
        state = _state_alone(storage, choices.decode_limit_bytes)
        storage, entry = _data_of(state, storage, storage_options, choices)
    if entry is None:
        raise _no_repository(storage)
    chosen: Catalog
    if entry.catalog is None:
        if state_url is not None:
            raise InvalidInputError(
                f"the branches of the repository at {storage.url} stand in files of their own, and a state "
                f"file is only an export of it; open it without state_url"
            )
        chosen = sequences.of(entry.snapshot)
    else:
        _check_state(
            state or _state_of(storage, place, choices.decode_limit_bytes), storage, place, entry
        )
        chosen = StateCatalog(place, entry.snapshot, new_id, choices.decode_limit_bytes)
    return _context(storage, chosen, entry.snapshot, SavedConfig(storage, config), choices)


def _look(storage: Storage) -> tuple[RefEntry | None, SequenceCatalog]:
    """Read the first entry; where that takes a while, where ``main`` stands is found out meanwhile."""
    sequences = SequenceCatalog(storage, "", new_id)
    if storage.capabilities.fast:
        return find_first_entry(storage), sequences
    entry, _ = together(
        storage, lambda: find_first_entry(storage), lambda: sequences.look_ahead(MAIN)
    )
    return entry, sequences


def _state_of(storage: Storage, place: Storage, limit_bytes: int) -> State:
    """Read the state file that data say they have as their catalog."""
    try:
        return read_state(place, limit_bytes)
    except RepositoryNotFoundError:
        raise RepositoryNotFoundError(
            f"the repository at {storage.url} has a state file as its catalog, and there is none at "
            f"{place.url}. Where it stands elsewhere, name it with state_url; where creating the "
            f"repository was interrupted, create it again."
        ) from None


def _check_state(state: State, storage: Storage, place: Storage, entry: RefEntry) -> None:
    """Compare the state file with the first entry of the data that it is the catalog of."""
    if state.id != entry.snapshot:
        raise CorruptFileError(
            f"{STATE_KEY} at {place.url} is that of the repository {state.id}, and the data at "
            f"{storage.url} are those of {entry.snapshot}. Restore it from a copy, or name the right one "
            f"with state_url",
            key=STATE_KEY,
        )
    if place is storage and state.store_root is not None:
        raise CorruptFileError(
            f"{STATE_KEY} at {place.url} says that its data is at {state.store_root!r}, and stands beside "
            f"data of its own: one of the two is not right",
            key=STATE_KEY,
        )


def _no_repository(storage: Storage) -> Exception:
    """Say that there is none; or that the entry by which it is recognised was lost."""
    if storage.exists(branch_key(MAIN, 1)):
        key = branch_key(MAIN, 0)
        return CorruptFileError(
            f"{key} is missing, although a later entry is there. Restore it from a copy.", key=key
        )
    return RepositoryNotFoundError(
        f"there is no repository at {storage.url}; Repository.create makes one"
    )


def _state_alone(storage: Storage, limit_bytes: int) -> State:
    """Read the state file at a place without data."""
    try:
        return read_state(storage, limit_bytes)
    except RepositoryNotFoundError:
        raise _no_repository(storage) from None


def _data_of(
    state: State, storage: Storage, storage_options: Mapping[str, Any] | None, choices: Choices
) -> tuple[Storage, RefEntry | None]:
    """Find the data of the repository whose state file stands at a place apart from it."""
    root = state.store_root
    if root is None:
        return storage, None
    if not is_absolute(root):
        below = [part for part in root.split("/") if part != "."]
        root = "/".join([storage.url.rstrip("/"), *below])
    settings = choices.storage_settings
    within = lies_within(storage.url, root, settings)
    if not within and not VirtualAccess(choices.allowed, settings).allows_root(root):
        raise NotAuthorizedError(
            f"the state file at {storage.url} says that its data is at {root!r}, outside the place that "
            f"was opened. If you trust it, open it with authorize_virtual_chunk_access=[{root!r}], or "
            f"name both: Repository.open({root!r}, state_url={storage.url!r}).",
            location=root,
        )
    data = choices.open_storage(root, storage_options)
    return data, find_first_entry(data)


def repository_exists(
    url: Place, storage_options: Mapping[str, Any] | None, *, state_url: Place | None
) -> bool:
    """Whether there is a repository at a place, so that it can be opened with the same words."""
    storage = open_storage(url, storage_options)
    entry = find_first_entry(storage)
    if state_url is None and (entry is None or entry.catalog is not None):
        return storage.exists(STATE_KEY)
    if state_url is None or entry is None:
        return entry is not None
    return open_storage(_state_place(state_url), storage_options).exists(STATE_KEY)
