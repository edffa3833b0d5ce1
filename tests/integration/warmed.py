"""Imported once, before processes are copied: kernels, and what botocore reads of its services. Starts no thread."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path

import aiobotocore.session

from parser import Profile
from parser.tables import TABLES
from tests.worker.fleets import can_capture
from worker.lake.knobs import Knobs
from worker.lake.manifest import Capture
from worker.lake.stage import Window
from worker.lake.store import Store
from worker.pipeline import Reader


def _decode() -> None:
    """A capture as the tests have them, to files of a moment."""
    schemas = {name: spec.schema for name, spec in TABLES.items()}
    reader = Reader(profile=Profile.default(), decoder_version="warm", now=lambda: 0.0)
    body = can_capture(50)
    with tempfile.TemporaryDirectory(prefix="pcaplake-") as folder:
        window = Window(Store.open(Path(folder)), schemas, knobs=Knobs(), generation=0, decoder_version="warm")
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
