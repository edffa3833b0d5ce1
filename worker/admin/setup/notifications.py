"""What a bucket announces, and to whom: ours is added, everybody else's is kept. Knows S3's rules; asks nobody.

S3 sends one event to one receiver: it refuses two rules whose events, prefixes and suffixes overlap. Who else wants the
same events must share them, behind an SNS topic or by EventBridge. Nothing is ever taken away here: another setup may
rely on it, and what nobody routes costs a message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Fatal
from .places import Place, smallest

EVENTS = "s3:ObjectCreated:*"
_MARK = "pcaplake-"
_RECEIVERS = {
    "TopicConfigurations": "TopicArn",
    "QueueConfigurations": "QueueArn",
    "LambdaFunctionConfigurations": "LambdaFunctionArn",
}
_PLAIN = re.compile(r"[A-Za-z0-9!_.'()/-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Events of keys with this prefix and suffix go to `receiver`, an ARN."""

    id: str
    receiver: str
    events: frozenset[str]
    prefix: str
    suffix: str

    def overlaps(self, prefix: str) -> bool:
        """Would S3 refuse this one beside ours for `prefix`?"""
        created = any(event.startswith(EVENTS.removesuffix("*")) for event in self.events)
        return created and (self.prefix.startswith(prefix) or prefix.startswith(self.prefix))

    def serves(self, queue: str) -> bool:
        """Does it send every creation below its prefix to this queue?"""
        return same_queue(self.receiver, queue) and EVENTS in self.events and not self.suffix


def same_queue(receiver: str, queue: str) -> bool:
    """Is this ARN the queue's? One without an account is of a queue that is not there yet: any account's may be it."""
    if receiver == queue:
        return True
    (_, _, service, region, account, name), theirs = queue.split(":", 5), receiver.split(":", 5)
    return not account and [*theirs[2:4], *theirs[5:]] == [service, region, name]


def rules(configuration: Mapping[str, Any]) -> Iterator[Rule]:
    """What GetBucketNotificationConfiguration says, without EventBridge, which is in nobody's way."""
    for kind, receiver in _RECEIVERS.items():
        for raw in configuration.get(kind, ()):
            filters = raw.get("Filter", {}).get("Key", {}).get("FilterRules", ())
            by_name = {one["Name"].lower(): one["Value"] for one in filters}
            yield Rule(
                id=raw.get("Id", ""),
                receiver=raw[receiver],
                events=frozenset(raw["Events"]),
                prefix=by_name.get("prefix", ""),
                suffix=by_name.get("suffix", ""),
            )


def filter_of(prefix: str) -> str:
    """A prefix as S3's filters take it. Where a character would have to be encoded it ends before that one: the routes
    sort out what comes too much."""
    found = _PLAIN.match(prefix)
    assert found is not None
    return found[0]


def merged(
    bucket: str, configuration: Mapping[str, Any], queue: str, prefixes: Collection[str]
) -> dict[str, Any] | None:
    """The configuration with every creation below the prefixes sent to `queue`, an ARN; None: it is so already.

    While there is no such queue its ARN has no account, and what this makes is only to be looked at.

    Fatal when S3 would refuse it: somebody else gets these events.
    """
    there = list(rules(configuration))
    mine = {one.id: one for one in there if one.id.startswith(_MARK) and one.serves(queue)}
    others = [one for one in there if one.id not in mine]
    needed = {filter_of(prefix) for prefix in prefixes}
    needed -= {prefix for prefix in needed for one in others if one.serves(queue) and prefix.startswith(one.prefix)}
    had = {one.prefix for one in mine.values()}
    wanted = {place.prefix for place in smallest(Place(bucket=bucket, prefix=prefix) for prefix in had | needed)}
    if wanted == had:
        return None
    for prefix in sorted(wanted):
        if clash := next((one for one in others if one.overlaps(prefix)), None):
            raise Fatal(_refusal(bucket, prefix, clash))
    kept = [raw for raw in configuration.get("QueueConfigurations", ()) if raw.get("Id") not in mine]
    ours = [_raw(queue, prefix) for prefix in sorted(wanted)]
    return {**configuration, "QueueConfigurations": [*kept, *ours]}


def _raw(queue: str, prefix: str) -> dict[str, Any]:
    digest = hashlib.blake2b(f"{queue}\0{prefix}".encode(), digest_size=8).hexdigest()
    raw: dict[str, Any] = {"Id": f"{_MARK}{digest}", "QueueArn": queue, "Events": [EVENTS]}
    if prefix:
        raw["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}}
    return raw


def _refusal(bucket: str, prefix: str, clash: Rule) -> str:
    which = "all keys" if not clash.prefix and not clash.suffix else f"keys {clash.prefix!r}...{clash.suffix!r}"
    earlier = (
        f"An earlier `pcaplake setup` made that rule, for the queue {clash.receiver.rpartition(':')[2]}: if no fleet "
        "reads that queue any more, remove it from the bucket's notifications and run this again. If one does: "
        if clash.id.startswith(_MARK)
        else ""
    )
    return (
        f"the bucket {bucket} sends {', '.join(sorted(clash.events))} of {which} to {clash.receiver} (rule "
        f"{clash.id!r}), and S3 sends one event to one receiver: it would refuse ours for keys {prefix!r}... {earlier}"
        "Let that rule go to an SNS topic that both subscribe to, or use EventBridge, and run this with "
        "--no-notifications (docs/setup.md says how); or give the routes another prefix"
    )
