"""Imported once, before processes are copied: what an ingest imports and keeps. Starts no thread.

Without this, hundreds of processes would take most of a second for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pcaplake.worker.cli.ingest  # noqa: F401
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.local_store import LocalStore
from pcaplake.parser import Profile
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.schemas import TABLES
from pcaplake.worker import sample


def _read_a_drive() -> None:
    schemas = {name: spec.schema for name, spec in TABLES.items()}
    with tempfile.TemporaryDirectory(prefix="pcaplake-") as folder:
        captures = [path for path in sample.write_sample_captures(folder, "drive", 0.1) if ".pcap" in path.name]
        window = Window(LocalStore(Path(folder, "lake")), schemas, lake_config=LakeConfig(), generation=0)
        reader = Reader(profile=Profile.load(Path(folder, "profile.yaml")), decoder_version="warm", now=lambda: 0.0)
        for number, path in enumerate(captures):
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                reader.read(file, Capture(capture_id=f"{number:032x}", uri=str(path), etag="", size=size), window)
        window.close()


_read_a_drive()
compiled_program(Profile(), DECODED)  # what most processes need
