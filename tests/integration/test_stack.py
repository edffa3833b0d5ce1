"""What pcaplake relies on, asked of the engine that the other tests use: a failure here explains theirs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from botocore.exceptions import ClientError

from .conftest import Aws

RACERS = 16


def test_one_of_many_creates_an_object(aws: Aws) -> None:
    s3, bucket, start = aws.client("s3"), aws.bucket(), Barrier(RACERS)

    def put(racer: int) -> str:
        start.wait()
        try:
            s3.put_object(Bucket=bucket, Key="N.json", Body=b"%d" % racer, IfNoneMatch="*")
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return f"racer {racer}"

    with ThreadPoolExecutor(RACERS) as threads:
        outcomes = list(threads.map(put, range(RACERS)))
    winner = b"racer " + s3.get_object(Bucket=bucket, Key="N.json")["Body"].read()
    assert sorted(set(outcomes)) == ["PreconditionFailed", winner.decode()]
    assert outcomes.count(winner.decode()) == 1
