"""The promises of the store's port on the engine of the tests: what tests/worker/lake/store/test_store.py asks of every store."""

from __future__ import annotations

import pytest

from pcaplake.worker.lake.store.store import Store
from tests.aws import Aws
from tests.worker.lake.store.test_store import (
    test_absent_is_none_and_ranges_end_with_the_object,
    test_an_object_is_made_once,
    test_of_many_that_make_one_object_one_wins,
    test_of_many_that_replace_one_content_one_wins,
    test_replace_only_what_was_seen,
)

__all__ = [
    "test_absent_is_none_and_ranges_end_with_the_object",
    "test_an_object_is_made_once",
    "test_of_many_that_make_one_object_one_wins",
    "test_of_many_that_replace_one_content_one_wins",
    "test_replace_only_what_was_seen",
]


@pytest.fixture
def store(aws: Aws) -> Store:
    bucket = aws.bucket()
    return Store.open(f"s3://{bucket}/lake", {"aws_endpoint": aws.s3, "allow_http": "true", "aws_region": aws.region})
