"""The table of all metrics: names, units, labels and meanings.

docs/metrics.md is generated from it. Code that records metrics uses the port in common/meter.py and the keys of this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
_STEPS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAGS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 21_600.0)
_AGES = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
_SIZES = tuple(float(1 << bits) for bits in range(16, 35, 2))
_FILES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


Label = str | Mapping[str, str]
"""The values of a label: each value with a note (may be empty), or a description if they come from the settings, the lake
or the code. Nothing that a message or a capture says is a value, because each one would be a series for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric that Prometheus scrapes, under `name`.

    `of` and `pick`: the histogram whose smallest or largest value this gauge holds. `created_with`: a counter with the same
    labels; when one of its series is created, the same series of this counter is created with the value 0.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    of: str | None = None
    pick: Callable[[float, float], float] = max
    created_with: str | None = None


def _counter_metric(name: str, help: str, *, created_with: str | None = None, **labels: Label) -> Metric:
    return Metric(name=name, kind="counter", help=help, labels=labels, created_with=created_with)


def _gauge_metric(name: str, help: str, **labels: Label) -> Metric:
    return Metric(name=name, kind="gauge", help=help, labels=labels)


def _histogram_metric(name: str, buckets: tuple[float, ...], help: str, **labels: Label) -> Metric:
    return Metric(name=name, kind="histogram", help=help, labels=labels, buckets=buckets)


def _extreme_gauge_metric(name: str, of: str, pick: Callable[[float, float], float], help: str) -> Metric:
    return Metric(name=name, kind="gauge", help=help, of=of, pick=pick)


OTHER_EVENT = "other"  # names of events come from messages, so a new one must not become a label
_IGNORED = (  # "Supported event types" and "EventBridge event message structure" of the S3 user guide
    *("ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated", "ObjectRestore:Post", "ObjectRestore:Completed"),
    *("ObjectRestore:Delete", "ReducedRedundancyLostObject", "LifecycleExpiration:Delete", "LifecycleTransition"),
    *("LifecycleExpiration:DeleteMarkerCreated", "IntelligentTiering", "ObjectTagging:Put", "ObjectTagging:Delete"),
    *("ObjectAcl:Put", "Replication:OperationFailedReplication", "Replication:OperationNotTracked"),
    *("Replication:OperationMissedThreshold", "Replication:OperationReplicatedAfterThreshold"),
    *("Object Deleted", "Object Restore Initiated", "Object Restore Completed", "Object Restore Expired"),
    *("Object Storage Class Changed", "Object Access Tier Changed", "Object ACL Updated", "Object Tags Added"),
    *("Object Tags Deleted", "s3:TestEvent", "folder marker"),
)
_TABLE = "table of the lake"
_LAKE = "URI of the lake"
_FAULTS = (  # as in the column `reason` of `faults`; a test compares them with the parser's
    *("short_header", "bad_length", "overrun", "bad_value", "too_deep", "bad_time", "dropped"),
    *("truncated", "unreadable", "broken_compression", "too_many_interfaces", "too_many_dates", "too_much_repeated"),
    *("gap", "bad_checksum", "too_long", "too_many_rows", "too_many_ports"),
)

