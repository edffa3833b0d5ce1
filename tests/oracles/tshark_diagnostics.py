"""DoIP and UDS messages as Wireshark's dissectors see them (packet-doip, packet-uds, packet-iso15765), as rows of our tables.

TCP streams and ISO-TP messages are put together, as in Wireshark's own settings.
"""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
DOIP = {
    "doip_version": ("version",),
    "payload_type": ("type",),
    "source_address": ("source_address", "logical_address"),
    "target_address": ("target_address", "tester_logical_address"),
    "code": (
        *("nack_code", "futher_action", "power_mode", "node_type", "activation_type_v1", "activation_type"),
        *("response_code", "diag_ack_code", "diag_nack_code"),
    ),
}
UDS = {
    "subfunction": ("dsc.type", "er.type", "rdtci.type", "sa.type", "rc.type", "cdtcs.type"),
    "data_identifier": ("rdbi.data_identifier", "wdbi.data_identifier", "iocbi.data_identifier", "rc.identifier"),
    "negative_code": ("err.code",),
}


def messages(path: Path, *, can_ids: Sequence[int] = (), addressing: str = "Normal addressing") -> dict[str, list[Row]]:
    """The rows of `doip_messages` and `uds_messages`. can_ids: those of ISO-TP, above 0x7FF with 29 bits."""
    arguments = ["tshark", "-n", "-r", str(path), "-T", "pdml", "-o", f"iso15765.addressing:{addressing}"]
    for name, ids in (
        ("can.ids", [n for n in can_ids if n <= 0x7FF]),
        ("can.extended_ids", [n for n in can_ids if n > 0x7FF]),
    ):
        if ids:
            arguments += ["-o", f"iso15765.{name}:{','.join(map(str, ids))}"]
    done = subprocess.run([*arguments, "-d", "iso15765.subdissector,uds"], capture_output=True, check=True)
    found: dict[str, list[Row]] = {"doip_messages": [], "uds_messages": []}
    for packet in ET.fromstring(done.stdout).iter("packet"):
        number, last = 0, None
        for proto in packet.iter("proto"):
            fields: dict[str, str] = {}
            for field in proto.iter("field"):
                fields.setdefault(field.attrib.get("name", ""), field.attrib.get("show", ""))
            if proto.attrib["name"] == "frame":
                number = int(fields["frame.number"])
            elif proto.attrib["name"] == "doip":
                last = _doip(fields)
                found["doip_messages"].append({"packet_no": number, **last})
            elif proto.attrib["name"] == "uds":
                ends = {key: last[key] for key in ("source_address", "target_address")} if last is not None else {}
                found["uds_messages"].append({"packet_no": number, **ends, **_uds(fields)})
    return found


def _numbers(fields: dict[str, str], prefix: str, columns: dict[str, tuple[str, ...]]) -> Row:
    """The first field of each column that is there."""
    return {
        column: next((int(fields[f"{prefix}.{name}"], 0) for name in names if f"{prefix}.{name}" in fields), None)
        for column, names in columns.items()
    }


def _doip(fields: dict[str, str]) -> Row:
    row, vin = _numbers(fields, "doip", DOIP), fields.get("doip.vin")
    if vin is None or (vin.isascii() and "\\" not in vin):  # it escapes what is no text
        row["vin"] = vin
    if (row["payload_type"], row["doip_version"]) in ((5, 4), (5, 255)):
        del row["code"]  # it does not know the activation type of these versions
    for name in ("eid", "gid"):
        text = fields.get(f"doip.{name}")
        row[name] = None if text is None else bytes.fromhex(text.replace(":", ""))
    return row


def _uds(fields: dict[str, str]) -> Row:
    service, row = int(fields["uds.sid"], 0), _numbers(fields, "uds", UDS)
    if row["subfunction"] is None:
        del row["subfunction"]  # it has none, or Wireshark does not show it
    else:
        row["subfunction"] &= 0x7F
    return {
        **row,
        "is_response": bool(int(fields["uds.reply"], 0)),
        "service_id": int(fields["uds.err.sid"], 0) if row["negative_code"] is not None else service,
    }
