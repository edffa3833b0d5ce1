"""Opens what is to be inspected: a file, an object or standard input."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import LocalFile, Sources
from pcaplake.lake.records import compute_capture_id
from pcaplake.parser import Profile
from pcaplake.parser.capture.recognition import should_be_capture
from pcaplake.signals.database import Databases

from .content import HashedFile, StandardInput
from .evidence import Evidence
from .inspection import inspect_capture

STDIN = "-"


@dataclass(kw_only=True)
class Inspector:
    """Inspects captures one after the other. `read_bytes`: of all captures so far; `stop` ends the current capture; `evidence`
    collects what the next capture shows about its profile."""

    sources: Sources
    profile: Profile
    databases: Databases | None = None
    evidence: Evidence | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    read_bytes: int = 0

    def inspect_reference(self, ref: ObjectRef, loop: asyncio.AbstractEventLoop) -> dict[str, Any] | None:
        """Describe a capture; None if the reference is not explicit and the file is not a capture.

        Raises CaptureError for a file that is not a capture, OSError and PcaplakeError for one that cannot be read. Blocks, so
        call it in a worker thread.
        """
        with self.sources.open_blocking(ref.uri, loop) as opened:
            if not ref.explicit:
                if not should_be_capture(cast(BinaryIO, opened), ref.uri):
                    return None
                opened.rewind()
            found = self._inspect(opened, ref.uri)
            opened.require_unchanged()
            is_local = isinstance(opened, LocalFile)
            etag = found["hashes"]["blake3"] if is_local else opened.identify_capture().etag
        return {"uri": ref.uri, "capture_id": compute_capture_id(ref.uri, etag), "etag": etag, **found}

    def inspect_standard_input(self, descriptor: int) -> dict[str, Any]:
        """Describe the capture on standard input, which has no URI and therefore no id. Raises CaptureError and OSError."""
        found = self._inspect(StandardInput(descriptor, self.stop), STDIN)
        return {"uri": STDIN, "capture_id": None, "etag": None, **found}

    def _inspect(self, file: Any, uri: str) -> dict[str, Any]:
        hashed = HashedFile(file, self.stop, self._count_bytes)
        return inspect_capture(hashed, uri, self.profile, self.databases, self.evidence)

    def _count_bytes(self, count: int) -> None:
        self.read_bytes += count
