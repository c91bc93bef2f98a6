"""Makes random histories: by writers that take turns in one process, and by real processes."""

from __future__ import annotations

import time
import traceback
from contextlib import contextmanager
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from icechunk_arrow import Repository, RepositoryConfig, StorageSettings
from icechunk_arrow.engine import compaction
from tests.conformance.history_machine import LAYOUTS
from tests.replay.checking import check
from tests.replay.model import source_bytes
from tests.replay.operations import set_up
from tests.replay.planted import plant
from tests.replay.writers import Place, Writer, work_on_fork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.replay.checking import Found
    from tests.replay.model import Operation

__all__ = ["by_processes", "in_turns"]

SECONDS = 600


def begin(folder: Path, seed: int, catalog: str, url: str | None = None, **options: Any) -> Place:
    """Make a repository in which everything is small, with a first commit."""
    (folder / "source").mkdir()
    (folder / "source" / "bytes").write_bytes(source_bytes(seed))
    place = Place(
        url=url or str(folder / "repository"), folder=str(folder), options=options, catalog=catalog
    )
    layouts = sorted(LAYOUTS)
    Repository.create(
        place.url,
        place.options,
        catalog=catalog,
        storage_settings=StorageSettings(durable=False),
        config=RepositoryConfig(
            inline_chunk_threshold_bytes=8,
            packed_chunk_threshold_bytes=200,
            chunk_file_size_bytes=4096,
            chunk_manifests=LAYOUTS[layouts[seed % len(layouts)]],
        ),
    )
    session = place.open().writable_session("main")
    note = {"name": "begin", "operations": set_up(session)}
    session.commit("begin", {"replay": note})
    (folder / "acknowledged-begin").write_text('"begin"\n')
    return place


def in_turns(
    folder: Path, seed: int, *, steps: int, catalog: str = "branches", writers: int = 3, **more: Any
) -> Found:
    """Have writers take turns in this process, as the seed says; the same each time."""
    place = begin(folder, seed, catalog, **more)
    taking = [Writer(place, seed, number).steps() for number in range(writers)]
    order = Random(f"{seed} in turns")
    copied: Any = compaction._copy
    inside: list[int] = []

    def turn() -> None:
        number = order.randrange(writers)
        if number in inside:
            return
        inside.append(number)
        try:
            next(taking[number])
        finally:
            inside.pop()

    def copy(*arguments: Any) -> Any:
        """Let others come while one copies."""
        made = copied(*arguments)
        for _ in range(order.randrange(12)):
            turn()
        return made

    patch = pytest.MonkeyPatch()
    patch.setattr(compaction, "_copy", copy)
    try:
        with _telling(seed, catalog):
            for _ in range(steps):
                turn()
            return check(place)
    finally:
        patch.undo()


@contextmanager
def _telling(seed: int, catalog: str) -> Iterator[None]:
    """Say in every error which seed it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}, catalog {catalog!r}")
        raise


# -- real processes


def by_processes(
    folder: Path,
    seed: int,
    *,
    catalog: str = "branches",
    seconds: float = 0.0,
    steps: int = 1 << 60,
    writers: int = 3,
    planted: str = "",
    url: str | None = None,
    **options: Any,
) -> Found:
    """Have processes of their own write, for so long or so many steps each, and another one write to forks."""
    place = begin(folder, seed, catalog, url, **options)
    context = get_context("spawn")
    sent, answers = context.Queue(), [context.Queue() for _ in range(writers)]
    ended = context.Queue()
    barrier = context.Barrier(writers)
    processes = [
        context.Process(
            target=_write,
            args=(
                place,
                seed,
                number,
                seconds,
                steps,
                planted,
                barrier,
                sent,
                answers[number],
                ended,
            ),
            daemon=True,
        )
        for number in range(writers)
    ]
    processes.append(context.Process(target=_serve, args=(sent, answers), daemon=True))
    with _telling(seed, catalog):
        try:
            for process in processes:
                process.start()
            failed = [
                found for _ in range(writers) if (found := ended.get(timeout=SECONDS + seconds))
            ]
        finally:
            for process in processes:
                process.kill()
                process.join()
        assert not failed, "\n".join(failed)
        return check(place)


def _write(
    place: Place,
    seed: int,
    number: int,
    seconds: float,
    steps: int,
    planted: str,
    barrier: Any,
    sent: Any,
    answers: Any,
    ended: Any,
) -> None:
    def elsewhere(data: bytes, operations: list[Operation], source: str) -> bytes:
        sent.put((number, data, operations, source))
        found: bytes | str = answers.get(timeout=SECONDS)
        if isinstance(found, str):
            raise RuntimeError(found)  # noqa: TRY004 -- it is the other process's traceback
        return found

    try:
        with plant(planted):
            taking = Writer(place, seed, number, elsewhere).steps()
            barrier.wait(SECONDS)
            end = time.monotonic() + (seconds or SECONDS)
            for _ in range(steps):
                next(taking)
                if time.monotonic() > end:
                    break
    except BaseException:
        ended.put(traceback.format_exc())
    else:
        ended.put("")


def _serve(sent: Any, answers: list[Any]) -> None:
    """Write to the forks that come, until somebody ends this process."""
    while True:
        number, data, operations, source = sent.get()
        try:
            answers[number].put(work_on_fork(data, operations, source))
        except BaseException:
            answers[number].put(traceback.format_exc())
