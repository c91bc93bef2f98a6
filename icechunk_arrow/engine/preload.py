"""Manifests that a session loads ahead, in the background, as its repository's settings say.

Owns the choice, which is a pure function, and the thread. Opening a session does not wait for it and does not
fail with it; what the first read needs meanwhile is fetched once for both.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import weakref
from typing import TYPE_CHECKING

from icechunk_arrow.storage.forked_children import run_in_forks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_arrow.core.manifest_settings import ManifestPreload
    from icechunk_arrow.core.snapshot import Snapshot
    from icechunk_arrow.engine.config import SavedConfig
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.files import Files

__all__ = ["choose", "start_preload"]

_log = logging.getLogger(__name__)
_FEW_PATHS = 256
"""So many paths are compared with plain expressions in less time than a thread takes to start."""
_PLAIN = re.compile(r"(\.\*)?[\w/ -]*")
_LAST_WAIT_SECONDS = 0.5

_is_over = threading.Event()
_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
run_in_forks(_running.clear)  # a child waits for no thread that it does not have


def choose(snapshot: Snapshot, preload: ManifestPreload) -> list[str]:
    """Choose manifests: in the order of the expressions, then of the paths, then of the extents."""
    chosen: dict[str, None] = {}
    counts: dict[str, int] | None = None
    paths = snapshot.paths
    for pattern in preload.patterns:
        for path, matches in zip(paths, pattern.matches_all(paths), strict=True):
            node = snapshot.find_node(path) if matches else None
            if node is None or not node.is_array:
                continue
            if counts is None:
                counts = snapshot.manifest_row_counts
            for name in node.inventories.names:
                if len(chosen) >= preload.max_manifests:
                    return list(chosen)
                if counts[name] <= preload.max_manifest_size:
                    chosen[name] = None
    return list(chosen)


def start_preload(context: Context, snapshot: Snapshot) -> threading.Thread | None:
    """Begin to load what the settings choose of a snapshot; None where there is nothing to do.

    The thread keeps neither the process nor the repository alive. Where the settings are not known yet, it fetches
    them: no reader waits for them, and none fails with them.
    """
    if _is_over.is_set():
        return None
    saved = context.saved_config
    known = saved.preload_if_known
    if known is not None and not _has_to_load(context.files, snapshot, known):
        return None
    thread = threading.Thread(
        target=_load,
        args=(weakref.ref(context.files), snapshot, saved),
        name="icechunk_arrow preload",
        daemon=True,
    )
    _running.add(thread)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads: reads will load what they need
        _log.debug("nothing is loaded ahead: %s", error)
        return None
    return thread


def _has_to_load(files: Files, snapshot: Snapshot, preload: ManifestPreload) -> bool:
    if not preload.max_manifests or not preload.max_manifest_size:
        return False
    return _may_choose(snapshot.paths, preload) and not _is_held(files, snapshot.id)


def _may_choose(paths: Sequence[str], preload: ManifestPreload) -> bool:
    """Whether an expression may match: certain where finding out costs nothing."""
    if len(paths) > _FEW_PATHS or any(_PLAIN.fullmatch(text) is None for text in preload.arrays):
        return bool(preload.arrays)
    return any(preload.selects(paths))


def _is_held(files: Files, snapshot_id: str) -> bool:
    """Whether all that was chosen of a snapshot before is still in the cache."""
    chosen: Sequence[str] | None = files.cache.find(("p", snapshot_id))
    return chosen is not None and all(map(files.holds_manifest, chosen))


def _load(reference: weakref.ref[Files], snapshot: Snapshot, saved: SavedConfig) -> None:
    """Load manifests one after the other, as long as the process has the repository open."""
    try:
        preload = saved.preload_if_known or saved.to_read().chunk_manifests.preload
        files = reference()
        if files is None or not _has_to_load(files, snapshot, preload):
            return
        files = None
        chosen = choose(snapshot, preload)
        files = reference()
        if files is not None:
            files.cache.get(("p", snapshot.id), lambda: (tuple(chosen), 500 + 80 * len(chosen)))
    except Exception as error:  # noqa: BLE001 -- no caller waits for this; a read will say what is wrong
        _log.debug("nothing of snapshot %s is loaded ahead: %s", snapshot.id, error)
        return
    finally:
        files = None
    for name in chosen:
        _load_manifest(reference, name)


def _load_manifest(reference: weakref.ref[Files], name: str) -> None:
    group = 0
    while not _is_over.is_set():
        files = reference()
        if files is None:
            return
        try:
            if group >= files.open_manifest(name).sealed.row_group_count:
                return
            files.read_rows(name, group)
        except Exception as error:  # noqa: BLE001
            _log.debug("manifest %s is not loaded ahead: %s", name, error)
            return
        group += 1


def _stop() -> None:
    """Let threads finish what they are at: one that decodes while Python ends would end it badly."""
    _is_over.set()
    for thread in list(_running):
        thread.join(_LAST_WAIT_SECONDS)


atexit.register(_stop)
