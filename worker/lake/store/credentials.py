"""Credentials for S3 that botocore finds and `obstore` does not look for: shared profiles, SSO, roles, processes.

Knows botocore (the extra `aws`; without it there is nothing to find). What obstore finds by itself is left to it: keys
in the environment, a web identity, the roles of instances and containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pcaplake.worker.errors import Fatal

ASKED_AGAIN = timedelta(minutes=5)
"""botocore renews what expires 10 minutes before: what it said is good for so long."""
_OWN = frozenset({"env", "iam-role", "container-role"})
_GIVEN = frozenset({"access_key_id", "skip_signature", "web_identity_token_file", "metadata_endpoint"})


class BotocoreCredentials:
    """A credential provider of obstore's: what botocore says now. `region`: the one that goes with it, if any."""

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
        """What botocore says now, as storage options of deltalake."""
        current = self()
        named = {
            "AWS_ACCESS_KEY_ID": current["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": current["secret_access_key"],
            "AWS_SESSION_TOKEN": current["token"],
            "AWS_REGION": self.region,
        }
        return {name: value for name, value in named.items() if value is not None}


def find_credential_provider(config: Mapping[str, str]) -> BotocoreCredentials | None:
    """None: `config` (obstore's) says itself who we are, or obstore finds it. Fatal for a profile that is not there."""
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
        raise Fatal(f"no credentials for S3: {error}; mend the profile, or name another with AWS_PROFILE") from error


def _is_environment_identity(session: Any, credentials: Any) -> bool:
    """A web identity that no profile speaks of."""
    identity: bool = credentials.method == "assume-role-with-web-identity"
    return identity and "web_identity_token_file" not in session.get_scoped_config()
