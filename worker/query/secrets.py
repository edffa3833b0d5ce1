"""Options of an object store -> the secret with which DuckDB reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_PARAMETERS: Final = {
    "access_key_id": "KEY_ID",
    "secret_access_key": "SECRET",
    "session_token": "SESSION_TOKEN",
    "token": "SESSION_TOKEN",
    "region": "REGION",
    "default_region": "REGION",
}


def secret_statement(uri: str, options: Mapping[str, str]) -> str:
    """The SQL that creates the secret of an s3:// lake. Without keys in `options`, AWS's SDK finds the credentials."""
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    parameters = {_PARAMETERS[name]: value for name, value in given.items() if name in _PARAMETERS}
    endpoint = given.get("endpoint") or given.get("endpoint_url")
    if endpoint:
        address = urlsplit(endpoint)
        virtual = given.get("virtual_hosted_style_request", "false").lower() == "true"
        parameters |= {
            "ENDPOINT": f"{address.netloc}{address.path}".rstrip("/"),
            "USE_SSL": str(address.scheme == "https").lower(),
            "URL_STYLE": "vhost" if virtual else "path",
        }
    anonymous = given.get("skip_signature", "false").lower() == "true"
    provider = "config" if "KEY_ID" in parameters or anonymous else "credential_chain"
    stated = "".join(f", {name} '{_escaped(value)}'" for name, value in parameters.items())
    return f"CREATE OR REPLACE SECRET lake (TYPE s3, PROVIDER {provider}, SCOPE '{_escaped(uri)}'{stated})"


def _escaped(text: str) -> str:
    return text.replace("'", "''")
