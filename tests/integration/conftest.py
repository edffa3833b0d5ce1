"""What the tests of this folder share is `tests/aws.py`, which the tests of Spark use too."""

from __future__ import annotations

from tests.aws import Aws, _connected, start_engine

__all__ = ["Aws", "_connected", "start_engine"]
