"""Imported once, before processes are copied: kernels, and what botocore reads of its services. Starts no thread."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path

import aiobotocore.session

from pcaplake.parser import Profile
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.ingest.pipeline import Reader
from pcaplake.worker.lake.config import LakeConfig
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.lake.store.store import Store
from tests.worker.fleets import can_capture


def _decode() -> None:
    """A capture as the tests have them, to files of a moment."""
    schemas = {name: spec.schema for name, spec in TABLES.items()}
    reader = Reader(profile=Profile.default(), decoder_version="warm", now=lambda: 0.0)
    body = can_capture(50)
    with tempfile.TemporaryDirectory(prefix="pcaplake-") as folder:
        window = Window(
            Store.open(Path(folder)), schemas, lake_config=LakeConfig(), generation=0, decoder_version="warm"
        )
        reader.read(io.BytesIO(body), Capture(capture_id="0" * 32, uri="", etag="", size=len(body)), window)
        window.close()


def _clients() -> None:
    """One session for all copies: it holds what was read of endpoints and services."""
    session = functools.cache(aiobotocore.session.get_session)
    aiobotocore.session.get_session = session
    loader = session().get_component("data_loader")
    for service in ("sqs", "dynamodb"):
        loader.load_service_model(service, "service-2", api_version=None)
        loader.load_service_model(service, "endpoint-rule-set-1", api_version=None)
    loader.load_data("endpoints")
    loader.load_data("partitions")


_decode()
_clients()
