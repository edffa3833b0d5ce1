"""The tables of a lake: the contract between the decoder, the lake and Spark."""

from __future__ import annotations

import pyarrow as pa

from .table_spec import (
    BINARY,
    BOOL,
    DATE,
    INT16,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    TableSpec,
    define_table,
    fields_of_type,
    required_field,
)

_CAPTURE_KEYS = [required_field("capture_id", STRING), pa.field("vehicle_id", STRING), pa.field("date", DATE)]
_KEYS = [
    *_CAPTURE_KEYS,
    pa.field("ts", TIMESTAMP),
    pa.field("ts_ns", INT64),
    required_field("packet_no", INT64),
    required_field("sub_no", INT32),
    pa.field("interface", STRING),
]
_BUS_KEYS = [*_KEYS, pa.field("bus", STRING), pa.field("bus_time_ns", INT64), required_field("source", STRING)]

INTERFACE = pa.struct(
    [
        pa.field("id", INT32),
        pa.field("name", STRING),
        pa.field("link_type", INT32),
        pa.field("ts_resolution_ns", STRING),
        pa.field("snaplen", INT64),
        pa.field("received", INT64),
        pa.field("dropped", INT64),
    ]
)
ENDPOINT = pa.struct(
    [pa.field("kind", STRING), pa.field("address", STRING), pa.field("port", INT32), pa.field("transport", STRING)]
)
COUNTS = pa.map_(STRING, INT64)

