"""One client of one DynamoDB table, for the ledger and for the lock table of the log store.

It translates the errors of aiobotocore (the extra `aws`) into those of common/errors.py.

Requests are repeated here and not by botocore, because the outcome of a write follows from the results of all attempts.
A repeated write may fail its condition because the first attempt succeeded and only its answer was lost. So every write
must be safe to repeat, and a caller that gets `ConditionLost` or `Canceled` first looks in the item for its own mark
before it concludes that another process wrote it.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from tenacity import RetryCallState

from pcaplake.common import retry
from pcaplake.common.aws_requests import botocore_config
from pcaplake.common.batched import Batched
from pcaplake.common.errors import Fatal, NotAllowed, OutcomeUnknown, PcaplakeError, Retryable
from pcaplake.common.meter import SILENT, Meter

_READS = ("Get", "Query", "Scan", "BatchGet", "TransactGet", "Describe", "List")
_THROTTLED = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",  # another transaction uses the item: nothing happened
    }
)
_CREDENTIALS = (
    "give valid credentials in one of the ways that boto3 reads (environment, profile, role), and check the clock"
)
_ADVICE = {
    "AccessDeniedException": "allow it: `pcaplake setup --policies` prints the policies that pcaplake needs",
    "ExpiredTokenException": _CREDENTIALS,
    "IdempotentParameterMismatchException": "two requests have the same token: this is a bug in pcaplake, report it",
    "IncompleteSignatureException": _CREDENTIALS,
    "InvalidSignatureException": _CREDENTIALS,
    "MissingAuthenticationTokenException": _CREDENTIALS,
    "ResourceNotFoundException": "create the table with `pcaplake setup`, or name the right table, region and endpoint",
    "UnrecognizedClientException": _CREDENTIALS,
    "ValidationException": "the table differs from those that `pcaplake setup` creates, or this is a bug in pcaplake",
}


class ConditionLost(Exception):
    """The condition of a write did not hold. `item`: the existing item, {} when there is none or it was not requested."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__("the condition of a write did not hold")
        self.item = item


