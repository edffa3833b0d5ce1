"""Generates docs/protocols.md from the declarations in parser/protocols: where each protocol is found, and what it gives.

python -m tools.protocols_page > docs/protocols.md      # `make docs`

The docstring of a module has the rest: its first sentence, and the paragraphs `Layout: ` (the source of the layout) and
`Not read: ` (what is in the packets, but in no column).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from pcaplake.parser import protocols
from pcaplake.parser.engine.decoder import REASSEMBLY_BYTES
from pcaplake.parser.engine.key_spaces import BIG_ENDIAN, LINKTYPE, KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE, Stream
from pcaplake.parser.engine.reassembly.assembler import MOST_PIECES
from pcaplake.parser.engine.reassembly.streams import MOST_ISLANDS, WINDOW
from pcaplake.parser.protocols.ethernet import ETHERTYPE, SLL_PROTOCOL, TCP_PORT, UDP_PORT
from pcaplake.parser.schemas import TABLES

INTRODUCTION = """\
# Protocols

This page is generated from the declarations in `parser/protocols`. For each protocol it says where it is found, which columns it
fills, where its layout is defined, and what is in its packets but not read.

- **Protocol** is the name in `packets.protocol`, which has the innermost one.
- **Found by** lists what leads to the protocol: link types (of tcpdump.org), ethertypes, ports and other keys of its carrier. A
  port counts as source or as destination. The [profile](profile.md) can name more ports, and identifiers. A port that service
  discovery offers counts from the next packet on: a capture is read once, so what came before is not read again.
- **Columns** are those that the protocol fills. The key columns, such as `capture_id`, `packet_no` and `ts`, are in every table
  ([tables.md](tables.md)).

`pcaplake inspect` says how many bytes of a capture no protocol decodes, and why ([inspect.md](inspect.md)).
"""
MOST_RUNS = 6  # of values of a key space that are listed
LIMITS = f"""\
## Messages in several packets
Messages that span packets are put together ([ADR 22](adr/0022-messages-are-put-together.md)). What is lost, or goes beyond a
limit, is a fault `gap` or `too_long` ([runbooks/faults.md](runbooks/faults.md)). What is put together must be one message
([ADR 40](adr/0040-pieces-prove-their-message.md)): a datagram with a wrong checksum is a fault `bad_checksum`, and without a
checksum, IP fragments and SOME/IP-TP segments must begin with the beginning.

