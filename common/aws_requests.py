"""What requests to SQS and DynamoDB have in common: how botocore makes them, and how AWS refuses credentials."""

from __future__ import annotations

from typing import Any

from pcaplake.common import VERSION

CREDENTIAL_ERRORS = frozenset(  # error codes: the credentials are not valid, or the clock is wrong
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


def botocore_config(*, attempts: int, read_timeout: float = 10) -> dict[str, Any]:
    """The arguments of botocore's `Config` for a client that makes many short requests. `read_timeout` in seconds."""
    return {
        "connect_timeout": 2,
        "read_timeout": read_timeout,
        "max_pool_connections": 32,
        "tcp_keepalive": True,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        # of the CPU time of a request, botocore's own text takes 8 %, built each time, and its checks of parameters 5 %
        # and more; the service checks them, too
        "user_agent": f"pcaplake/{VERSION}",
        "parameter_validation": False,
    }
