"""Lists, creates and deletes the Jobs of one operator in its namespace.

`schedule.py` decides when a Job is due.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from .api import Cluster, Refused
from .plan import DUE, JOB, MANAGED, OPERATOR, US
from .schedule import Seen, State

log = logging.getLogger(__name__)


class Jobs(Protocol):
    """Methods raise Retryable if there is no answer or the Role does not allow the request (Forbidden)."""

    async def there(self) -> Sequence[Seen]: ...

    async def make(self, manifest: Mapping[str, Any]) -> bool:
        """False if a Job of this name exists. Refused if the manifest is not a valid Job."""
        ...

    async def delete(self, seen: Seen) -> None:
        """Deletes the Job and its pods. A Job that does not exist is not an error."""
        ...


class ClusterJobs:
    """`Jobs` through the API server."""

    def __init__(self, cluster: Cluster, *, namespace: str, operator: str) -> None:
        self._cluster, self._operator = cluster, operator
        self._path = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    async def there(self) -> Sequence[Seen]:
        labels = f"{MANAGED}={US},{OPERATOR}={self._operator}"
        answer = await self._cluster.ask("GET", self._path, query={"labelSelector": labels})
        return [seen for item in answer.get("items") or () if (seen := _seen(item)) is not None]

    async def make(self, manifest: Mapping[str, Any]) -> bool:
        try:
            await self._cluster.ask("POST", self._path, manifest, query={"fieldValidation": "Strict"})
        except Refused as error:
            if error.status == 409:
                return False
            raise
        return True

    async def delete(self, seen: Seen) -> None:
        body = {"propagationPolicy": "Background", "preconditions": {"uid": seen.uid}}
        try:
            await self._cluster.ask("DELETE", f"{self._path}/{seen.name}", body)
        except Refused as error:
            if error.status not in (404, 409):  # 409: another Job of that name
                raise


def _seen(item: Mapping[str, Any]) -> Seen | None:
    meta = item["metadata"]
    try:
        due = datetime.fromisoformat((meta.get("annotations") or {})[DUE])
        due.timestamp()
        if due.tzinfo is None:
            raise ValueError("no zone")
    except (KeyError, ValueError, OverflowError):
        log.warning("the Job %s has the operator's labels, but no due time: it is ignored", meta["name"])
        return None
    state: State = "active"
    why = ""
    for condition in (item.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            state = "succeeded" if condition["type"] == "Complete" else "failed"
            why = ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)
    return Seen(name=meta["name"], uid=meta["uid"], job=meta["labels"][JOB], due=due, state=state, why=why)