| limit | value |
|---|---|
| memory for messages of which pieces are missing | {REASSEMBLY_BYTES >> 20} MiB for a capture (`ReadOptions.reassembly_bytes`), \
an equal share for each of {len(protocols.REASSEMBLIES)} kinds; the oldest message, or the longest idle stream, goes first |
| bytes of a message | {LONGEST_MESSAGE >> 20} MiB, and half of the share |
| pieces of an IP datagram or SOME/IP-TP message that are not joined | {MOST_PIECES:,} |
| parts of a TCP stream with holes between them (segments out of order, not joined yet) | {MOST_ISLANDS}; the first one goes |
| bytes of a TCP stream in which repeated segments are recognized | {WINDOW >> 20} MiB |
"""
BODIES = ("payload", "data", "raw")  # columns that have the body of a layer


def render_markdown() -> str:
    """The page."""
    modules = [
        one for one in vars(protocols).values() if isinstance(one, ModuleType) and {"LAYERS", "ROWS"} & vars(one).keys()
    ]
    modules.sort(key=lambda module: min(map(protocols.LAYERS.index, getattr(module, "LAYERS", ())), default=-1))
    return "\n".join([INTRODUCTION, LIMITS, *map(_render_module, modules)])


def _render_module(module: ModuleType) -> str:
    summary, *rest = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    facts = {key: _find_paragraph(module.__name__, rest, key) for key in ("Layout", "Not read")}
    title = re.split(r" \(| (?:in|over) |[:,.](?= |$)", summary)[0]
    lines = [f"## {title}", " ".join(summary.split()), ""]
    lines += [f"- **{key}**: {text}" for key, text in facts.items()]
    lines += ["", *_render_rows("protocol | found by", _places(module))]
    return "\n".join([*lines, *_render_rows("table | columns", _columns(module))])


def _find_paragraph(module: str, paragraphs: Sequence[str], key: str) -> str:
    for paragraph in paragraphs:
        if paragraph.startswith(f"{key}: "):
            return " ".join(paragraph.removeprefix(f"{key}: ").split())
    raise ValueError(f"the docstring of {module} has no paragraph `{key}: `; add it")


def _render_rows(header: str, rows: Iterator[tuple[str, str]]) -> list[str]:
    found = [f"| {first} | {second} |" for first, second in rows]
    return [f"| {header} |", "|---|---|", *found, ""] if found else []


# -- where a protocol is found ------------------------------------------------------------------------------------------
_SELECTING: dict[KeySpace, list[Layer]] = {}
for _layer in (*protocols.LAYERS, *(kind.message for kind in protocols.REASSEMBLIES)):
    for _keys, *_ in _layer.selects:
        _SELECTING.setdefault(_keys.stands_for or _keys, []).append(_layer)
_STREAMS = {kind.message: kind for kind in protocols.REASSEMBLIES if isinstance(kind, Stream)}
# layers after which no packet is named: the segments of a stream, and headers in a trailer
_NAMELESS = {layer for kind in _STREAMS.values() for layer in kind.layers}
_NAMELESS |= {layer.tail for layer in protocols.LAYERS if layer.tail is not None}


def _places(module: ModuleType) -> Iterator[tuple[str, str]]:
    by_protocol: dict[str, list[Layer]] = {}
    for layer in getattr(module, "LAYERS", ()):
        if layer not in _NAMELESS:
            by_protocol.setdefault(layer.protocol, []).append(layer)
    for protocol, layers in by_protocol.items():
        yield f"`{protocol}`", "; ".join(dict.fromkeys(_places_of(layers, protocol))) or "the capture file"


def _places_of(layers: Sequence[Layer], protocol: str) -> Iterator[str]:
    """The keys by which carriers of other protocols lead to the layers of a protocol."""
    claimed: dict[KeySpace, set[int]] = {}
    for layer in layers:
        for keys, values in layer.under:
            claimed.setdefault(keys, set()).update(values)
    for keys, numbers in claimed.items():
        carriers = [carrier for carrier in _SELECTING.get(keys, ()) if carrier.protocol != protocol]
        for stream in (_STREAMS[carrier] for carrier in carriers if carrier in _STREAMS):
            yield from _places_of(stream.layers, protocol)
        others = dict.fromkeys(f"`{carrier.protocol}`" for carrier in carriers if carrier not in _STREAMS)
        if keys.sparse and not numbers:
            yield f"{keys.name} that the profile names"
        elif numbers and others:
            text = _describe_values(keys, numbers)
            yield f"{keys.name} {text}" if text and keys.bits > 1 else f"in {', '.join(others)}"
    for keys, named in ((UDP_PORT, protocols.UDP_PROTOCOLS), (TCP_PORT, protocols.TCP_PROTOCOLS)):
        yield from (f"{keys.name} that the profile names `{name}`" for name, to in named.items() if to in layers)
    for learned in (rows.learned for rows in protocols.ROWS if rows.learned is not None):
        yield from (f"{keys.name} that {learned.source} offers" for keys, to in learned.leads.items() if to in layers)


def _describe_values(keys: KeySpace, values: set[int]) -> str | None:
    """The values as runs: 1, 4 to 6. None if they are too many to tell a reader anything."""
    write = "0x{:04X}".format if keys in (ETHERTYPE, SLL_PROTOCOL) else str
    runs: list[list[int]] = []
    for value in sorted({value & ~BIG_ENDIAN if keys is LINKTYPE else value for value in values}):
        if runs and runs[-1][-1] == value - 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join(" to ".join(map(write, run)) for run in runs) if len(runs) <= MOST_RUNS else None


def _columns(module: ModuleType) -> Iterator[tuple[str, str]]:
    filled: dict[str, set[str]] = {}
    for rows in getattr(module, "ROWS", ()):
        pairing = (rows.pairing.packet_no, rows.pairing.latency_us) if rows.pairing else ()
        filled.setdefault(rows.table, {*BODIES}).update(rows.columns, rows.made, pairing)
    for table, columns in filled.items():
        yield f"`{table}`", ", ".join(f"`{name}`" for name in TABLES[table].columns if name in columns)


if __name__ == "__main__":
    sys.stdout.write(render_markdown())
