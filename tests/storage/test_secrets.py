"""Nothing that is pickled, shown or logged holds a secret, unless the person asks for it."""

from __future__ import annotations

import base64
import logging
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icechunk_arrow import Repository
from icechunk_arrow.engine.virtual import VirtualAccess
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.options import IngestOptions
from icechunk_arrow.storage.open import open_storage
from icechunk_arrow.storage.secrets import Entrusted, hidden, pickled_options, without_password
from icechunk_arrow.storage.settings import StorageSettings
from icechunk_arrow.storage.source_files import SourceFiles
from tests.places import written
from tests.storage.fake_s3 import Fault, fake_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.storage.fake_s3 import FakeS3

SECRET = "wJalrXUtnFEMI/K7MDENG"
IN_URL = SECRET.replace("/", "%2F")
OTHERS = {"endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "us-east-1"}}
QUICK = StorageSettings(retry_tries=2, retry_backoff_seconds=0.01, timeout_seconds=5)
AMBIENT = [
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """A bucket, and no credentials in the environment."""
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    with fake_s3() as state:
        yield state


@pytest.fixture
def options(server: FakeS3) -> dict[str, Any]:
    """What a person gives who has a key."""
    return {**server.storage_options, "key": "AKIAIOSFODNN7EXAMPLE", "secret": SECRET}


@pytest.mark.parametrize(
    ("url", "given", "left_out"),
    [
        (
            "s3://b/p",
            {"key": "k", "secret": SECRET, "token": SECRET, **OTHERS},
            ["key", "secret", "token"],
        ),
        ("s3a://b/p", {"username": "u", "password": SECRET}, ["username", "password"]),
        (
            "s3://b/p",
            {"client_kwargs": {"aws_secret_access_key": SECRET, "region_name": "r"}},
            ["client_kwargs.aws_secret_access_key"],
        ),
        ("gs://b/p", {"token": {"private_key": SECRET}, "project": "p"}, ["token"]),
        ("gs://b/p", {"token": "google_default"}, []),
        ("az://b/p", {"account_key": SECRET, "account_name": "a"}, ["account_key"]),
        (
            "abfs://b/p",
            {"connection_string": SECRET, "sas_token": SECRET},
            ["connection_string", "sas_token"],
        ),
        ("https://h/p", {"headers": {"User-Agent": "me"}}, []),
    ],
)
def test_what_can_be_found_again_is_left_out(
    url: str, given: dict[str, Any], left_out: list[str]
) -> None:
    """Keys of object stores are not in the pickle, all other options are."""
    plain, names = pickled_options(url, given, keep=False)

    assert list(names) == left_out
    assert SECRET not in repr(plain)
    kept = [name for name in given if name not in left_out]
    assert list(plain) == kept
    assert plain.get("client_kwargs", {}).get("region_name") == given.get("client_kwargs", {}).get(
        "region_name"
    )
    assert pickled_options(url, given, keep=True) == (given, ())


@pytest.mark.parametrize(
    ("url", "given", "name"),
    [
        (
            "https://h/p",
            {"headers": {"Authorization": f"Bearer {SECRET}"}},
            "headers.Authorization",
        ),
        (
            "https://h/p",
            {"client_kwargs": {"headers": {"X-Api-Key": SECRET}}},
            "client_kwargs.headers",
        ),
        ("https://h/p", {"client_kwargs": {"cookies": {"id": SECRET}}}, "client_kwargs.cookies"),
        ("https://h/p", {"token": SECRET}, "token"),
        ("s3://b/p", {"something_new": SECRET}, "something_new"),
        ("s3://b/p", {"s3_additional_kwargs": {"SSECustomerKey": SECRET}}, "SSECustomerKey"),
        ("s3://b/p", {"config_kwargs": {"proxies": {"https": f"http://u:{SECRET}@p"}}}, "proxies"),
        ("s3://b/p", {"endpoint_url": f"http://u:{IN_URL}@h"}, "endpoint_url"),
        ("sftp://h/p", {"password": SECRET}, "password"),
    ],
)
def test_what_nobody_could_find_again_is_not_pickled_silently(
    url: str, given: dict[str, Any], name: str
) -> None:
    """Whatever is not known to be harmless is refused by name, and the message says how to hand it over."""
    with pytest.raises(InvalidInputError, match="pickle_secrets=True") as raised:
        pickled_options(url, given, keep=False)

    assert name in str(raised.value)
    assert SECRET not in str(raised.value)


def test_pickles_of_everything_that_is_opened(options: dict[str, Any]) -> None:
    """Repository, session, store and fork leave secrets out; errors say what is missing and what to do."""
    repo = Repository.create("s3://bucket/r", options)
    written(repo)
    fork = repo.writable_session("main").fork()
    session = repo.readonly_session("main")
    for each in (repo, session, session.store, fork):
        data = pickle.dumps(each)
        assert SECRET.encode() not in data
        assert b"AKIAIOSFODNN7EXAMPLE" not in data
        with pytest.raises(IcechunkArrowError) as raised:
            pickle.loads(data).list_branches()
        assert "key, secret" in str(raised.value)
        assert "pickle_secrets=True" in str(raised.value)


def test_secrets_are_found_in_the_environment(
    options: dict[str, Any], server: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that is opened where the environment has credentials works with those."""
    repo = Repository.create("s3://bucket/r", options)
    written(repo)
    data = pickle.dumps(repo.readonly_session("main"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    server.authorizations.clear()
    session = pickle.loads(data)

    assert (np.asarray(zarr.open_array(session.store, path="a", mode="r")[...]) == 1).all()
    assert server.authorizations
    assert all("AKIAOTHER" in each for each in server.authorizations)


def test_secrets_stay_where_the_person_asks_for_it(options: dict[str, Any]) -> None:
    """With ``pickle_secrets`` a copy works, and a copy of the copy."""
    written(Repository.create("s3://bucket/r", options))
    allowed = {"s3://bucket/data": options}
    repo = Repository.open(
        "s3://bucket/r", options, authorize_virtual_chunk_access=allowed, pickle_secrets=True
    )
    session = repo.readonly_session("main")
    for _ in range(2):
        session = pickle.loads(pickle.dumps(session))
        assert (np.asarray(zarr.open_array(session.store, path="a", mode="r")[...]) == 1).all()


def test_tasks_of_a_cluster_get_what_they_need(options: dict[str, Any]) -> None:
    """What is handed to tasks holds secrets once; what a task pickles itself does not."""
    repo = Repository.create("s3://bucket/r", options)
    written(repo)
    sent = pickle.loads(pickle.dumps(Entrusted(repo.readonly_session("main")))).value

    assert (np.asarray(zarr.open_array(sent.store, path="a", mode="r")[...]) == 1).all()
    assert SECRET.encode() not in pickle.dumps(sent)


def test_options_of_allowed_prefixes_are_secrets_too(options: dict[str, Any]) -> None:
    """Credentials for other people's files are left out of pickles, or refused, as those of the repository are."""
    access = VirtualAccess({"s3://other/data": options, "file:///data": None}, QUICK)
    data = pickle.dumps(access)
    assert SECRET.encode() not in data
    assert pickle.loads(data).prefixes == access.prefixes
    secret = VirtualAccess({"https://h/d": {"headers": {"Cookie": SECRET}}}, QUICK)
    with pytest.raises(InvalidInputError, match=r"headers\.Cookie"):
        pickle.dumps(secret)
    with pytest.raises(InvalidInputError, match="password") as raised:
        VirtualAccess([f"https://u:{IN_URL}@h/data"], QUICK)
    assert IN_URL not in str(raised.value)


def test_a_password_in_a_url_is_used_and_never_shown(
    server: FakeS3, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent as web clients do; neither address, name, error, log nor pickle has it."""
    caplog.set_level(logging.DEBUG)
    server.objects["p/k"] = b"digits"
    url = server.endpoint.replace("://", f"://me:{IN_URL}@") + "/bucket/p"
    storage = open_storage(url, settings=QUICK)

    assert storage.get("k") == b"digits"
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert server.authorizations == [f"Basic {basic}"]
    server.faults.extend([Fault(status=503), Fault(status=503)])
    with pytest.raises(IcechunkArrowError) as raised:
        storage.get("k")
    with pytest.raises(InvalidInputError) as refused:
        pickle.dumps(storage)
    shown = [storage.url, repr(storage), str(raised.value), str(refused.value), caplog.text]
    assert "again in" in caplog.text
    assert not [text for text in shown if SECRET in text or "%2F" in text or basic in text]
    with pytest.raises(InvalidInputError) as chained:
        open_storage(f"simplecache::{url}")
    assert "%2F" not in str(chained.value)


def test_texts_of_libraries_hide_what_was_given() -> None:
    """Values of secret options and passwords in URLs are stars in every message."""
    options = {
        "key": "AKIAIOSFODNN7EXAMPLE",
        "secret": SECRET,
        "headers": {"Authorization": f"B {SECRET}x"},
    }
    text = f"AKIAIOSFODNN7EXAMPLE signed with {SECRET}, sent 'B {SECRET}x' to ftp://u:p@h/x and s3://b/a@c"

    shown = "*** signed with ***, sent 'B ***x' to ftp://***@h/x and s3://b/a@c"
    assert hidden(text, options) == shown
    assert without_password("abfs://container@account.dfs.core.windows.net/x")[1] == {}
    assert without_password("ftp://u:p%40@h/x") == (
        "ftp://h/x",
        {"username": "u", "password": "p@"},
    )


def test_representations_hide_options() -> None:
    """Values that carry options do not show them."""
    options = {"secret": SECRET}
    for each in (
        SourceFiles(options),
        IngestOptions(source_options=options, storage_options=options),
    ):
        assert SECRET not in repr(each)
