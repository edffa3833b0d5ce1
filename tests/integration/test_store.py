"""The suite of every store on the S3 of the tests."""

from __future__ import annotations

import pytest

from pcaplake.worker.lake.store.store import Store
from tests.aws import Aws
from tests.worker.lake.store.store_suite import StoreSuite


@pytest.fixture
def store(aws: Aws) -> Store:
    bucket = aws.bucket()
    return Store.open(f"s3://{bucket}/lake", {"aws_endpoint": aws.s3, "allow_http": "true", "aws_region": aws.region})


class TestStore(StoreSuite):
    """Over S3."""
