"""The tables of a lake: the contract between the decoder, the lake and Spark.

Column order is keys, then identifiers, then payloads, because Delta keeps statistics for the first 32 leaf columns.
`nullable=False` means that a value is never missing, so the Parquet files have no definition levels for the column. The
Delta schema declares every column nullable, so that later versions can write nulls. Each field has its description as
metadata `comment`, which becomes the column's comment in the Delta table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .descriptions import describe_column

INT16, INT32, INT64, BOOL = pa.int16(), pa.int32(), pa.int64(), pa.bool_()
STRING, BINARY, DATE = pa.string(), pa.binary(), pa.date32()
TIMESTAMP = pa.timestamp("us", tz="UTC")


def _required_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _fields_of_type(kind: pa.DataType, names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names.split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One Delta table: its name, its Arrow schema and the columns that make a row unique."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ("capture_id", "packet_no", "sub_no")

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)


_CAPTURE_KEYS = [_required_field("capture_id", STRING), pa.field("vehicle_id", STRING), pa.field("date", DATE)]
_KEYS = [
    *_CAPTURE_KEYS,
    pa.field("ts", TIMESTAMP),
    pa.field("ts_ns", INT64),
    _required_field("packet_no", INT64),
    _required_field("sub_no", INT32),
    pa.field("interface", STRING),
]
_BUS_KEYS = [*_KEYS, pa.field("bus", STRING), pa.field("bus_time_ns", INT64), _required_field("source", STRING)]

INTERFACE = pa.struct(
    [
        pa.field("id", INT32),
        pa.field("name", STRING),
        pa.field("link_type", INT32),
        pa.field("ts_resolution_ns", STRING),
        pa.field("snaplen", INT64),
    ]
)
ENDPOINT = pa.struct(
    [pa.field("kind", STRING), pa.field("address", STRING), pa.field("port", INT32), pa.field("transport", STRING)]
)
COUNTS = pa.map_(STRING, INT64)


def _define_table(name: str, *fields: list[pa.Field], key: tuple[str, ...] | None = None) -> TableSpec:
    schema = pa.schema(
        [field.with_metadata({"comment": describe_column(name, field.name)}) for group in fields for field in group]
    )
    return TableSpec(name=name, schema=schema) if key is None else TableSpec(name=name, schema=schema, key=key)


CAPTURES = _define_table(
    "captures",
    _CAPTURE_KEYS,
    [
        _required_field("uri", STRING),
        _required_field("etag", STRING),
        _required_field("object_size", INT64),
        pa.field("format", STRING),
        pa.field("compression", STRING),
        *_fields_of_type(INT64, "packets bytes first_ts_ns last_ts_ns"),
        pa.field("link_types", pa.list_(INT32)),
        pa.field("interfaces", pa.list_(INTERFACE)),
        pa.field("sections", INT32),
        pa.field("truncated", BOOL),
        pa.field("faults", COUNTS),
        pa.field("rows", COUNTS),
        _required_field("outcome", STRING),
        _required_field("decoder_version", STRING),
        pa.field("profile", STRING),
        _required_field("ingested_at", TIMESTAMP),
    ],
    key=("capture_id",),
)
PACKETS = _define_table(
    "packets",
    _KEYS,
    [
        *_fields_of_type(INT32, "link_type"),
        _required_field("captured_len", INT64),
        _required_field("original_len", INT64),
        *_fields_of_type(STRING, "direction eth_src eth_dst"),
        *_fields_of_type(INT32, "eth_type"),
        pa.field("vlan_ids", pa.list_(INT32)),
        *_fields_of_type(INT16, "vlan_pcp ip_version"),
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(INT16, "ip_proto ip_ttl ip_dscp"),
        *_fields_of_type(BOOL, "ip_fragment"),
        *_fields_of_type(INT32, "src_port dst_port tcp_flags"),
        *_fields_of_type(INT64, "tcp_seq tcp_ack"),
        *_fields_of_type(INT32, "l4_payload_len"),
        _required_field("protocol", STRING),
        pa.field("raw", BINARY),
    ],
)
FAULTS = _define_table(
    "faults",
    _KEYS,
    [_required_field("layer", STRING), _required_field("reason", STRING), *_fields_of_type(INT64, "offset need have")],
)
CAN_FRAMES = _define_table(
    "can_frames",
    _BUS_KEYS,
    [
        *_fields_of_type(INT64, "can_id"),
        *_fields_of_type(BOOL, "extended rtr error fd brs esi xl"),
        *_fields_of_type(INT16, "dlc"),
        _required_field("data_len", INT32),
        *_fields_of_type(STRING, "direction"),
        *_fields_of_type(INT64, "error_class"),
        *_fields_of_type(INT16, "xl_sdu_type xl_vcid"),
        *_fields_of_type(INT64, "xl_acceptance"),
        _required_field("payload", BINARY),
    ],
)
LIN_FRAMES = _define_table(
    "lin_frames",
    _BUS_KEYS,
    [
        *_fields_of_type(INT16, "lin_id parity checksum"),
        *_fields_of_type(STRING, "checksum_type"),
        *_fields_of_type(INT16, "errors"),
        *_fields_of_type(INT64, "event"),
        _required_field("payload", BINARY),
    ],
)
FLEXRAY_FRAMES = _define_table(
    "flexray_frames",
    _BUS_KEYS,
    [
        *_fields_of_type(STRING, "channel"),
        *_fields_of_type(INT32, "frame_id"),
        *_fields_of_type(INT16, "cycle"),
        *_fields_of_type(INT32, "header_crc"),
        *_fields_of_type(BOOL, "payload_preamble null_frame sync startup"),
        *_fields_of_type(INT16, "errors symbol_length"),
        _required_field("payload", BINARY),
    ],
)
SOMEIP_MESSAGES = _define_table(
    "someip_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(STRING, "transport"),
        *(_required_field(name, INT32) for name in ("service_id", "method_id", "client_id", "session_id")),
        *(
            _required_field(name, INT16)
            for name in ("protocol_version", "interface_version", "message_type", "return_code")
        ),
        _required_field("is_event", BOOL),
        _required_field("length", INT64),
        pa.field("tp_segments", INT32),
        pa.field("tp_complete", BOOL),
        _required_field("payload", BINARY),
    ],
)
SOMEIP_SD_ENTRIES = _define_table(
    "someip_sd_entries",
    _KEYS,
    [
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(BOOL, "reboot unicast"),
        *_fields_of_type(INT32, "session_id"),
        *_fields_of_type(STRING, "entry_type"),
        *_fields_of_type(INT32, "service_id instance_id"),
        *_fields_of_type(INT16, "major_version"),
        *_fields_of_type(INT64, "minor_version"),
        *_fields_of_type(INT32, "ttl eventgroup_id"),
        *_fields_of_type(INT16, "counter"),
        pa.field("endpoints", pa.list_(ENDPOINT)),
        pa.field("configuration", pa.map_(STRING, STRING)),
    ],
)
QUARANTINE = _define_table(
    "quarantine",
    _CAPTURE_KEYS,
    [
        _required_field("uri", STRING),
        _required_field("stage", STRING),
        _required_field("error", STRING),
        pa.field("detail", STRING),
        pa.field("offset", INT64),
        pa.field("raw", BINARY),
        _required_field("first_seen", TIMESTAMP),
    ],
    key=("capture_id", "offset"),
)

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        CAPTURES,
        PACKETS,
        FAULTS,
        CAN_FRAMES,
        LIN_FRAMES,
        FLEXRAY_FRAMES,
        SOMEIP_MESSAGES,
        SOMEIP_SD_ENTRIES,
        QUARANTINE,
    )
}
