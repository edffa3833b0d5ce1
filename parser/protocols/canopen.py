"""CANopen in CAN frames with 11-bit identifiers, where a profile says so.

Layout: CiA 301 (predefined connection set, NMT, EMCY, SDO), CiA 305 (identifiers of LSS); Wireshark packet-canopen.c.

The identifier is a function code of 4 bits and the id of a node, or of a service for all nodes. An SDO is a request to a node or
its response: the first byte is a command, and where a transfer begins or is aborted the next ones are an index and a subindex.
Data of up to 4 bytes is in the same message (expedited), and is its payload.

Not read: values in PDO and SDO, which a device description (EDS) explains; the segments of longer SDO transfers are rows and are
not put together, and those of a block transfer have a number instead of a command, so they look like other messages; the time of
day; the commands of LSS; identifiers outside the predefined connection set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dpkt

from pcaplake.parser.engine.key_spaces import Claim, KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Rows, Term

from .can_content import ANY_IDENTIFIER, BUS_COLUMNS, CAN_ID, STANDARD_ID
from .ethernet import Bare

REQUEST, RESPONSE = KeySpace("CANopen SDO request", 8), KeySpace("CANopen SDO response", 8)
NMT_ID, SYNC_ID, TIME_ID, LSS_RESPONSE_ID, LSS_REQUEST_ID = 0x000, 0x080, 0x100, 0x7E4, 0x7E5
SDO_BYTES, LAST_NODE = 8, 127
_PDO = {code: f"{'tr'[code % 2 == 0]}pdo{(code - 1) // 2}" for code in range(3, 11)}  # by function code
_NMT_COMMANDS = {1: "start", 2: "stop", 128: "enter_pre_operational", 129: "reset_node", 130: "reset_communication"}
_NMT_STATES = {0: "bootup", 4: "stopped", 5: "operational", 127: "pre_operational"}
_DOWNLOAD, _UPLOAD = ("initiate_download", "download_segment"), ("initiate_upload", "upload_segment")
_REQUESTS = (_DOWNLOAD[1], _DOWNLOAD[0], _UPLOAD[0], _UPLOAD[1], "abort", "block_upload", "block_download")
_RESPONSES = (_UPLOAD[1], _DOWNLOAD[1], _UPLOAD[0], _DOWNLOAD[0], "abort", "block_download", "block_upload")
ABORT = 4  # of both directions
_EXPEDITED_WITH_SIZE = 3  # bits: the data is in this message, and the number of bytes without data is given


def _define(name: str, *fields: tuple[str, str, int], **bits: tuple[tuple[str, int], ...]) -> type[dpkt.Packet]:
    return type(name, (dpkt.Packet,), {"__byte_order__": "<", "__hdr__": fields, "__bit_fields__": bits})


def _layer(name: str, packet: type[dpkt.Packet], **facts: object) -> Layer:
    facts = {"under": [ANY_IDENTIFIER]} | facts
    return Layer(packet, name=f"canopen_{name}", protocol="canopen", **facts)  # type: ignore[arg-type]


_COMMAND = ("command", "B", 0x40)
_COMMAND_BITS = (("specifier", 3), ("_toggle", 1), ("unused", 2), ("_expedited", 2))
_INDEX = (("index", "H", 0), ("subindex", "B", 0))
Command = _define("Command", _COMMAND, command=_COMMAND_BITS)
Indexed = _define("Indexed", _COMMAND, *_INDEX, command=_COMMAND_BITS)
Abort = _define("Abort", _COMMAND, *_INDEX, ("code", "I", 0), command=_COMMAND_BITS)
NMT = _layer("nmt", _define("Nmt", ("command", "B", 1), ("node", "B", 0)))
EMCY = _layer("emcy", _define("Emcy", ("code", "H", 0), ("register", "B", 0)))
HEARTBEAT = _layer("heartbeat", _define("Heartbeat", ("toggled", "B", 5), toggled=(("_toggle", 1), ("state", 7))))
PDO, SYNC, TIME, LSS_REQUEST, LSS_RESPONSE = (
    _layer(name, Bare, header=lambda h: 0, bare=True) for name in ("pdo", "sync", "time", "lss_request", "lss_response")
)
SDO_REQUEST, SDO_RESPONSE = (
    _layer(name, Command, header=lambda h: 0, selects=[space(lambda h: h.command)])
    for name, space in (("sdo_request", REQUEST), ("sdo_response", RESPONSE))
)


def _where(space: KeySpace, holds: Callable[[int], bool]) -> list[Claim]:
    return [space[command] for command in range(256) if holds(command)]


def _sdo_layers(name: str, space: KeySpace, begin: tuple[int, ...], block: dict[int, int]) -> tuple[Layer, ...]:
    """The messages of one direction: expedited, with an index, an abort, and without an index.

    begin: command specifiers of messages with an index, first that of those with data. block: those of block transfers, of which
    only the ones without these bits have an index.
    """

    def is_expedited(command: int) -> bool:
        return command >> 5 == begin[0] and command & _EXPEDITED_WITH_SIZE == _EXPEDITED_WITH_SIZE

    def has_index(command: int) -> bool:
        specifier = command >> 5
        begins = specifier in begin or (specifier in block and command & block[specifier] == 0)
        return begins and not is_expedited(command)

    return (
        _layer(
            f"{name}_expedited",
            Indexed,
            under=_where(space, is_expedited),
            total=lambda h: h.unused * -1 + SDO_BYTES,
        ),
        _layer(f"{name}_indexed", Indexed, under=_where(space, has_index)),
        _layer(f"{name}_abort", Abort, under=_where(space, lambda command: command >> 5 == ABORT)),
        _layer(
            f"{name}_segment",
            Command,
            under=_where(space, lambda c: not is_expedited(c) and not has_index(c) and c >> 5 != ABORT),
        ),
    )


EXPEDITED_REQUEST, INDEXED_REQUEST, ABORT_REQUEST, OTHER_REQUEST = _REQUEST_LAYERS = _sdo_layers(
    "sdo_request", REQUEST, begin=(1, 2), block={5: 3, 6: 1}
)
EXPEDITED_RESPONSE, INDEXED_RESPONSE, ABORT_RESPONSE, OTHER_RESPONSE = _RESPONSE_LAYERS = _sdo_layers(
    "sdo_response", RESPONSE, begin=(2, 3), block={5: 3, 6: 1}
)
LAYERS = (
    *(NMT, SYNC, EMCY, TIME, PDO, SDO_REQUEST, SDO_RESPONSE, HEARTBEAT, LSS_REQUEST, LSS_RESPONSE),
    *(*_REQUEST_LAYERS, *_RESPONSE_LAYERS),
)


def _nodes(function_code: int) -> range:
    return range((function_code << 7) + 1, (function_code << 7) + LAST_NODE + 1)


def _one(identifier: int) -> range:
    return range(identifier, identifier + 1)


CAN_PROTOCOLS = {
    "canopen": [
        *((_one(identifier), layer) for identifier, layer in (
            (NMT_ID, NMT), (SYNC_ID, SYNC), (TIME_ID, TIME), (LSS_REQUEST_ID, LSS_REQUEST), (LSS_RESPONSE_ID, LSS_RESPONSE)
        )),
        *((_nodes(code), layer) for code, layer in (
            (1, EMCY), *((code, PDO) for code in _PDO), (11, SDO_RESPONSE), (12, SDO_REQUEST), (14, HEARTBEAT)
        )),
    ]
}  # fmt: skip


def _of_identifier(read: Callable[[Term], Term | Case]) -> tuple[Term | Case, ...]:
    """A value of the identifier, in each carrier of CAN frames."""
    return tuple(
        read(case.term).where(case.when)
        if isinstance(case, Case) and case.when is not None
        else read(case if isinstance(case, Term) else case.term)
        for case in STANDARD_ID
    )


def _rows(layer: Layer, function: Column, **columns: Column) -> Rows:
    carried: dict[str, Column] = dict(**BUS_COLUMNS, can_id=CAN_ID, function=function)
    return Rows("canopen_messages", layer, carried | columns)


def _sdo_rows() -> Iterator[Rows]:
    for function, commands, layers in (
        ("sdo_request", _REQUESTS, _REQUEST_LAYERS),
        ("sdo_response", _RESPONSES, _RESPONSE_LAYERS),
    ):
        for layer in layers:
            columns: dict[str, Column] = dict(
                node_id=_NODE, sdo_command=layer.specifier.names(dict(enumerate(commands)))
            )
            if layer.packet is not Command:
                columns |= dict(sdo_index=layer.index, sdo_subindex=layer.subindex)
            if layer.packet is Abort:
                columns["sdo_abort_code"] = layer.code
            yield _rows(layer, layer(function), **columns)


_NODE = _of_identifier(lambda identifier: identifier & LAST_NODE)
ROWS = (
    _rows(NMT, NMT("nmt"), node_id=NMT.node, nmt_command=NMT.command.names(_NMT_COMMANDS)),
    _rows(SYNC, SYNC("sync")),
    _rows(EMCY, EMCY("emcy"), node_id=_NODE, error_code=EMCY.code, error_register=EMCY.register),
    _rows(TIME, TIME("time")),
    _rows(PDO, _of_identifier(lambda identifier: (identifier >> 7 & 0xF).names(_PDO)), node_id=_NODE),
    _rows(HEARTBEAT, HEARTBEAT("heartbeat"), node_id=_NODE, nmt_state=HEARTBEAT.state.names(_NMT_STATES)),
    _rows(LSS_REQUEST, LSS_REQUEST("lss_request")),
    _rows(LSS_RESPONSE, LSS_RESPONSE("lss_response")),
    *_sdo_rows(),
)
