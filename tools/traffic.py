"""What the payloads of captures look like, message by message: `python -m tools.traffic CAPTURE...`

Prints one table for each kind of message. A message is what one identifier of one bus sends: for CAN an interface, a bus
and an id. Messages with a single payload do not count. Bytes are classified
by what they do from one payload of a message to the next:

    constant   never changes
    rare       changes in fewer than 2 of 100 payloads
    counter    at least 8 payloads and 3 values; at least 90 of 100 changes add the same number, in the byte or in one half of it
    step       at least 90 of 100 changes are by at most 8
    jump       at most 32 different values
    noise      everything else
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pcaplake import open_capture
from pcaplake.parser.errors import CaptureError, ProfileError

MESSAGES = {  # table -> the columns that identify a message
    "can_frames": ("interface", "bus", "can_id"),
    "lin_frames": ("interface", "bus", "lin_id"),
    "someip_messages": ("service_id", "method_id", "message_type"),
}
KINDS = ("constant", "rare", "counter", "step", "jump", "noise")


def classify_byte(values: NDArray[np.uint8]) -> str:
    """What one byte does over time. values: uint8, in the order of time."""
    before, after = values[:-1].astype(np.int16), values[1:].astype(np.int16)
    changed = before != after
    changes = int(changed.sum())
    if changes == 0:
        return "constant"
    if changes < 0.02 * len(before):
        return "rare"
    added = (after - before)[changed]
    halves = (added % 256, (after % 16 - before % 16)[changed] % 16, (after // 16 - before // 16)[changed] % 16)
    if (
        len(np.unique(values)) > 2
        and len(values) >= 8
        and any(np.bincount(half, minlength=2)[1:].max() >= 0.9 * changes for half in halves)
    ):
        return "counter"
    if (np.abs((added + 128) % 256 - 128) <= 8).mean() >= 0.9:
        return "step"
    return "jump" if len(np.unique(values)) <= 32 else "noise"


def describe_messages(payloads: Sequence[Sequence[bytes]]) -> dict[str, float]:
    """The table for messages, of which each is its payloads in the order of time. Shares are of all payloads, or of all bytes."""
    total = sum(map(len, payloads))
    pairs = equal = differing = differing_bits = 0
    kinds: Counter[str] = Counter()
    for sent in payloads:
        pairs += len(sent) - 1
        by_length: dict[int, list[bytes]] = {}
        for payload in sent:
            by_length.setdefault(len(payload), []).append(payload)
        equal += sum(a == b for a, b in pairwise(sent))
        for length, same in by_length.items():
            matrix = np.frombuffer(b"".join(same), np.uint8).reshape(len(same), length)
            changed = matrix[1:] ^ matrix[:-1]
            differing += int((changed != 0).sum())
            differing_bits += int(np.unpackbits(changed).sum())
            if len(same) > 1:
                for column in matrix.T:
                    kinds[classify_byte(column)] += len(same)
    changes, octets = max(1, pairs - equal), max(1, kinds.total())
    return {
        "messages": len(payloads),
        "payloads": total,
        "bytes a payload": sum(len(p) for sent in payloads for p in sent) / max(1, total),
        "different payloads / payloads": sum(len(set(sent)) for sent in payloads) / max(1, total),
        "equal to the last one": equal / max(1, pairs),
        "where it differs: bytes": differing / changes,
        "where it differs: bits": differing_bits / changes,
        **{f"bytes: {kind}": kinds[kind] / octets for kind in KINDS},
    }


def payloads_of_messages(table: pa.Table, key: Iterable[str]) -> list[list[bytes]]:
    """The payloads of each message, in the order of the rows."""
    names = list(key)
    table = table.filter(pc.is_valid(table["payload"]))
    table = table.append_column("row", pa.array(np.arange(len(table))))
    columns = [
        c.combine_chunks().dictionary_decode() if pa.types.is_dictionary(c.type) else c.combine_chunks()
        for c in (table[n] for n in names)
    ]
    grouped = pa.table({**dict(zip(names, columns, strict=True)), "payload": table["payload"], "row": table["row"]})
    grouped = grouped.sort_by("row").group_by(names, use_threads=False).aggregate([("payload", "list")])
    return [[p for p in sent if p] for sent in grouped["payload_list"].to_pylist() if len(sent) > 1]


def measure_capture(path: Path, profile: Path | None) -> dict[str, dict[str, float]]:
    """Table -> its figures, for each table of messages in which the capture has rows."""
    found: dict[str, Any] = {}
    for name, key in MESSAGES.items():
        with open_capture(path, name, profile=profile) as capture:
            rows = capture.read()
        if len(rows):
            found[name] = describe_messages(payloads_of_messages(rows, key))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", nargs="+", type=Path)
    parser.add_argument("--profile", type=Path, help="ports and buses (docs/profile.md)")
    options, failed = parser.parse_args(), False
    for path in options.captures:
        try:
            tables = measure_capture(path, options.profile)
        except (OSError, CaptureError, ProfileError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = True
            continue
        if not tables:
            print(f"{path}: no messages")
        for name, figures in tables.items():
            print(f"{path}: {name}")
            for what, figure in figures.items():
                print(f"  {what:32} {figure:>12,.2f}" if isinstance(figure, float) else f"  {what:32} {figure:>12,}")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