CAPTURES = define_table(
    "captures",
    _CAPTURE_KEYS,
    [
        required_field("uri", STRING),
        required_field("etag", STRING),
        required_field("object_size", INT64),
        pa.field("format", STRING),
        pa.field("compression", STRING),
        *fields_of_type(INT64, "packets bytes first_ts_ns last_ts_ns"),
        pa.field("link_types", pa.list_(INT32)),
        pa.field("interfaces", pa.list_(INTERFACE)),
        pa.field("sections", INT32),
        pa.field("truncated", BOOL),
        pa.field("faults", COUNTS),
        pa.field("rows", COUNTS),
        required_field("outcome", STRING),
        required_field("decoder_version", STRING),
        pa.field("profile", STRING),
        required_field("ingested_at", TIMESTAMP),
        pa.field("modified_at", TIMESTAMP),
        pa.field("sequencer", STRING),
    ],
    key=("capture_id",),
)
PACKETS = define_table(
    "packets",
    _KEYS,
    [
        *fields_of_type(INT32, "link_type"),
        required_field("captured_len", INT64),
        required_field("original_len", INT64),
        *fields_of_type(STRING, "direction eth_src eth_dst"),
        *fields_of_type(INT32, "eth_type"),
        pa.field("vlan_ids", pa.list_(INT32)),
        *fields_of_type(INT16, "vlan_pcp ip_version"),
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT16, "ip_proto ip_ttl ip_dscp"),
        *fields_of_type(BOOL, "ip_fragment"),
        *fields_of_type(INT32, "src_port dst_port tcp_flags"),
        *fields_of_type(INT64, "tcp_seq tcp_ack"),
        *fields_of_type(INT32, "l4_payload_len"),
        required_field("protocol", STRING),
        pa.field("comment", STRING),
        pa.field("raw", BINARY),
    ],
    order="interface protocol ip_src dst_port",
)
FAULTS = define_table(
    "faults",
    _KEYS,
    [
        required_field("layer", STRING),
        required_field("reason", STRING),
        *fields_of_type(BOOL, "decoded"),
        *fields_of_type(INT64, "offset need have"),
        *fields_of_type(BOOL, "recorder_dropped"),
    ],
    order="interface layer reason",
)
CAN_FRAMES = define_table(
    "can_frames",
    _BUS_KEYS,
    [
        *fields_of_type(INT64, "can_id"),
        *fields_of_type(BOOL, "extended rtr error fd brs esi xl"),
        *fields_of_type(INT16, "dlc"),
        required_field("data_len", INT32),
        *fields_of_type(STRING, "direction"),
        *fields_of_type(INT64, "error_class"),
        *fields_of_type(INT16, "xl_sdu_type xl_vcid"),
        *fields_of_type(INT64, "xl_acceptance"),
        required_field("payload", BINARY),
    ],
    order="bus can_id",
)
LIN_FRAMES = define_table(
    "lin_frames",
    _BUS_KEYS,
    [
        *fields_of_type(INT16, "lin_id parity checksum"),
        *fields_of_type(STRING, "checksum_type"),
        *fields_of_type(INT16, "errors"),
        *fields_of_type(INT64, "event"),
        required_field("payload", BINARY),
    ],
    order="bus",  # without lin_id: one frame after the other has the bus, and times in steps are smaller than what ids save
)
FLEXRAY_FRAMES = define_table(
    "flexray_frames",
    _BUS_KEYS,
    [
        *fields_of_type(STRING, "channel"),
        *fields_of_type(INT32, "frame_id"),
        *fields_of_type(INT16, "cycle"),
        *fields_of_type(INT32, "header_crc"),
        *fields_of_type(BOOL, "payload_preamble null_frame sync startup"),
        *fields_of_type(INT16, "errors symbol_length"),
        required_field("payload", BINARY),
    ],
    order="bus channel frame_id",
)
CAPTURE_MODULE_MESSAGES = define_table(
    "capture_module_messages",
    _BUS_KEYS,
    [
        required_field("device_id", INT32),
        required_field("sequence", INT32),
        *fields_of_type(STRING, "message_type"),
        required_field("data_type", INT32),
        required_field("flags", INT32),
        *fields_of_type(INT64, "messages errors"),
        required_field("payload", BINARY),
    ],
    order="bus device_id",
)
AVTP_PDUS = define_table(
    "avtp_pdus",
    _KEYS,
    [
        required_field("subtype", INT16),
        *fields_of_type(INT64, "stream_id"),
        *fields_of_type(INT16, "sequence"),
        *fields_of_type(INT64, "avtp_ts"),
        *fields_of_type(BOOL, "timestamp_valid"),
        *fields_of_type(INT32, "data_len"),
    ],
    order="interface stream_id",
)
PDUS = define_table(
    "pdus",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(STRING, "transport"),
        required_field("header", STRING),
        required_field("pdu_id", INT64),
        required_field("pdu_name", STRING),
        required_field("length", INT64),
        required_field("payload", BINARY),
    ],
    order="pdu_id",
)
SOMEIP_MESSAGES = define_table(
    "someip_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(STRING, "transport"),
        *(required_field(name, INT32) for name in ("service_id", "method_id", "client_id", "session_id")),
        *(
            required_field(name, INT16)
            for name in ("protocol_version", "interface_version", "message_type", "return_code")
        ),
        required_field("is_event", BOOL),
        required_field("length", INT64),
        pa.field("tp_segments", INT32),
        pa.field("tp_complete", BOOL),
        required_field("payload", BINARY),
    ],
    order="service_id method_id message_type",
)
SOMEIP_SD_ENTRIES = define_table(
    "someip_sd_entries",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(BOOL, "reboot unicast"),
        *fields_of_type(INT32, "session_id"),
        *fields_of_type(STRING, "entry_type"),
        *fields_of_type(INT32, "service_id instance_id"),
        *fields_of_type(INT16, "major_version"),
        *fields_of_type(INT64, "minor_version"),
        *fields_of_type(INT32, "ttl eventgroup_id"),
        *fields_of_type(INT16, "counter"),
        pa.field("endpoints", pa.list_(ENDPOINT)),
        pa.field("configuration", pa.map_(STRING, STRING)),
    ],
    order="service_id instance_id entry_type",
)
DOIP_MESSAGES = define_table(
    "doip_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(STRING, "transport"),
        required_field("doip_version", INT16),
        required_field("payload_type", INT32),
        *fields_of_type(INT32, "source_address target_address"),
        *fields_of_type(STRING, "vin"),
        *fields_of_type(BINARY, "eid gid"),
        *fields_of_type(INT16, "code"),
        required_field("payload", BINARY),
    ],
    order="payload_type source_address target_address",
)
UDS_MESSAGES = define_table(
    "uds_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "transport"),
        *fields_of_type(INT64, "source_address target_address can_id"),
        required_field("is_response", BOOL),
        required_field("service_id", INT16),
        *fields_of_type(INT16, "subfunction"),
        *fields_of_type(BOOL, "suppress_response"),
        *fields_of_type(INT32, "data_identifier"),
        *fields_of_type(INT16, "negative_code"),
        *fields_of_type(INT64, "request_packet_no latency_us"),
        required_field("data", BINARY),
    ],
    order="source_address target_address service_id",
)
GPTP_MESSAGES = define_table(
    "gptp_messages",
    _KEYS,
    [
        *(required_field(name, INT16) for name in ("message_type", "domain")),
        required_field("sequence_id", INT32),
        required_field("clock_identity", INT64),
        required_field("port_number", INT32),
        pa.field("correction_ns", pa.float64()),
        required_field("flags", INT32),
        *fields_of_type(INT64, "origin_ts_ns"),
        required_field("log_interval", INT16),
        *fields_of_type(INT64, "request_packet_no latency_us"),
    ],
    order="domain message_type clock_identity",
)
DLT_MESSAGES = define_table(
    "dlt_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(STRING, "transport"),
        required_field("dlt_version", INT16),
        required_field("counter", INT16),
        *fields_of_type(STRING, "ecu_id application_id context_id"),
        *fields_of_type(INT64, "session_id uptime_us"),
        *fields_of_type(BOOL, "verbose"),
        *fields_of_type(INT16, "message_type message_type_info arguments"),
        *fields_of_type(INT64, "message_id"),
        required_field("big_endian", BOOL),
        required_field("payload", BINARY),
    ],
    order="ecu_id application_id context_id",
)
MACSEC_FRAMES = define_table(
    "macsec_frames",
    _KEYS,
    [
        *fields_of_type(STRING, "eth_src eth_dst"),
        *fields_of_type(INT64, "sci"),
        required_field("association_number", INT16),
        required_field("packet_number", INT64),
        required_field("short_length", INT16),
        *(required_field(name, BOOL) for name in ("end_station", "broadcast", "encrypted", "changed")),
    ],
    order="sci",
)
V2G_MESSAGES = define_table(
    "v2g_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(STRING, "transport"),
        required_field("payload_type", INT32),
        required_field("length", INT64),
        *fields_of_type(BOOL, "tls"),
        *fields_of_type(STRING, "secc_transport secc_address"),
        *fields_of_type(INT32, "secc_port"),
        required_field("payload", BINARY),
    ],
    order="payload_type ip_src",
)
HOMEPLUG_MESSAGES = define_table(
    "homeplug_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "eth_src eth_dst"),
        required_field("version", INT16),
        required_field("mme_type", INT32),
        *fields_of_type(STRING, "message"),
        *fields_of_type(INT16, "fragment fragments application_type security_type"),
        *fields_of_type(BINARY, "run_id"),
        *fields_of_type(INT16, "sounds"),
        *fields_of_type(INT32, "timeout_ms"),
        *fields_of_type(INT16, "response_type"),
        *fields_of_type(STRING, "sound_target_mac forwarding_mac pev_mac evse_mac"),
        *fields_of_type(BINARY, "pev_id evse_id network_id"),
        *fields_of_type(INT16, "groups signal_type toggles result"),
        required_field("payload", BINARY),
    ],
    order="mme_type eth_src",
)
NM_MESSAGES = define_table(
    "nm_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "transport bus ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(INT64, "can_id"),
        *fields_of_type(INT16, "source_node control"),
        *fields_of_type(
            BOOL, "repeat_message coordinator_sleep_ready active_wakeup partial_network_learning partial_network"
        ),
        required_field("payload", BINARY),
    ],
    order="bus can_id ip_src",
)
XCP_MESSAGES = define_table(
    "xcp_messages",
    _KEYS,
    [
        *fields_of_type(STRING, "transport bus ip_src ip_dst"),
        *fields_of_type(INT32, "src_port dst_port"),
        *fields_of_type(INT64, "can_id"),
        *fields_of_type(INT32, "counter"),
        *fields_of_type(STRING, "packet_type command"),
        required_field("pid", INT16),
        *fields_of_type(INT16, "code"),
        required_field("payload", BINARY),
    ],
    order="bus can_id ip_src",
)
J1939_MESSAGES = define_table(
    "j1939_messages",
    _BUS_KEYS,
    [
        *fields_of_type(INT64, "can_id"),
        *fields_of_type(INT16, "priority"),
        *fields_of_type(INT32, "pgn"),
        *fields_of_type(INT16, "source_address destination_address tp_packets"),
        required_field("payload", BINARY),
    ],
    order="bus pgn source_address",
)
CANOPEN_MESSAGES = define_table(
    "canopen_messages",
    _BUS_KEYS,
    [
        *fields_of_type(INT64, "can_id"),
        *fields_of_type(STRING, "function"),
        *fields_of_type(INT16, "node_id"),
        *fields_of_type(STRING, "nmt_command nmt_state"),
        *fields_of_type(INT32, "error_code"),
        *fields_of_type(INT16, "error_register"),
        *fields_of_type(STRING, "sdo_command"),
        *fields_of_type(INT32, "sdo_index"),
        *fields_of_type(INT16, "sdo_subindex"),
        *fields_of_type(INT64, "sdo_abort_code"),
        required_field("payload", BINARY),
    ],
    order="bus node_id can_id",
)
QUARANTINE = define_table(
    "quarantine",
    _CAPTURE_KEYS,
    [
        required_field("uri", STRING),
        required_field("stage", STRING),
        required_field("error", STRING),
        pa.field("detail", STRING),
        pa.field("offset", INT64),
        pa.field("raw", BINARY),
        required_field("first_seen", TIMESTAMP),
    ],
    key=("capture_id", "offset"),
)
SIGHTINGS = define_table(
    "sightings",
    _CAPTURE_KEYS,
    [
        required_field("uri", STRING),
        required_field("etag", STRING),
        required_field("modified_at", TIMESTAMP),
        pa.field("sequencer", STRING),
    ],
    key=("capture_id", "modified_at", "sequencer"),
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
        V2G_MESSAGES,
        HOMEPLUG_MESSAGES,
        NM_MESSAGES,
        XCP_MESSAGES,
        J1939_MESSAGES,
        CANOPEN_MESSAGES,
        QUARANTINE,
        SIGHTINGS,
    )
}