METRICS: Mapping[str, Metric] = {
    # messages
    "messages": _counter_metric(
        "pcaplake_messages_total",
        "Messages received from the queue, by outcome.",
        outcome={
            "deleted": "all its captures are staged",
            "delete_failed": "the message may be delivered again, and finds its captures staged",
            "released": "its visibility timeout was ended early, so it is delivered again",
            "unreadable": "not an event notification",
            "receipt_expired": "it is visible to other workers again",
        },
    ),
    "notifications_ignored": _counter_metric(
        "pcaplake_notifications_ignored_total",
        "Notifications that do not announce a capture.",
        kind={
            **dict.fromkeys(_IGNORED, ""),
            "no route": "the object matches no route",
            OTHER_EVENT: "an event of another name",
        },
    ),
    "heartbeats": _counter_metric(
        "pcaplake_heartbeats_total",
        "Attempts to extend the visibility timeout of a message.",
        outcome={"extended": "", "receipt_expired": "the receipt handle has expired", "failed": "tried again"},
    ),
    "messages_in_flight": _gauge_metric(
        "pcaplake_messages_in_flight", "Messages that this process has received and neither deleted nor released."
    ),
    "queue_messages": _gauge_metric(
        "pcaplake_queue_messages",
        "Approximate number of messages in the queue. Only the leader of the first lake in the routes reports it.",
        state="visible, in_flight, delayed",
    ),
    "queue_oldest_message_age_seconds": _gauge_metric(
        "pcaplake_queue_oldest_message_age_seconds",
        "Age of the oldest message that this process received in the last 5 s. 0 when the queue was empty; unchanged while "
        "the process does not poll.",
    ),
    # captures
    "returned_captures_unreadable": _counter_metric(
        "pcaplake_returned_captures_unreadable_total",
        "Messages of returned captures whose rows the lake lacks and that cannot be read again. They become dead letters.",
        reason={"no route": "no route leads to that lake", "gone": "the object was deleted"},
    ),
    "captures": _counter_metric(
        "pcaplake_captures_total",
        "Captures that are done, by outcome.",
        outcome={
            "staged": "",
            "quarantined": "not a capture file; staged as a row of `quarantine`",
            "already_staged": "",
            "gone": "the object was deleted or replaced",
        },
    ),
    "bytes_read": _counter_metric("pcaplake_read_bytes_total", "Bytes of captures that were read and staged."),
    "rows": _counter_metric("pcaplake_rows_total", "Rows that were staged.", table=_TABLE),
    "faults": _counter_metric(
        "pcaplake_faults_total",
        "Damaged packets and regions of captures, by the column `reason` of the table `faults`.",
        kind=dict.fromkeys(_FAULTS, ""),
    ),
    "quarantined": _counter_metric("pcaplake_quarantined_total", "Captures that were staged as rows of `quarantine`."),
    "bytes_in_flight": _gauge_metric("pcaplake_in_flight_bytes", "Memory that is reserved for captures in progress."),
    "fetch_retries": _counter_metric("pcaplake_fetch_retries_total", "Ranged reads of captures that were retried."),
    "lag_seconds": _histogram_metric(
        "pcaplake_lag_seconds", _LAGS, "Time from the upload of a capture (event time) until its rows can be queried."
    ),
    "step_seconds": _histogram_metric(
        "pcaplake_step_seconds",
        _STEPS,
        "Duration of one step.",
        step={
            "fetch": "",
            "decode": "",
            "stage": "",
            "recover": "this and the following are steps of the committer, see `pcaplake docs exactly-once`",
            **dict.fromkeys(("compose", "manifest", "mark", "commit", "flag", "advance"), ""),
        },
    ),
    # stages
    "stages": _counter_metric("pcaplake_stages_total", "Stages that were written."),
    "files_created": _counter_metric("pcaplake_files_created_total", "Parquet files that were written.", table=_TABLE),
    "bytes_written": _counter_metric(
        "pcaplake_written_bytes_total", "Bytes of Parquet that were written.", table=_TABLE
    ),
    "stage_bytes": _histogram_metric("pcaplake_stage_bytes", _SIZES, "Bytes of Parquet in one stage."),
    "stage_smallest_bytes": _extreme_gauge_metric(
        "pcaplake_stage_smallest_bytes", "stage_bytes", min, "Bytes of the smallest stage since the process started."
    ),
    "stage_largest_bytes": _extreme_gauge_metric(
        "pcaplake_stage_largest_bytes", "stage_bytes", max, "Bytes of the largest stage since the process started."
    ),
    # batches and commits
    "leader": _gauge_metric(
        "pcaplake_leader", "1 if this process is the lake's leader and commits its stages, else 0.", lake=_LAKE
    ),
    "oldest_pending_stage_age_seconds": _gauge_metric(
        "pcaplake_oldest_pending_stage_age_seconds",
        "How long the oldest pending stage has waited for a batch, as the leader sees it; 0 when no stage is pending.",
        lake=_LAKE,
    ),
    "batches_open": _gauge_metric(
        "pcaplake_batches_open", "Batches that are not yet committed to every table.", lake=_LAKE
    ),
    "tables_blocked": _gauge_metric(
        "pcaplake_tables_blocked",
        "Tables that cannot be written until an operator acts; the log says what to do.",
        lake=_LAKE,
    ),
    "stages_held": _gauge_metric(
        "pcaplake_stages_held",
        "Held stages: they cannot be committed until an operator acts; the log says why.",
        lake=_LAKE,
    ),
    "captures_returned": _counter_metric(
        "pcaplake_captures_returned_total", "Captures that are read again because files of their stage are gone."
    ),
    "captures_removed": _counter_metric(
        "pcaplake_captures_removed_total",
        "Older contents of objects whose rows were removed (setting `changed_captures`).",
    ),
    "upkeep_failures": _counter_metric(
        "pcaplake_upkeep_failures_total",
        "Attempts of the leader to finish swaps of rows or to remove older contents that failed and are repeated.",
    ),
    "committer_failures": _counter_metric(
        "pcaplake_committer_failures_total", "Attempts of the committer that failed and were repeated."
    ),
    "batch_bytes": _histogram_metric("pcaplake_batch_bytes", _SIZES, "Bytes of Parquet in one batch."),
    "batch_smallest_bytes": _extreme_gauge_metric(
        "pcaplake_batch_smallest_bytes", "batch_bytes", min, "Bytes of the smallest batch since the process started."
    ),
    "batch_largest_bytes": _extreme_gauge_metric(
        "pcaplake_batch_largest_bytes", "batch_bytes", max, "Bytes of the largest batch since the process started."
    ),
    "stage_age_seconds": _histogram_metric(
        "pcaplake_stage_age_seconds", _AGES, "Age of a stage when it becomes part of a batch, by the store's clock."
    ),
    "commits": _counter_metric(
        "pcaplake_commits_total",
        "Delta commits.",
        table=_TABLE,
        outcome={"committed": "", "already_committed": "the table's `txn` had the transaction already"},
    ),
    "commit_files": _histogram_metric("pcaplake_commit_files", _FILES, "Files added by one Delta commit."),
    "commit_failures": _counter_metric(
        "pcaplake_commit_failures_total",
        "Delta commits that failed after all retries.",
        table=_TABLE,
        reason={
            "TableBlocked": "the table cannot be written until an operator acts",
            "SchemaConflict": "the files do not fit the table's schema",
            "InvalidFile": "a file that no reader could use",
            "FilesMissing": "files of a stage are gone",
            "RowsLost": "another program removed rows from the table",
            "RolledBack": "the table was dropped or restored to an older version, or a checkpoint lost its `txn`",
            "OutcomeUnknown": "the commit may have happened; the next attempt finds out",
            "Hidden": "a checkpoint hides whether the commit happened",
            "Retryable": "timed out",
            "Fatal": "",
        },
    ),
    "log_retries": _counter_metric(
        "pcaplake_log_retries_total", "Reads of a Delta log and commits to it that were retried.", table=_TABLE
    ),
    "commit_conflicts": _counter_metric(
        "pcaplake_commit_conflicts_total",
        "Commits that lost their version to another writer and tried the next one.",
        table=_TABLE,
    ),
    "commit_outcomes_resolved": _counter_metric(
        "pcaplake_commit_outcomes_resolved_total",
        "Commits whose answer was lost and whose outcome was then read from the Delta log.",
        table=_TABLE,
    ),
    "log_versions_completed": _counter_metric(
        "pcaplake_log_versions_completed_total",
        "Versions that another writer left incomplete in the lock table and that this process completed.",
        table=_TABLE,
    ),
    "checkpoints": _counter_metric(
        "pcaplake_checkpoints_total",
        "Delta checkpoints, each followed by a clean-up of the log.",
        table=_TABLE,
        outcome={"created": "", "failed": ""},
    ),
    # services
    "requests": _counter_metric(
        "pcaplake_requests_total",
        "Requests to services. Retries inside a client library are not counted.",
        service="dynamodb, sqs, objects (captures and the lake)",
        operation="as the service names it; for objects: get, head, list, put, delete, upload",
    ),
    "request_failures": _counter_metric(
        "pcaplake_request_failures_total",
        "Requests that got no answer or an error that may be retried.",
        created_with="requests",
        service="as above",
        operation="as above",
    ),
    "ledger_retries": _counter_metric(
        "pcaplake_ledger_retries_total",
        "Requests to the ledger that were retried: it was busy, it did not answer, or a transaction conflicted.",
    ),
    # Kubernetes
    "deletion_cost_updates": _counter_metric(
        "pcaplake_deletion_cost_updates_total",
        "Attempts to write the pod's deletion cost (setting `deletion_cost`).",
        outcome={"written": "", "failed": "tried again later"},
    ),
    "operator_leader": _gauge_metric(
        "pcaplake_operator_leader", "1 if this `pcaplake operator` is the leader, else 0."
    ),
    "operator_jobs": _counter_metric(
        "pcaplake_operator_jobs_total",
        "Jobs of `pcaplake operator`.",
        job="the job's name in the plan",
        outcome={
            **dict.fromkeys(("launched", "succeeded", "failed"), ""),
            "overlap": "skipped because the previous Job still ran",
            "refused": "the template is not valid",
        },
    ),
    # this process
    "event_loop_delay_seconds": _gauge_metric(
        "pcaplake_event_loop_delay_seconds", "Longest delay of the event loop in the last 30 s."
    ),
}
