"""boto3 clients of one account, and what its services answer, in worker/errors.py.

Endpoints and credentials are what botocore finds; those of S3 may also be given as the storage options of the lakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import Fatal, NotAllowed, Retryable

_CONFIG: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "retries": {"mode": "standard", "total_max_attempts": 5},
}
_OPTIONS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
}
_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class Clients:
    """Made when they are first used. `region` None: as botocore finds it; `options`: of S3, as obstore takes them."""

    def __init__(self, *, region: str | None = None, options: Mapping[str, str] | None = None) -> None:
        self._region = region
        given = {name.lower().removeprefix("aws_"): value for name, value in (options or {}).items()}
        self._s3 = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
        self._made: dict[str, Any] = {}

    @property
    def s3(self) -> Any:
        return self._client("s3", **self._s3)

    @property
    def sqs(self) -> Any:
        return self._client("sqs")

    @property
    def dynamodb(self) -> Any:
        return self._client("dynamodb")

    @property
    def sts(self) -> Any:
        return self._client("sts")

    @property
    def region(self) -> str:
        return str(self.sqs.meta.region_name)

    def _client(self, service: str, **given: Any) -> Any:
        if service not in self._made:
            self._made[service] = _open(service, {"region_name": self._region, **given})
        return self._made[service]

    def close(self) -> None:
        for client in self._made.values():
            client.close()
        self._made.clear()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open(service: str, given: Mapping[str, Any]) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise Fatal("this command needs the extra `aws`: pip install 'pcaplake[aws]'") from error
    try:
        session = boto3.Session()
        client = session.client(service, config=Config(**_CONFIG), **given)
        if service == "s3" and ".amazonaws." not in client.meta.endpoint_url:
            client.close()  # behind other addresses a bucket is seldom a host of its own
            client = session.client(service, config=Config(s3={"addressing_style": "path"}, **_CONFIG), **given)
    except (BotoCoreError, ValueError) as error:
        why = str(error).rstrip(".")
        raise Fatal(f"no client for {service}: {why}. Set AWS_REGION, AWS_ENDPOINT_URL and credentials") from error
    return client


def code(error: Any) -> str:
    """Of a ClientError: `AWS.SimpleQueueService.NonExistentQueue` and `NonExistentQueue` are one."""
    said = str(error.response.get("Error", {}).get("Code", ""))
    return said.rpartition(".")[2].rpartition("#")[2]


@contextmanager
def errors(where: str) -> Iterator[None]:
    """Everything that a client raises, as Retryable or Fatal; the message begins with `where`."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _refused(where, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Fatal(f"{where}: {error}; give credentials in one of the ways that boto3 reads") from error
    except (BotoCoreError, ResponseParserError, OSError) as error:
        raise Retryable(f"{where}: {error}") from error


def _refused(where: str, error: Any) -> Exception:
    name, status = code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    why = f"{name}: {error.response.get('Error', {}).get('Message', '').rstrip('.')}"
    text = f"{where}: {why}"
    if "Throttl" in name or name in ("SlowDown", "OperationAborted", "LimitExceededException") or status >= 500:
        return Retryable(f"{text}; run it again")
    if name == "NoSuchBucket":
        return Fatal(f"{text}. Make the bucket first, or name the right bucket, region and endpoint")
    if name in _CREDENTIALS:
        return Fatal(f"{text}. Give valid credentials in one of the ways that boto3 reads, and check the clock")
    if status == 403 or name.startswith("AccessDenied"):
        return NotAllowed(
            where, f"{why}. It must be allowed to who runs this: docs/setup.md says what each command needs"
        )
    return Fatal(text)
