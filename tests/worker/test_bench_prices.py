"""The price of captures, computed by hand for a few requests."""

from __future__ import annotations

import pytest

from bench.fleet_prices import Prices, price_captures


@pytest.mark.slow
def test_each_service_has_its_price() -> None:
    prices = Prices(
        core_hour=3600.0,
        million_s3_writes=5e6,
        million_s3_reads=4e6,
        million_sqs_requests=3e6,
        million_units_written=2e6,
        million_units_read=1e6,
    )
    operations = {
        "S3 PutObject": 2,
        "S3 GetObject of captures": 10,
        "S3 HeadObject": 1,
        "SQS ReceiveMessage": 7,
        "DynamoDB TransactWriteItems": 99,  # billed by what it writes, not by its number
        "DynamoDB PutItem": 3,
        "DynamoDB Query": 5,
    }
    spent = price_captures(operations, captures=10, stages=1, core_seconds=2.0, prices=prices)
    assert spent == pytest.approx(
        {"CPU": 2.0, "S3": 2 * 5 + 11 * 4, "SQS": 7 * 3, "DynamoDB": (10 * 4 + 16 + 3) * 2 + (10 * 3 + 5)}
    )