class Canceled(Exception):
    """A transaction was not carried out. `reasons`: for each of its actions DynamoDB's code and, if requested, the old item.

    Codes are "None" for an action that did not fail, "ConditionalCheckFailed", "TransactionConflict", ...
    """

    def __init__(self, reasons: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        super().__init__(f"transaction canceled: {', '.join(sorted({code for code, _ in reasons} - {'None'}))}")
        self.reasons = reasons


class DynamoClient:
    """A client of one table: `await DynamoClient.open(table)`. It belongs to the event loop in which it was opened."""

    def __init__(self, table: str, client: Any, stack: AsyncExitStack, *, meter: Meter = SILENT) -> None:
        self.table, self.meter = table, meter
        self.shared_reads: Batched[tuple[str, str], dict[str, Any]] | None = None
        """Reads that the ledgers of all lakes combine into one request: Requests.get_item_coalesced."""
        self._client, self._stack = client, stack

    @classmethod
    async def open(cls, table: str, *, region: str | None = None, meter: Meter = SILENT) -> Self:
        """A client; botocore finds region, endpoint and credentials. Sends no request yet.

        Raises Fatal without the extra `aws`, without a region, or for a profile or endpoint that botocore rejects.
        """
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from botocore.exceptions import BotoCoreError, NoRegionError
        except ImportError as error:
            raise Fatal("DynamoDB needs the extra `aws`: pip install 'pcaplake[aws]'") from error
        stack = AsyncExitStack()
        try:
            client = await stack.enter_async_context(
                get_session().create_client(
                    "dynamodb", region_name=region, config=AioConfig(**botocore_config(attempts=1))
                )
            )
            if not client.meta.region_name:  # with an endpoint, botocore accepts an empty variable as a region
                await stack.aclose()
                raise NoRegionError
        except (BotoCoreError, ValueError) as error:
            raise Fatal(
                f"cannot connect to the DynamoDB table {table}: {error} Set AWS_DEFAULT_REGION and, for another endpoint, "
                "AWS_ENDPOINT_URL_DYNAMODB"
            ) from error
        client.meta.events.register("before-parse.dynamodb", _check_response_complete)
        return cls(table, client, stack, meter=meter)

    @property
    def region(self) -> str:
        return str(self._client.meta.region_name)

    async def call_operation(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one request, by its name in the API, such as `PutItem`. Adds `TableName` if the operation has it. Raises

        Retryable        a read failed, or a write was refused temporarily and nothing happened
        OutcomeUnknown   a write failed and may have been carried out (as after CancelledError)
        ConditionLost, Canceled   the condition does not hold, perhaps because an earlier attempt of this call succeeded
        Fatal            no permission, no such table, no credentials, or an invalid request
        """
        shape = self._client.meta.service_model.operation_model(operation).input_shape
        if "TableName" in shape.members:
            arguments.setdefault("TableName", self.table)
        if "ClientRequestToken" in shape.members:  # DynamoDB carries out all attempts as one transaction
            arguments.setdefault("ClientRequestToken", uuid.uuid4().hex)
        unknown = False

        def note_failure(state: RetryCallState) -> None:
            nonlocal unknown
            assert state.outcome is not None
            unknown = unknown or isinstance(state.outcome.exception(), OutcomeUnknown)
            self.meter.count("request_failures", service="dynamodb", operation=operation)

        policy = retry.Policy(limit=retry.DYNAMODB_REQUEST, failed=note_failure)
        try:
            return await policy.run(partial(self._send_request, operation, arguments))
        except Retryable as error:
            raise OutcomeUnknown(str(error)) if unknown else error from error.__cause__

    async def _send_request(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from aiohttp import ClientError as HttpError
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        where = f"DynamoDB {operation} on {self.table}"
        self.meter.count("requests", service="dynamodb", operation=operation)
        try:
            answer: dict[str, Any] = await getattr(self._client, xform_name(operation))(**arguments)
        except ClientError as error:
            raise _error_of_response(where, operation, error.response) from error
        except (BotoCoreError, ResponseParserError, HttpError, OSError) as error:  # aiohttp's: a truncated response
            raise _error_without_response(where, operation, error) from error
        return answer

    async def close(self) -> None:
        await self._stack.aclose()


def _check_response_complete(response_dict: Mapping[str, Any], **_: object) -> None:
    """Reject a response with status 200 that is damaged or not JSON, such as a proxy's page: botocore accepts any."""
    body, checksum = response_dict["body"], response_dict["headers"].get("x-amz-crc32")
    damaged = checksum is not None and zlib.crc32(body) != int(checksum)
    if response_dict["status_code"] == 200 and (damaged or not body.startswith(b"{")):
        raise ConnectionError(f"not a response from DynamoDB: {body[:80]!r}")


def _temporary_error(operation: str, message: str) -> Retryable:
    return Retryable(message) if operation.startswith(_READS) else OutcomeUnknown(message)


def _error_of_response(where: str, operation: str, response: Mapping[str, Any]) -> Exception:
    """The exception for an error response."""
    code = response.get("Error", {}).get("Code", "")
    message = f"{where}: {code}: {response.get('Error', {}).get('Message', '')}"
    if code == "ConditionalCheckFailedException":
        return ConditionLost(from_attribute_values(response.get("Item", {})))
    if code == "TransactionCanceledException":
        reasons = response.get("CancellationReasons", ())
        return Canceled(
            [(reason.get("Code", "None"), from_attribute_values(reason.get("Item", {}))) for reason in reasons]
        )
    if code == "AccessDeniedException":
        return NotAllowed(where, f"{message.removeprefix(f'{where}: ')}: {_ADVICE[code]}")
    if code in _ADVICE:
        return Fatal(f"{message}: {_ADVICE[code]}")
    if code in _THROTTLED:
        return Retryable(message)
    return _temporary_error(operation, message)  # a server error, a transaction in progress, or an unknown code


def _error_without_response(where: str, operation: str, error: Exception) -> PcaplakeError:
    """The exception for a request without a response."""
    from botocore import exceptions as botocore

    message = f"{where}: {error}"
    if isinstance(error, botocore.NoCredentialsError | botocore.PartialCredentialsError | botocore.ProfileNotFound):
        return Fatal(f"{message}: {_CREDENTIALS}")
    if isinstance(error, botocore.CredentialRetrievalError | botocore.MetadataRetrievalError):
        return Retryable(message)  # it was never sent
    return _temporary_error(operation, message)


def to_attribute_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Python values as attribute values, without those that are None. Raises TypeError for a type that DynamoDB lacks."""
    return {name: _to_attribute_value(value) for name, value in values.items() if value is not None}


def from_attribute_values(item: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute values as Python values; a number without a fraction is an int. Raises ValueError for an unknown type."""
    return {name: _from_attribute_value(attribute) for name, attribute in item.items()}


def _to_attribute_value(value: object) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case Mapping():
            return {"M": to_attribute_values(value)}
        case list() | tuple():
            return {"L": [_to_attribute_value(element) for element in value]}
    raise TypeError(f"DynamoDB has no attribute type for {value!r}")


def _from_attribute_value(attribute: Mapping[str, Any]) -> Any:
    match attribute:
        case {"S": value} | {"BOOL": value} | {"B": value}:
            return value
        case {"N": number}:
            return float(number) if set(number) & set(".eE") else int(number)
        case {"NULL": _}:
            return None
        case {"M": members}:
            return from_attribute_values(members)
        case {"L": members}:
            return [_from_attribute_value(element) for element in members]
    raise ValueError(f"unknown attribute type: {attribute!r}")
