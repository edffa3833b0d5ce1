"""Imported once, before processes are copied: kernels, and what clients of AWS read when they are made. Starts no thread."""

from __future__ import annotations

import functools

import aiobotocore.session
import pytest

from tests.aws_clients import share_what_clients_read
from tests.worker import warmed

__all__ = ["warmed"]


def _clients() -> None:
    """One session for all copies: it holds what was read of endpoints and services."""
    share_what_clients_read(pytest.MonkeyPatch())  # for good
    session = functools.cache(aiobotocore.session.get_session)
    aiobotocore.session.get_session = session
    loader = session().get_component("data_loader")
    for service in ("sqs", "dynamodb"):
        loader.load_service_model(service, "service-2", api_version=None)
        loader.load_service_model(service, "endpoint-rule-set-1", api_version=None)
    loader.load_data("endpoints")
    loader.load_data("partitions")


_clients()
