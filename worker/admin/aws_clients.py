"""boto3 clients of one account. Errors of its services become the errors of common/errors.py.

botocore finds endpoints and credentials; for S3 the storage options of the lakes can also set them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pcaplake.common.aws_requests import CREDENTIAL_ERRORS
from pcaplake.common.errors import Fatal, NotAllowed, Retryable
from pcaplake.common.retry import ADMIN_REQUEST
from pcaplake.lake.store.credentials import botocore_client_arguments

_CONFIG: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "retries": {"mode": "standard", "total_max_attempts": ADMIN_REQUEST.attempts},
}


class Clients:
    """Clients are created when first used. Without `region`, botocore finds it. `options` are for S3, in obstore's names."""

    def __init__(self, *, region: str | None = None, options: Mapping[str, str] | None = None) -> None:
        self._region = region
        self._s3 = botocore_client_arguments(options or {})
        self._made: dict[str, Any] = {}

    @property
    def s3(self) -> Any:
        return self._get_client("s3", **self._s3)

    @property
    def sqs(self) -> Any:
        return self._get_client("sqs")

    @property
    def dynamodb(self) -> Any:
        return self._get_client("dynamodb")

    @property
    def sts(self) -> Any:
        return self._get_client("sts")

    @property
    def region_name(self) -> str:
        return str(self.sqs.meta.region_name)

    def _get_client(self, service: str, **given: Any) -> Any:
        if service not in self._made:
            self._made[service] = _create_client(service, {"region_name": self._region, **given})
        return self._made[service]

    def close(self) -> None:
        for client in self._made.values():
            client.close()
        self._made.clear()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _create_client(service: str, client_arguments: Mapping[str, Any]) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise Fatal("this command needs the extra `aws`: pip install 'pcaplake[aws]'") from error
    try:
        session = boto3.Session()
        client = session.client(service, config=Config(**_CONFIG), **client_arguments)
        if service == "s3" and ".amazonaws." not in client.meta.endpoint_url:
            client.close()  # other endpoints rarely support virtual-hosted buckets
            client = session.client(
                service, config=Config(s3={"addressing_style": "path"}, **_CONFIG), **client_arguments
            )
    except (BotoCoreError, ValueError) as error:
        why = str(error).rstrip(".")
        raise Fatal(
            f"cannot create a client for {service}: {why}. Set AWS_REGION, AWS_ENDPOINT_URL and credentials"
        ) from error
    return client


def error_code(error: Any) -> str:
    """The code of a ClientError without its prefix: `AWS.SimpleQueueService.NonExistentQueue` becomes `NonExistentQueue`."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code.rpartition(".")[2].rpartition("#")[2]


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Turn exceptions of a client into Retryable or Fatal. The message starts with `where`."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _translate_client_error(where, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Fatal(f"{where}: {error}; provide credentials in one of the ways that boto3 supports") from error
    except (BotoCoreError, ResponseParserError, OSError) as error:
        raise Retryable(f"{where}: {error}") from error


def _translate_client_error(where: str, error: Any) -> Exception:
    name, status = error_code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    why = f"{name}: {error.response.get('Error', {}).get('Message', '').rstrip('.')}"
    text = f"{where}: {why}"
    if "Throttl" in name or name in ("SlowDown", "OperationAborted", "LimitExceededException") or status >= 500:
        return Retryable(f"{text}; run this again")
    if name == "NoSuchBucket":
        return Fatal(f"{text}. Create the bucket first, or correct the bucket, region or endpoint")
    if name in CREDENTIAL_ERRORS:
        return Fatal(f"{text}. Provide valid credentials in one of the ways that boto3 supports, and check the clock")
    if status == 403 or name.startswith("AccessDenied"):
        return NotAllowed(
            where,
            f"{why}. Allow it for the role that runs this command: `pcaplake docs permissions` lists what each role may do",
        )
    return Fatal(text)
