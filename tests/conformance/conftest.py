"""What conformance tests share: places for repositories, and coroutines as tests.

Owns where the repositories of these tests lie. zarr's suite is asynchronous; a hook of ten lines runs
its tests, so no plugin is needed.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from typing import TYPE_CHECKING

import pytest
from zarr import config
from zarr.core import codec_pipeline

from tests.conformance.places import Place

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from icechunk_arrow import Session


PIPELINES = ["BatchedCodecPipeline"]
if hasattr(codec_pipeline, "FusedCodecPipeline"):
    PIPELINES.append("FusedCodecPipeline")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function as a test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True, specname="pytest_pyfunc_call")
def no_test_skips_itself(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn a skip from within a test into a failure: zarr's suite skips what a store lacks."""
    try:
        return (yield)
    except pytest.skip.Exception as skipped:
        raise AssertionError(f"{pyfuncitem.name} skipped itself: {skipped.msg}") from skipped


@pytest.fixture
def memory() -> Place:
    """A place in memory."""
    return Place(url=f"memory://{secrets.token_hex(8)}")


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind where a repository can be."""
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return Place(url=request.getfixturevalue("s3_url"), options=server.storage_options)
    if request.param == "local":
        return Place(url=str(tmp_path / "repository"))
    return Place(url=f"memory://{secrets.token_hex(8)}")


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each codec pipeline that the installed zarr has."""
    path = f"zarr.core.codec_pipeline.{request.param}"
    with config.set({"codec_pipeline.path": path}):
        yield request.param


@pytest.fixture(params=["committed", "uncommitted"])
def committed(request: pytest.FixtureRequest) -> bool:
    """Whether a commit, and opening anew, comes before everything is read."""
    return bool(request.param == "committed")


@pytest.fixture
def session(memory: Place) -> Session:
    """A session in memory, of a repository where a few bytes stand in files already."""
    memory.create(inline_chunk_threshold_bytes=16, packed_chunk_threshold_bytes=2000)
    return memory.session()
