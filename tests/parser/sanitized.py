"""Decode hostile captures with kernels that check every access: `python -m tests.parser.sanitized FOLDER decode|beyond`.

FOLDER has `pcaplake/core` as KERNELS_SANITIZE compiles it. `beyond` shows that the checks work: it must fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import numpy as np

import pcaplake.core
from pcaplake.parser.engine.kernels import payloads
from tests.parser import captures, frames
from tests.parser.compare import read


def decode() -> None:
    r = Random(8)
    for link_type, make in frames.MAKERS.items():
        for _ in range(4):
            made = [frames.spoil(r, make(r)) for _ in range(r.choice((1, 2, 40)))]
            read(captures.pcap(made, link_type), tight=True, batch_rows=r.choice((1, 7, 1000)))


def beyond() -> None:
    print(payloads.sum_payload_lengths(np.zeros((4, 8), np.int32), 1 << 20))


if __name__ == "__main__":
    folder, what = sys.argv[1:]
    pcaplake.core.__path__ = [str(Path(folder, "pcaplake", "core"))]
    {"decode": decode, "beyond": beyond}[what]()
