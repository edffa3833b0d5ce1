"""Credentials in values would stand in the pods' own objects, for everybody who may read these: the chart refuses them."""

from __future__ import annotations

import importlib.resources
import re
from typing import Any

import helm_python
import pytest

from .rendered import case, manifests, with_values

SECRETS = {
    *("access_key_id", "secret_access_key", "session_token"),
    *("account_key", "client_secret", "encryption_key", "fabric_session_token", "sas_key"),
    *("bearer_token", "service_account_key", "token"),
}
"""Options of obstore that are a credential, by the names that its types have."""
HARMLESS = {
    "access_key", "sas_token", "expires_at",  # of what a credential provider gives, no options of a store
}  # fmt: skip
OTHER_NAMES = (
    *("AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "aws_session_token", "aws_token", "aws_sse_customer_key_base64"),
    *("azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key", "azure_storage_sas_token"),
    *("azure_client_secret", "google_service_account_key", "password", "Proxy-Password", "connection_string"),
    *("azure_storage_connection_string", "credential"),
)
VALUES = {
    "endpoint": "https://somebody:secret@store.example.com",
    "proxy_url": "http://somebody:secret@proxy:3128",
    "azure_endpoint": "https://a.blob.core.windows.net/c?sv=2024&sig=c2VjcmV0",
    "other": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=c2VjcmV0",
}
TAKEN = {
    "region": "eu-central-1",
    "endpoint": "https://store.example.com:9000/path@x",
    "allow_http": "true",
    "aws_virtual_hosted_style_request": "true",
    "timeout": "60s",
    "skip_signature": "true",
    "sse_kms_key_id": "arn:aws:kms:eu-central-1:123456789012:key/1",
    "aws_sse_bucket_key_enabled": "true",
    "web_identity_token_file": "/var/run/secrets/token",
    "container_credentials_full_uri": "https://credentials.internal/v1",
    "application_credentials": "/var/run/key.json",
    "google_service_account": "/var/run/key.json",
    "azure_tenant_id": "t",
    "account_name": "sasquatch",
    "proxy_url": "http://proxy:3128",
}


def refused(**values: Any) -> str:
    with pytest.raises(helm_python.HelmError) as raised:
        manifests(with_values(**values))
    return str(raised.value)


def options_of_obstore() -> set[str]:
    folder = importlib.resources.files("obstore") / "_store"
    text = "\n".join((folder / f"_{name}.pyi").read_text() for name in ("aws", "azure", "gcs", "client"))
    return set(re.findall(r"^    ([a-z_]+): ", text, re.M))


def test_every_option_that_is_a_credential_is_refused_and_no_other() -> None:
    known = options_of_obstore()
    assert known >= SECRETS
    for name in SECRETS:
        said = refused(settings__storage_option={name: "hunter2"})
        assert f"settings.storage_option: {name} " in said
        assert "hunter2" not in said
    assert manifests(with_values(settings__storage_option=dict.fromkeys(known - SECRETS - HARMLESS, "x")))


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_however_it_is_spelled(name: str) -> None:
    assert f"settings.storage_option: {name} " in refused(settings__storage_option={name: "hunter2"})


@pytest.mark.parametrize(
    "given",
    [
        ["allow_http=true", "secret_access_key=hunter2"],
        "allow_http=true, secret_access_key=hunter2=",
        '{"endpoint": "http://a.example/?x=1", "secret_access_key": "hunter2"}',
        '["endpoint=http://a", "secret_access_key=hunter2"]',
    ],
)
def test_however_pairs_are_written(given: Any) -> None:
    """All that `parse_pairs` of worker/config/settings.py takes."""
    said = refused(settings__storage_option=given)
    assert "settings.storage_option: secret_access_key " in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_carries_one(name: str) -> None:
    said = refused(settings__storage_option={name: VALUES[name]})
    assert f"settings.storage_option: {name} " in said
    assert "secret@" not in said
    assert "c2VjcmV0" not in said


def test_the_message_says_where_it_belongs() -> None:
    said = refused(settings__storage_option={"secret_access_key": "x"})
    for part in ("Secret", "extraEnvFrom", "PCAPLAKE_STORAGE_OPTION", "serviceAccounts"):
        assert part in said, part


def test_harmless_options_are_taken() -> None:
    for given in (TAKEN, [f"{name}={value}" for name, value in TAKEN.items()]):
        assert manifests(with_values(settings__storage_option=given))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "hunter2"),
        ("PCAPLAKE_STORAGE_OPTION", "allow_http=true,secret_access_key=hunter2"),
        ("PCAPLAKE_STORAGE_OPTION", '{"sas_token": "hunter2"}'),
    ],
)
def test_nor_may_a_variable_have_it_in_plain_text(name: str, value: str) -> None:
    said = refused(extraEnv=[{"name": name, "value": value}])
    assert f"extraEnv: {name} " in said
    assert "hunter2" not in said


@pytest.mark.slow
def test_a_variable_may_come_from_a_secret() -> None:
    reference = {"secretKeyRef": {"name": "store", "key": "secret"}}
    for one in (
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": reference},
        {"name": "PCAPLAKE_STORAGE_OPTION", "valueFrom": reference},
        {"name": "PCAPLAKE_STORAGE_OPTION", "value": "allow_http=true"},
        {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/token"},
        {"name": "PARTITION_KEY", "value": "not of a store"},
    ):
        assert manifests({**case("minimal"), "extraEnv": [one]})
