"""S3 credentials that botocore supports and `obstore` does not: shared profiles, SSO, assumed roles, processes.

Needs botocore (the extra `aws`). `obstore` itself finds keys in the environment, a web identity, and the roles of
instances and containers. `explain_missing_credentials` says what to do when neither finds any, also for GCS and Azure.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pcaplake.common.errors import Fatal

ASKED_AGAIN = timedelta(minutes=5)
"""botocore renews credentials 10 minutes before they expire, so they are valid for at least this time."""
_OWN = frozenset({"env", "iam-role", "container-role"})
_GIVEN = frozenset({"access_key_id", "skip_signature", "web_identity_token_file", "metadata_endpoint"})


_CLIENT_ARGUMENTS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
}


def botocore_client_arguments(options: Mapping[str, str]) -> dict[str, str]:
    """Arguments of `create_client` of botocore's sessions, from storage options in obstore's names."""
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    return {_CLIENT_ARGUMENTS[name]: value for name, value in given.items() if name in _CLIENT_ARGUMENTS}


class BotocoreCredentials:
    """A credential provider for obstore that returns botocore's current credentials. `region`: of the profile, if it has one."""

    def __init__(self, credentials: Any, region: str | None) -> None:
        self._credentials, self.region = credentials, region

    def __call__(self) -> dict[str, Any]:
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + ASKED_AGAIN,
        }

    def storage_options(self) -> dict[str, str]:
        """The current credentials as storage options of deltalake."""
        current = self()
        named = {
            "AWS_ACCESS_KEY_ID": current["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": current["secret_access_key"],
            "AWS_SESSION_TOKEN": current["token"],
            "AWS_REGION": self.region,
        }
        return {name: value for name, value in named.items() if value is not None}


def find_credential_provider(config: Mapping[str, str]) -> BotocoreCredentials | None:
    """A provider, or None if obstore's `config` has credentials or obstore finds them. Raises Fatal for a missing profile."""
    if _GIVEN & {name.removeprefix("aws_") for name in config}:
        return None
    try:
        from botocore.credentials import create_credential_resolver
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        return None
    session = Session(session_vars={"region": ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)})
    try:
        resolver = create_credential_resolver(session)
        for asks_the_network in ("iam-role", "container-role"):
            resolver.remove(asks_the_network)
        credentials = resolver.load_credentials()
        if credentials is None or credentials.method in _OWN or _is_environment_identity(session, credentials):
            return None
        return BotocoreCredentials(credentials, session.get_config_variable("region"))
    except BotoCoreError as error:
        raise Fatal(f"no credentials for S3: {error}; correct the profile, or name another with AWS_PROFILE") from error


def _is_environment_identity(session: Any, credentials: Any) -> bool:
    """Whether the credentials come from a web identity in the environment, not from a profile."""
    identity: bool = credentials.method == "assume-role-with-web-identity"
    return identity and "web_identity_token_file" not in session.get_scoped_config()


_METADATA_REQUEST = re.compile(r"/latest/(api/token|meta-data/)|/computeMetadata/v1/|/metadata/identity/oauth2/token")
"""What obstore asks the metadata service of a machine for a role, when it found no other credentials."""
_PAGE = "`pcaplake docs object-stores` has examples"
_AWS_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_AWS_PLAIN = f"{_AWS_KEYS}, or install the extra `aws`, which reads the profiles in ~/.aws: pip install 'pcaplake[aws]'"
_AWS_EXTRA = f"{_AWS_KEYS}, or AWS_PROFILE to a profile in ~/.aws"
_GOOGLE = (
    "set GOOGLE_APPLICATION_CREDENTIALS to a service account key file, or run `gcloud auth application-default login`"
)
_AZURE = "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or `az login` and pass --storage-option use_azure_cli=true"


def explain_missing_credentials(uri: str, error: BaseException) -> str | None:
    """What to do about `error` of obstore, if it says that there are no credentials for the store; None for other errors."""
    cause = str(error).partition("\n")[0]
    if not _METADATA_REQUEST.search(cause):
        return None
    aws = _AWS_EXTRA if importlib.util.find_spec("botocore") else _AWS_PLAIN
    to_do = {"s3": aws, "gs": _GOOGLE}.get(uri.partition("://")[0], _AZURE)
    return (
        f"{uri}: no credentials were found: {to_do}; {_PAGE}. A role of this machine was tried last: its metadata service "
        f"does not give one ({cause})"
    )
