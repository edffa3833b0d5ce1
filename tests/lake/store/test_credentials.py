"""Whose credentials S3 is asked with: what obstore finds by itself is left to it, what only botocore finds is handed on."""

from __future__ import annotations

import importlib.util
import json
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures.objects import StoredObjects
from pcaplake.lake.store import credentials, object_store
from pcaplake.lake.store.credentials import find_credential_provider
from pcaplake.lake.store.store import Store

KEYS = {"aws_access_key_id": "AKIDPROFILE", "aws_secret_access_key": "s3cr3t"}


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that botocore reads; nothing is in the environment."""
    for name in (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE",
        "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


def written(file: Path, section: str, values: dict[str, str]) -> None:
    with file.open("a") as out:
        out.write(f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))


def test_a_shared_profile(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(profiles / "credentials", "drives", KEYS | {"aws_session_token": "t"})
    written(profiles / "config", "profile drives", {"region": "eu-central-1"})
    assert find_credential_provider({}) is None  # no profile of that name is asked for
    monkeypatch.setenv("AWS_PROFILE", "drives")
    found = find_credential_provider({})
    assert found is not None
    assert found.region == "eu-central-1"
    said = found()
    assert said.pop("expires_at") > datetime.now(UTC)
    assert said == {"access_key_id": "AKIDPROFILE", "secret_access_key": "s3cr3t", "token": "t"}
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert (again := find_credential_provider({})) is not None
    assert again.region == "eu-west-1"


def test_a_process_that_gives_credentials_is_asked_again_when_they_expire(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "count").write_text("0")
    program = profiles / "process"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib\n"
        f"count = pathlib.Path({str(profiles / 'count')!r})\n"
        "number = int(count.read_text()) + 1\n"
        "count.write_text(str(number))\n"
        "said = {'Version': 1, 'AccessKeyId': f'AKID{number}', 'SecretAccessKey': 's', 'SessionToken': 't'}\n"
        "print(json.dumps(said | {'Expiration': '2001-01-01T00:00:00Z' if number == 1 else '2999-01-01T00:00:00Z'}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    written(profiles / "config", "profile drives", {"credential_process": str(program)})
    monkeypatch.setenv("AWS_PROFILE", "drives")
    found = find_credential_provider({})
    assert found is not None
    assert [found()["access_key_id"] for _ in range(2)] == ["AKID2", "AKID2"]


@pytest.mark.parametrize("config", [{"access_key_id": "x"}, {"aws_access_key_id": "x"}, {"skip_signature": "true"}])
def test_what_is_said_in_options_is_all(config: dict[str, str], profiles: Path) -> None:
    written(profiles / "credentials", "default", KEYS)
    assert find_credential_provider({}) is not None
    assert find_credential_provider(config) is None


def test_the_environment_goes_first(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(profiles / "credentials", "default", KEYS)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert find_credential_provider({}) is None


def test_a_web_identity_in_the_environment_is_left_to_obstore(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (profiles / "token").write_text("token")
    identity = {"role_arn": "arn:aws:iam::123456789012:role/x", "web_identity_token_file": str(profiles / "token")}
    monkeypatch.setenv("AWS_ROLE_ARN", identity["role_arn"])
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", identity["web_identity_token_file"])
    assert find_credential_provider({}) is None
    monkeypatch.delenv("AWS_ROLE_ARN")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    written(profiles / "config", "default", identity)
    assert find_credential_provider({}) is not None


def test_a_profile_that_is_not_there(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Fatal, match="nobody"):
        Store.open("s3://bucket/lake")


def test_it_is_what_a_store_asks_with(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The region of the profile too, where no other is given; other stores know nothing of it."""
    written(profiles / "credentials", "default", KEYS)
    written(profiles / "config", "default", {"region": "eu-central-1"})
    opened: list[dict[str, Any]] = []

    def noted(uri: str, **given: Any) -> object:
        opened.append({"uri": uri, "config": dict(given["config"]), "provider": given.get("credential_provider")})
        return object()

    monkeypatch.setattr(object_store, "from_url", noted)
    for uri, options in (("s3a://b/x", {}), ("s3://b", {"AWS_REGION": "here"}), ("gs://b", {})):
        Store.open(uri, options)
    assert [one["config"] for one in opened] == [{"region": "eu-central-1"}, {"aws_region": "here"}, {}]
    assert [type(one["provider"]) for one in opened] == [
        credentials.BotocoreCredentials,
        credentials.BotocoreCredentials,
        type(None),
    ]
    assert opened[0]["provider"].storage_options() == {
        "AWS_ACCESS_KEY_ID": "AKIDPROFILE",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "AWS_REGION": "eu-central-1",
    }
    assert json.dumps(opened[0]["provider"](), default=str).count("AKIDPROFILE") == 1


NOBODY = "http://localhost:9"  # nothing listens there


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
async def test_without_credentials_the_error_says_what_to_do(
    plain: bool, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a plain install also which extra reads the profiles."""
    installed = importlib.util.find_spec
    if plain:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "botocore" else installed(name, *rest)
        )
    store = Store.open("s3://bucket/lake", {"metadata_endpoint": NOBODY, "region": "eu-central-1"})
    with pytest.raises(Fatal) as caught:
        await store.get("x")
    text = str(caught.value)
    assert text.startswith("s3://bucket/lake: no credentials were found: set AWS_ACCESS_KEY_ID and")
    assert ("pip install 'pcaplake[aws]'" in text, "AWS_PROFILE" in text) == (plain, not plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "variables", "options", "to_do"),
    [
        (
            "gs://bucket/lake",
            {"GCE_METADATA_HOST": NOBODY.removeprefix("http://")},
            {},
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            "az://bucket/lake",
            {"AZURE_STORAGE_ACCOUNT_NAME": "drives"},
            {"azure_msi_endpoint": f"{NOBODY}/metadata/identity/oauth2/token"},
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ],
)
async def test_without_credentials_for_other_stores(
    uri: str,
    variables: dict[str, str],
    options: dict[str, str],
    to_do: str,
    profiles: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(profiles))  # gcloud keeps credentials there
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Fatal, match=f"no credentials were found: .*{to_do}"):
        await Store.open(uri, options).get("x")


def test_an_azure_account_that_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Fatal, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        Store.open("az://bucket/lake")


@pytest.mark.slow
async def test_a_capture_of_a_store_without_credentials_can_be_read_later(profiles: Path) -> None:
    store = Store.open("s3://bucket", {"metadata_endpoint": NOBODY, "region": "eu-central-1"})
    assert isinstance(store, object_store.ObjectStore)
    objects = StoredObjects(store.uri, store.obstore_client)
    with pytest.raises(Retryable, match="no credentials were found: set AWS_ACCESS_KEY_ID"):
        await objects.head_object("x")


async def test_a_store_that_has_answered_is_asked_again_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service of a machine may fail for a while; a process that runs must outlast that."""
    store = object_store.ObjectStore("s3://bucket", MemoryStore(), None)

    async def fail(*_: object, **__: object) -> object:
        raise obstore.exceptions.GenericError(f"Error performing PUT {NOBODY}/latest/api/token in 5s")

    answer = obstore.get_async
    for get, error in ((fail, Fatal), (answer, None), (fail, Retryable)):
        monkeypatch.setattr(obstore, "get_async", get)
        if error is None:
            assert await store.get("x") is None
            continue
        with pytest.raises(error, match="no credentials were found"):
            await store.get("x")
