"""Adds the fleet's rules to the notification configuration of a bucket, and keeps all other rules. Makes no requests.

S3 sends an event to one receiver: it refuses two rules whose events, prefixes and suffixes overlap. Several receivers of
the same events must share them through an SNS topic or EventBridge. Nothing is removed here, because another setup may rely
on it; a capture without a route costs only a message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pcaplake.common.errors import Fatal
from pcaplake.worker.config.s3_prefixes import Place, remove_covered_places

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
    """Sends events of keys with this prefix and suffix to `receiver`, an ARN."""

    id: str
    receiver: str
    events: frozenset[str]
    prefix: str
    suffix: str

    def overlaps(self, prefix: str) -> bool:
        """True if S3 would refuse a rule of ours for `prefix` because of this one."""
        created = any(event.startswith(EVENTS.removesuffix("*")) for event in self.events)
        return created and (self.prefix.startswith(prefix) or prefix.startswith(self.prefix))

    def serves(self, queue: str) -> bool:
        """True if the rule sends every created object below its prefix to this queue."""
        return same_queue(self.receiver, queue) and EVENTS in self.events and not self.suffix


def same_queue(receiver: str, queue: str) -> bool:
    """True if this is the queue's ARN. A queue that does not exist yet has no account in its ARN; then any account matches."""
    if receiver == queue:
        return True
    (_, _, service, region, account, name), theirs = queue.split(":", 5), receiver.split(":", 5)
    return not account and [*theirs[2:4], *theirs[5:]] == [service, region, name]


def rules(configuration: Mapping[str, Any]) -> Iterator[Rule]:
    """The rules in the answer of GetBucketNotificationConfiguration, without EventBridge, which conflicts with no rule."""
    for kind, receiver in _RECEIVERS.items():
        for raw in configuration.get(kind, ()):
            filters = raw.get("Filter", {}).get("Key", {}).get("FilterRules", ())
            by_name = {condition["Name"].lower(): condition["Value"] for condition in filters}
            yield Rule(
                id=raw.get("Id", ""),
                receiver=raw[receiver],
                events=frozenset(raw["Events"]),
                prefix=by_name.get("prefix", ""),
                suffix=by_name.get("suffix", ""),
            )


def filter_of(prefix: str) -> str:
    """A prefix for a filter of S3. It ends before the first character that needs encoding; the routes ignore captures
    that this adds."""
    match = _PLAIN.match(prefix)
    assert match is not None
    return match[0]


def merged(
    bucket: str, configuration: Mapping[str, Any], queue: str, prefixes: Collection[str]
) -> dict[str, Any] | None:
    """The configuration that sends all created objects below the prefixes to `queue`, an ARN; None if nothing must change.

    If the queue does not exist yet, its ARN has no account, and the result is only for display.

    Raises Fatal if S3 would refuse the configuration, because another receiver gets these events.
    """
    existing = list(rules(configuration))
    mine = {rule.id: rule for rule in existing if rule.id.startswith(_MARK) and rule.serves(queue)}
    others = [rule for rule in existing if rule.id not in mine]
    needed = {filter_of(prefix) for prefix in prefixes}
    needed -= {prefix for prefix in needed for rule in others if rule.serves(queue) and prefix.startswith(rule.prefix)}
    had = {rule.prefix for rule in mine.values()}
    wanted = {
        place.prefix for place in remove_covered_places(Place(bucket=bucket, prefix=prefix) for prefix in had | needed)
    }
    if wanted == had:
        return None
    for prefix in sorted(wanted):
        if clash := next((rule for rule in others if rule.overlaps(prefix)), None):
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
        f"An earlier `pcaplake setup` created that rule, for the queue {clash.receiver.rpartition(':')[2]}: if no fleet "
        "still reads that queue, remove it from the bucket's notifications and run this again. If one does: "
        if clash.id.startswith(_MARK)
        else ""
    )
    return (
        f"the bucket {bucket} sends {', '.join(sorted(clash.events))} of {which} to {clash.receiver} (rule "
        f"{clash.id!r}), and S3 sends an event to only one receiver: it would refuse a rule for keys {prefix!r}... {earlier}"
        "Change that rule to an SNS topic with both as subscribers, or use EventBridge, and run this with "
        "--no-notifications (`pcaplake docs setup` explains how); or give the routes another prefix"
    )
