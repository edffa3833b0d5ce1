"""Messages of network management as Wireshark's dissector sees them (packet-autosar-nm), as rows of our table."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NM = {
    "source_node": "autosar-nm.src",
    "control": "autosar-nm.ctrl",
    "repeat_message": "autosar-nm.ctrl.repeat_msg_req",
    "coordinator_sleep_ready": "autosar-nm.ctrl.nm_coord_sleep",
    "active_wakeup": "autosar-nm.ctrl.active_wakeup",
    "partial_network_learning": "autosar-nm.ctrl.pn_learning",
    "partial_network": "autosar-nm.ctrl.pni",
    "payload": "autosar-nm.user_data",
}


def read_fields(path: Path, protocol: str, columns: Mapping[str, str], options: Sequence[str]) -> list[Row]:
    """For each packet of the protocol: its number, and a column for each field; hex bytes and None as they are."""
    fields = ["frame.number", "frame.protocols", *columns.values()]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", *(word for field in fields for word in ("-e", field))]
    done = subprocess.run([*command, *options], capture_output=True, check=True, text=True)
    found = []
    for line in done.stdout.splitlines():
        number, protocols, *values = line.split("\t")
        if protocol in protocols.split(":"):
            found.append(
                {"packet_no": int(number), **dict(zip(columns, (value or None for value in values), strict=True))}
            )
    return found


def nm_messages(path: Path, *options: str, control: int | None = 0, node: int | None = 1) -> list[Row]:
    """The rows of `nm_messages`. control, node: positions of the control bit vector and of the source node."""
    turned = {None: "Turned off", 0: "Byte Position 0", 1: "Byte Position 1"}
    places = (
        "autosar-nm.cbv_version:AUTOSAR 20-11",
        f"autosar-nm.cbv_position:{turned[control]}",
        f"autosar-nm.sni_position:{turned[node]}",
    )
    rows = read_fields(path, "autosar-nm", NM, [*options, *(word for place in places for word in ("-o", place))])
    for row in rows:
        for name, value in row.items():
            if name == "payload":
                row[name] = bytes.fromhex(value or "")
            elif name != "packet_no" and value is not None:
                row[name] = int(value, 0) if name in ("source_node", "control") else value in ("1", "True")
    return rows


J1939 = {
    "can_id": "j1939.can_id",
    "priority": "j1939.priority",
    "source_address": "j1939.src_addr",
    "destination_address": "j1939.dst_addr",
    "pgn": "j1939.pgn",
    "payload": "j1939.data",
}


def j1939_messages(path: Path) -> list[Row]:
    """The rows of `j1939_messages` of single frames."""
    rows = read_fields(path, "j1939", J1939, ["-d", "can.subdissector,j1939"])
    for row in rows:
        for name, value in row.items():
            if name == "payload":
                row[name] = bytes.fromhex(value or "")
            elif name != "packet_no" and value is not None:
                row[name] = int(value, 0)
    return rows


CANOPEN = {
    "function_code": "canopen.function_code",
    "node": "canopen.node_id",
    "nmt_node": "canopen.nmt_ctrl.node_id",
    "state": "canopen.nmt_guard.state",
    "error_code": "canopen.em.err_code",
    "error_register": "canopen.em.err_reg",
    "request": "canopen.sdo.ccs",
    "response": "canopen.sdo.scs",
    "sdo_index": "canopen.sdo.main_idx",
    "sdo_subindex": "canopen.sdo.sub_idx",
    "sdo_abort_code": "canopen.sdo.abort_code",
}
FUNCTIONS = {0: "nmt", 1: "emcy", 11: "sdo_response", 12: "sdo_request", 14: "heartbeat"}  # CiA 301
FUNCTIONS |= {2 * n + 1: f"tpdo{n}" for n in range(1, 5)} | {2 * n + 2: f"rpdo{n}" for n in range(1, 5)}
STATES = {0: "bootup", 4: "stopped", 5: "operational", 127: "pre_operational"}
REQUESTS = (
    "download_segment",
    "initiate_download",
    "initiate_upload",
    "upload_segment",
    "abort",
    "block_upload",
    "block_download",
)
RESPONSES = (
    "upload_segment",
    "download_segment",
    "initiate_upload",
    "initiate_download",
    "abort",
    "block_download",
    "block_upload",
)


def canopen_messages(path: Path) -> list[Row]:
    """The rows of `canopen_messages`, each with the columns that tshark tells: 4.0 does not read how block transfers begin."""
    rows = []
    for found in read_fields(path, "canopen", CANOPEN, ["-d", "can.subdissector,canopen"]):
        read = {
            name: None if value is None else int(value, 0) if name != "packet_no" else value
            for name, value in found.items()
        }
        function = FUNCTIONS[read["function_code"]]
        row = {"packet_no": read["packet_no"], "function": function, "node_id": read["node"]}
        if function == "nmt":
            row["node_id"] = read["nmt_node"]
        elif function == "heartbeat":
            row["nmt_state"] = STATES.get(read["state"])
        elif function == "emcy":
            row |= {name: read[name] for name in ("error_code", "error_register")}
        for name, commands in (("request", REQUESTS), ("response", RESPONSES)):
            if read[name] is not None:
                row["sdo_command"] = commands[read[name]]
                row |= {column: read[column] for column in ("sdo_index", "sdo_subindex", "sdo_abort_code")}
        rows.append(row)
    return rows
