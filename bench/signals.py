"""Signals per second and core: the compiled decoder and cantools, in one run, on the same payloads.

`python -m bench.signals` prints the section. A drive's mix: every message of cantools' `vehicle.dbc` (217
messages, MIT license, fetched by pip) equally often, random payloads of full length. Ways:

    decode    payload matrix -> raw, value, valid, label by signal (numpy)
    rows      Arrow batch of `can_frames` -> Arrow batch of `signals`: with keys, grouped by id, as an executor does
    cantools  message.decode() by frame: values and labels, no keys
    cantools, rows  the same into lists by column, then an Arrow batch of `signals`: the usual code
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cantools
import numpy as np
import pyarrow as pa
from cantools.database.namedsignalvalue import NamedSignalValue

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import CompiledMessage, Databases
from pcaplake.signals.cantools_reader import convert_messages
from pcaplake.signals.decoder import FRAMES_AT_ONCE
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.tables import KEYS, SIGNALS_SCHEMA

from .rates import ROUNDS, measure_rates
from .signals_lake import lake_section

FRAMES = FRAMES_AT_ONCE  # of one batch
PEER_FRAMES = 8_192
PEERS = {"decode": "cantools", "rows": "cantools, rows"}
MATRIX = 4_096  # frames of one message


def signals_section(folder: Path | None = None) -> str:
    """The section in Markdown. `folder`: cantools' test databases."""
    figures = measure_decoding_rates(folder or _fetch_test_databases())
    lines = [
        f"{FRAMES:,} frames of 217 messages, CPU seconds of one thread; median (least to most) of n = {ROUNDS}",
        "",
        "| | signals/s per core | times the rate of cantools |",
        "|---|---|---|",
    ]
    for name, rates in figures.items():
        middle = statistics.median(rates)
        base = statistics.median(figures[PEERS.get(name, name)])
        spread = f"{min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f}"
        lines.append(f"| {name} | {middle / 1e6:.2f} M ({spread}) | {middle / base:.1f} |")
    return "\n".join(lines)


def measure_decoding_rates(folder: Path) -> dict[str, list[float]]:
    """way -> signals per CPU second, by round. Every round has all ways, so that disturbances affect all of them."""
    path = folder / "dbc" / "vehicle.dbc"
    theirs = [message for message in cantools.database.load_file(path).messages if message.signals]
    rng = random.Random(1)
    compiled = [CompiledMessage(message) for message in convert_messages(theirs, path.name).messages]
    matrices = [
        (
            each,
            np.random.default_rng(1).integers(0, 256, (MATRIX, each.width(each.message.length)), np.uint8),
            each.message.length,
        )
        for each in compiled
    ]
    batch = _draw_frames(theirs, rng)
    sample = batch.slice(0, PEER_FRAMES)
    by_id = {(message.frame_id, message.is_extended_frame): message for message in theirs}
    decoder = FrameDecoder(Databases.from_file(path))
    chosen = [(message, rng.randbytes(message.length)) for message in rng.choices(theirs, k=PEER_FRAMES)]
    ways: dict[str, Callable[[], int]] = {
        "decode": lambda: sum(
            len(found)
            for compiled_message, matrix, length in matrices
            for found in compiled_message.decode_frames(matrix, np.full(MATRIX, length))
        ),
        "rows": lambda: int(decoder.decode_signals("can", batch).num_rows),
        "cantools": lambda: sum(len(message.decode(payload)) for message, payload in chosen),
        "cantools, rows": lambda: _decode_with_cantools(by_id, sample).num_rows,
    }
    return measure_rates(ways)


def _decode_with_cantools(messages: dict[tuple[int, bool], Any], frames: pa.RecordBatch) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in SIGNALS_SCHEMA.names}
    for frame in frames.select([*KEYS, "can_id", "extended", "payload"]).to_pylist():
        message = messages[frame["can_id"], frame["extended"]]
        for name, value in message.decode(frame["payload"]).items():
            signal = message.get_signal_by_name(name)
            label = str(value) if isinstance(value, NamedSignalValue) else None
            raw = value.value if isinstance(value, NamedSignalValue) else value
            for key in KEYS:
                columns[key].append(frame[key])
            columns["message"].append(message.name)
            columns["signal"].append(name)
            columns["can_id"].append(message.frame_id)
            columns["lin_id"].append(None)
            columns["value"].append(float(raw))
            columns["label"].append(label)
            columns["raw_value"].append(None)
            columns["unit"].append(signal.unit)
            columns["valid"].append(True)
    rows = len(columns["signal"])
    return pa.RecordBatch.from_pydict(
        {name: values or [None] * rows for name, values in columns.items()}, SIGNALS_SCHEMA
    )


def _draw_frames(messages: list[Any], rng: random.Random) -> pa.RecordBatch:
    rows = [
        {
            "capture_id": "0123456789abcdef0123456789abcdef",
            "vehicle_id": "WVWZZZ1JZXW000001",
            "ts_ns": number,
            "packet_no": number + 1,
            "sub_no": 0,
            "bus": "CAN1",
            "source": "tecmp",
            "can_id": message.frame_id,
            "extended": message.is_extended_frame,
            "data_len": message.length,
            "payload": rng.randbytes(message.length),
        }
        for number, message in enumerate(rng.choices(messages, k=FRAMES))
    ]
    return pa.RecordBatch.from_pylist(rows, TABLES["can_frames"].schema)


def _fetch_test_databases() -> Path:
    from tests.signals.cantools_files import fetch

    folder = fetch()
    if isinstance(folder, str):
        raise SystemExit(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.signals", description="Signals per second and core.")
    parser.add_argument(
        "--lake", type=int, nargs="+", metavar="FRAMES", help="`pcaplake signals` on lakes of these sizes"
    )
    sizes = parser.parse_args().lake
    print(lake_section(sizes) if sizes else signals_section())
