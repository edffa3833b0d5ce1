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
CAPTURE_MODULE_MESSAGES = _define_table(
    "capture_module_messages",
    _BUS_KEYS,
    [
        _required_field("device_id", INT32),
        _required_field("sequence", INT32),
        *_fields_of_type(STRING, "message_type"),
        _required_field("data_type", INT32),
        _required_field("flags", INT32),
        *_fields_of_type(INT64, "messages errors"),
        _required_field("payload", BINARY),
    ],
)
AVTP_PDUS = _define_table(
    "avtp_pdus",
    _KEYS,
    [
        _required_field("subtype", INT16),
        *_fields_of_type(INT64, "stream_id"),
        *_fields_of_type(INT16, "sequence"),
        *_fields_of_type(INT64, "avtp_ts"),
        *_fields_of_type(BOOL, "timestamp_valid"),
        *_fields_of_type(INT32, "data_len"),
    ],
)
PDUS = _define_table(
    "pdus",
    _KEYS,
    [
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(STRING, "transport"),
        _required_field("header", STRING),
        _required_field("pdu_id", INT64),
        _required_field("pdu_name", STRING),
        _required_field("length", INT64),
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
DOIP_MESSAGES = _define_table(
    "doip_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(STRING, "transport"),
        _required_field("doip_version", INT16),
        _required_field("payload_type", INT32),
        *_fields_of_type(INT32, "source_address target_address"),
        *_fields_of_type(STRING, "vin"),
        *_fields_of_type(BINARY, "eid gid"),
        *_fields_of_type(INT16, "code"),
        _required_field("payload", BINARY),
    ],
)
UDS_MESSAGES = _define_table(
    "uds_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "transport"),
        *_fields_of_type(INT64, "source_address target_address can_id"),
        _required_field("is_response", BOOL),
        _required_field("service_id", INT16),
        *_fields_of_type(INT16, "subfunction"),
        *_fields_of_type(BOOL, "suppress_response"),
        *_fields_of_type(INT32, "data_identifier"),
        *_fields_of_type(INT16, "negative_code"),
        *_fields_of_type(INT64, "request_packet_no latency_us"),
        _required_field("data", BINARY),
    ],
)
GPTP_MESSAGES = _define_table(
    "gptp_messages",
    _KEYS,
    [
        *(_required_field(name, INT16) for name in ("message_type", "domain")),
        _required_field("sequence_id", INT32),
        _required_field("clock_identity", INT64),
        _required_field("port_number", INT32),
        pa.field("correction_ns", pa.float64()),
        _required_field("flags", INT32),
        *_fields_of_type(INT64, "origin_ts_ns"),
        _required_field("log_interval", INT16),
        *_fields_of_type(INT64, "request_packet_no latency_us"),
    ],
)
DLT_MESSAGES = _define_table(
    "dlt_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(STRING, "transport"),
        _required_field("dlt_version", INT16),
        _required_field("counter", INT16),
        *_fields_of_type(STRING, "ecu_id application_id context_id"),
        *_fields_of_type(INT64, "session_id uptime_us"),
        *_fields_of_type(BOOL, "verbose"),
        *_fields_of_type(INT16, "message_type message_type_info arguments"),
        *_fields_of_type(INT64, "message_id"),
        _required_field("big_endian", BOOL),
        _required_field("payload", BINARY),
    ],
)
MACSEC_FRAMES = _define_table(
    "macsec_frames",
    _KEYS,
    [
        *_fields_of_type(STRING, "eth_src eth_dst"),
        *_fields_of_type(INT64, "sci"),
        _required_field("association_number", INT16),
        _required_field("packet_number", INT64),
        _required_field("short_length", INT16),
        *(_required_field(name, BOOL) for name in ("end_station", "broadcast", "encrypted", "changed")),
    ],
)
NM_MESSAGES = _define_table(
    "nm_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "transport bus ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(INT64, "can_id"),
        *_fields_of_type(INT16, "source_node control"),
        *_fields_of_type(
            BOOL, "repeat_message coordinator_sleep_ready active_wakeup partial_network_learning partial_network"
        ),
        _required_field("payload", BINARY),
    ],
)
XCP_MESSAGES = _define_table(
    "xcp_messages",
    _KEYS,
    [
        *_fields_of_type(STRING, "transport bus ip_src ip_dst"),
        *_fields_of_type(INT32, "src_port dst_port"),
        *_fields_of_type(INT64, "can_id"),
        *_fields_of_type(INT32, "counter"),
        *_fields_of_type(STRING, "packet_type command"),
        _required_field("pid", INT16),
        *_fields_of_type(INT16, "code"),
        _required_field("payload", BINARY),
    ],
)
J1939_MESSAGES = _define_table(
    "j1939_messages",
    _BUS_KEYS,
    [
        *_fields_of_type(INT64, "can_id"),
        *_fields_of_type(INT16, "priority"),
        *_fields_of_type(INT32, "pgn"),
        *_fields_of_type(INT16, "source_address destination_address tp_packets"),
        _required_field("payload", BINARY),
    ],
)
CANOPEN_MESSAGES = _define_table(
    "canopen_messages",
    _BUS_KEYS,
    [
        *_fields_of_type(INT64, "can_id"),
        *_fields_of_type(STRING, "function"),
        *_fields_of_type(INT16, "node_id"),
        *_fields_of_type(STRING, "nmt_command nmt_state"),
        *_fields_of_type(INT32, "error_code"),
        *_fields_of_type(INT16, "error_register"),
        *_fields_of_type(STRING, "sdo_command"),
        *_fields_of_type(INT32, "sdo_index"),
        *_fields_of_type(INT16, "sdo_subindex"),
        *_fields_of_type(INT64, "sdo_abort_code"),
        _required_field("payload", BINARY),
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
        CAPTURE_MODULE_MESSAGES,
        AVTP_PDUS,
        PDUS,
        SOMEIP_MESSAGES,
        SOMEIP_SD_ENTRIES,
        DOIP_MESSAGES,
        UDS_MESSAGES,
        GPTP_MESSAGES,
        DLT_MESSAGES,
        MACSEC_FRAMES,
        NM_MESSAGES,
        XCP_MESSAGES,
        J1939_MESSAGES,
        CANOPEN_MESSAGES,
        QUARANTINE,
    )
}
