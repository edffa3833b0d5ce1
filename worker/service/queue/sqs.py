"""The queue in SQS.

Knows aiobotocore (the extra `aws`) and translates responses of SQS to common/errors.py. Endpoint, region and credentials
are those that botocore finds. The URL of the queue is looked up by its name at every start.

Long polls have a client of their own, because they occupy their connections for 20 seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Self

from tenacity import retry_if_result

from pcaplake.common import retry
from pcaplake.common.aws_requests import CREDENTIAL_ERRORS, botocore_config
from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.meter import SILENT, Meter

from . import LONGEST_VISIBILITY, Attributes, BatchResult, Delivery, Queue

BATCH = 10
LONGEST_WAIT = 20
log = logging.getLogger(__name__)

_SENDS = 8  # batches sent at once
_WHILE_ENTRIES_FAIL = retry.Policy(limit=retry.SQS_ENTRIES, on=retry_if_result(lambda failed: failed is not None))
_THROTTLED = frozenset({"RequestThrottled", "Throttling", "ThrottlingException", "OverLimit", "KmsThrottled"})
_NO_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException"})


class SqsQueue(Queue):
    """`await SqsQueue.open(name)`; belongs to the event loop it was opened in."""

    def __init__(self, name: str, polls: Any, acts: Any, stack: AsyncExitStack, *, meter: Meter = SILENT) -> None:
        self.name, self._meter = name, meter
        self._polls, self._acts, self._stack = polls, acts, stack
        self._url = ""

    @classmethod
    async def open(
        cls, name: str, *, region: str | None = None, account: str | None = None, meter: Meter = SILENT
    ) -> Self:
        """The queue `name` of this account, or of another one (`account`: its 12 digits).

        Raises Fatal when the queue, the extra `aws`, a region, credentials or permission are missing.
        """
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise Fatal("SQS needs the extra `aws`: pip install 'pcaplake[aws]'") from error
        async with AsyncExitStack() as stack:
            session = get_session()
            try:
                polls, acts = [
                    await stack.enter_async_context(
                        session.create_client(
                            "sqs",
                            region_name=region,
                            config=AioConfig(
                                **botocore_config(attempts=retry.SQS_REQUEST.attempts, read_timeout=timeout)
                            ),
                        )
                    )
                    for timeout in (LONGEST_WAIT + 10, 10)
                ]
            except (BotoCoreError, ValueError) as error:
                raise Fatal(
                    f"the queue {name} cannot be opened: {error} Set AWS_REGION and, for another endpoint, "
                    "AWS_ENDPOINT_URL_SQS"
                ) from error
            queue = cls(name, polls, acts, stack, meter=meter)
            owner = {} if account is None else {"QueueOwnerAWSAccountId": account}
            with queue._translate_errors("GetQueueUrl"):
                queue._url = (await acts.get_queue_url(QueueName=name, **owner))["QueueUrl"]
            await queue.read_attributes()
            queue._stack = stack.pop_all()
        return queue

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        with self._translate_errors("ReceiveMessage"):
            answer = await self._polls.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=min(limit, BATCH),
                WaitTimeSeconds=min(math.ceil(wait), LONGEST_WAIT),
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            )
        return [_parse_delivery(message) for message in answer.get("Messages", ())]

    async def send(self, bodies: Sequence[str]) -> None:
        parts = [bodies[at : at + BATCH] for at in range(0, len(bodies), BATCH)]
        slots = asyncio.Semaphore(_SENDS)

        async def send_limited(part: Sequence[str]) -> str | None:
            async with slots:
                return await self._send_batch(part)

        ends = await asyncio.gather(*map(send_limited, parts), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        why = [end for end in ends if end]
        if why:
            raise Retryable(f"SQS SendMessageBatch on {self.name}: some messages were not sent: {why[0]}")

    async def delete(self, deliveries: Sequence[Delivery]) -> BatchResult:
        return await self._apply_in_batches("DeleteMessageBatch", self._acts.delete_message_batch, deliveries, {})

    async def change_visibility_timeout(self, deliveries: Sequence[Delivery], seconds: float) -> BatchResult:
        parameters = {"VisibilityTimeout": min(max(math.ceil(seconds), 0), LONGEST_VISIBILITY)}
        call = self._acts.change_message_visibility_batch
        return await self._apply_in_batches("ChangeMessageVisibilityBatch", call, deliveries, parameters)

    async def read_attributes(self) -> Attributes:
        counts = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        with self._translate_errors("GetQueueAttributes"):
            answer = await self._acts.get_queue_attributes(
                QueueUrl=self._url, AttributeNames=[*counts, "VisibilityTimeout"]
            )
        values: Mapping[str, str] = answer["Attributes"]
        self.visibility_timeout = float(values["VisibilityTimeout"])
        if self.visibility_timeout < 1:
            raise Fatal(
                f"the queue {self.name} has a visibility timeout of 0 s: its messages would be delivered again at once; "
                "set it to at least 60 s"
            )
        visible, in_flight, delayed = (int(values.get(name, 0)) for name in counts)
        return Attributes(visible=visible, in_flight=in_flight, delayed=delayed)

    async def close(self) -> None:
        await self._stack.aclose()

    # -- batches --------------------------------------------------------------------------------------------------
    async def _send_batch(self, bodies: Sequence[str]) -> str | None:
        """Send one batch, and what failed of it again, and return why some messages are not in the queue; None: all
        are.
        """
        left = dict(zip(map(str, range(BATCH)), bodies, strict=False))
        why = "the response does not list them as sent"

        async def send_remaining() -> str | None:
            nonlocal why
            entries = [{"Id": key, "MessageBody": body} for key, body in left.items()]
            with self._translate_errors("SendMessageBatch"):
                answer = await self._acts.send_message_batch(QueueUrl=self._url, Entries=entries)
            for entry in answer.get("Successful", ()):
                del left[entry["Id"]]
            why = next((_describe_failed_entry(entry) for entry in answer.get("Failed", ())), why)
            return why if left else None

        return await _WHILE_ENTRIES_FAIL.run(send_remaining)

    async def _apply_in_batches(
        self, operation: str, call: Callable[..., Any], deliveries: Sequence[Delivery], parameters: Mapping[str, Any]
    ) -> BatchResult:
        """All batches at once, as far as connections allow; each succeeds or fails by itself."""
        parts = [deliveries[at : at + BATCH] for at in range(0, len(deliveries), BATCH)]
        ends = await asyncio.gather(
            *(self._apply_batch(operation, call, part, parameters) for part in parts), return_exceptions=True
        )
        results = []
        for end in ends:
            if isinstance(end, BaseException):
                raise end
            results.append(end)
        return BatchResult(
            done=tuple(one for result in results for one in result.done),
            lost=tuple(one for result in results for one in result.lost),
            failed=tuple(one for result in results for one in result.failed),
        )

    async def _apply_batch(
        self, operation: str, call: Callable[..., Any], deliveries: Sequence[Delivery], parameters: Mapping[str, Any]
    ) -> BatchResult:
        done: list[Delivery] = []
        lost: list[Delivery] = []
        left = dict(zip(map(str, range(BATCH)), deliveries, strict=False))

        async def apply_to_remaining() -> Mapping[str, Delivery] | None:
            entries = [
                {"Id": key, "ReceiptHandle": delivery.receipt_handle, **parameters} for key, delivery in left.items()
            ]
            with self._translate_errors(operation):
                answer = await call(QueueUrl=self._url, Entries=entries)
            done.extend(left.pop(entry["Id"]) for entry in answer.get("Successful", ()))
            for entry in answer.get("Failed", ()):
                if _is_permanent_failure(entry):
                    log.info(
                        "%s: the receipt handle of message %s has expired: %s",
                        operation,
                        left[entry["Id"]].message_id,
                        _describe_failed_entry(entry),
                    )
                    lost.append(left.pop(entry["Id"]))
                else:
                    log.warning(
                        "%s of message %s failed: %s",
                        operation,
                        left[entry["Id"]].message_id,
                        _describe_failed_entry(entry),
                    )
            return left or None

        try:
            await _WHILE_ENTRIES_FAIL.run(apply_to_remaining)
        except Retryable as error:  # after the retries of botocore
            log.warning("cannot delete messages or extend their visibility timeout: %s", error)
        return BatchResult(done=tuple(done), lost=tuple(lost), failed=tuple(left.values()))

    @contextmanager
    def _translate_errors(self, operation: str) -> Iterator[None]:
        from aiohttp import ClientError as HttpError
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        where = f"SQS {operation} on {self.name}"
        self._meter.count("requests", service="sqs", operation=operation)
        try:
            yield
        # a response that breaks off is not an error of botocore
        except (ClientError, BotoCoreError, HttpError, OSError) as error:
            self._meter.count("request_failures", service="sqs", operation=operation)
            if isinstance(error, ClientError):
                raise _error_of_response(where, error.response) from error
            if isinstance(error, NoCredentialsError | PartialCredentialsError):
                raise Fatal(f"{where}: {error}; provide credentials in one of the ways that boto3 supports") from error
            raise Retryable(f"{where}: {error!r}") from error


def _parse_delivery(message: Mapping[str, Any]) -> Delivery:
    attributes = message["Attributes"]
    return Delivery(
        message_id=message["MessageId"],
        receipt_handle=message["ReceiptHandle"],
        receive_count=int(attributes["ApproximateReceiveCount"]),
        sent_at=int(attributes["SentTimestamp"]) / 1000,
        body=message["Body"],
    )


def _normalize_error_code(raw: Any) -> str:
    """Shortens `AWS.SimpleQueueService.NonExistentQueue` to `NonExistentQueue`."""
    return str(raw or "").rpartition(".")[2].rpartition("#")[2]


def _describe_failed_entry(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('Code')}: {entry.get('Message', '')}"


def _is_permanent_failure(entry: Mapping[str, Any]) -> bool:
    """The request itself is wrong: the receipt handle has expired, or the 12 hours have passed."""
    return bool(entry.get("SenderFault")) and _normalize_error_code(entry.get("Code")) not in _THROTTLED


def _error_of_response(where: str, response: Mapping[str, Any]) -> Exception:
    error_fields = response.get("Error", {})
    code = _normalize_error_code(error_fields.get("Code"))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = f"{where}: {code}: {error_fields.get('Message', '')}"
    if code in _THROTTLED or status >= 500:
        return Retryable(text)
    if code in _NO_QUEUE:
        return Fatal(f"{text} Create the queue with `pcaplake setup`, or correct its name, region or endpoint")
    if code in CREDENTIAL_ERRORS:
        return Fatal(f"{text} Provide valid credentials in one of the ways that boto3 supports, and check the clock")
    if status == 403 or code.startswith(("AccessDenied", "Kms")):
        return Fatal(f"{text} Permission is missing: `pcaplake setup --policies` prints the required policies")
    return Retryable(text)
