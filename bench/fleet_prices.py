"""What captures cost at list prices: computed from counted requests, stages and CPU.

The prices are public list prices of AWS, region us-east-1, Linux, without free tiers and discounts, as of 2026-11. They change:
`Prices` has all of them. The formulas of the ledger's units are explained in docs/benchmarks-fleet.md, "Your bill".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# units of DynamoDB
CAPTURE_WRITES = 4  # staged and committed, each in a transaction
CAPTURE_READS = 3  # whether it is known, and its stage
ADDS_KB = 2  # compressed size of the Adds of a stage with few tables
STAGE_WRITES = 6 * ADDS_KB + 4  # created, marked and emptied; its entry in the work list
TIMED_READS = ("DynamoDB Query", "DynamoDB GetItem")
TIMED_WRITES = ("DynamoDB PutItem",)
S3_WRITES = (
    "S3 PutObject",
    "S3 CreateMultipartUpload",
    "S3 UploadPart",
    "S3 CompleteMultipartUpload",
    "S3 ListObjectsV2",
)
S3_READS = ("S3 GetObject", "S3 GetObject of captures", "S3 HeadObject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars."""

    core_hour: float = 0.0408  # m7g: half of an m7g.large
    million_s3_writes: float = 5.00
    million_s3_reads: float = 0.40
    million_sqs_requests: float = 0.40
    million_units_written: float = 0.625
    million_units_read: float = 0.125


def price_captures(
    operations: Mapping[str, int], *, captures: int, stages: int, core_seconds: float, prices: Prices | None = None
) -> dict[str, float]:
    """US dollars of these captures, by service. `operations`: requests by service and operation."""
    prices = prices or Prices()

    def sum_of(*names: str) -> int:
        return sum(operations.get(name, 0) for name in names)

    written = captures * CAPTURE_WRITES + stages * STAGE_WRITES + sum_of(*TIMED_WRITES)
    read = captures * CAPTURE_READS + sum_of(*TIMED_READS)
    queue = sum(count for name, count in operations.items() if name.startswith("SQS "))
    return {
        "CPU": core_seconds / 3600 * prices.core_hour,
        "S3": (sum_of(*S3_WRITES) * prices.million_s3_writes + sum_of(*S3_READS) * prices.million_s3_reads) / 1e6,
        "SQS": queue * prices.million_sqs_requests / 1e6,
        "DynamoDB": (written * prices.million_units_written + read * prices.million_units_read) / 1e6,
    }
