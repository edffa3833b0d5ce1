"""HomePlug AV: management messages (MME) of HomePlug AV and Green PHY. With SLAC, a car finds its charging station.

Layout: Wireshark packet-homeplug-av.c; ISO 15118-3:2015, annex A, as the structures of EVerest's libslac (slac.hpp) have it;
HomePlug Green PHY 1.1, chapter 11. Numbers have the least significant byte first. A byte for the fragment and a sequence number
follow the type, but not in messages of vendors of version 0 (HomePlug AV 1.0).

The payload of a row is what follows the fields that have columns: attenuation in decibels, a byte for each group of carriers
(CM_ATTEN_CHAR.IND, CM_ATTEN_PROFILE.IND), or the key of the network (CM_SLAC_MATCH.CNF, CM_SET_KEY.REQ). Messages have no length,
so the padding of a short frame is part of the payload. The fragments of a message are rows, and are not put together.

Not read: cipher suites; messages of SLAC that have a signature; the fields of other messages (the payload has all of these).
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Case, Column, FixedBytes, Layer, Rows, Term

from .ethernet import CARRIED_ETHERNET, ETHERNET, ETHERTYPE, Bare

FORM, VENDOR = KeySpace("MME with fragments", 1), KeySpace("MME of a vendor", 1)
TYPE, OTHER_TYPE = KeySpace("MME type"), KeySpace("MME", 1)
UNSIGNED, SIGNED = KeySpace("MME type without a signature"), KeySpace("MME with a signature", 1)
MODES = ("REQ", "CNF", "IND", "RSP")  # by the last two bits of a type
# by type without mode, from 0x6000 in steps of 4
_STATION_TO_STATION = """
    UNASSOCIATED_STA ENCRYPTED_PAYLOAD SET_KEY GET_KEY SC_JOIN CHAN_EST TM_UPDATE AMP_MAP BRG_INFO CONN_NEW CONN_REL CONN_MOD
    CONN_INFO STA_CAP NW_INFO GET_BEACON HFID MME_ERROR NW_STATS LINK_STATS ROUTE_INFO UNREACHABLE MH_CONN_NEW
    EXTENDED_TONEMASK STA_IDENTIFY SLAC_PARM START_ATTEN_CHAR ATTEN_CHAR PKCS_CERT MNBC_SOUND VALIDATE SLAC_MATCH
    SLAC_USER_DATA ATTEN_PROFILE
"""
NAMES = {
    0x6000 + 4 * number + mode: f"CM_{name}.{MODES[mode]}"
    for number, name in enumerate(_STATION_TO_STATION.split())
    for mode in range(4)
}


class Mme(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("version", "B", 1), ("type", "H", 0))


class FragmentableMme(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (*Mme.__hdr__, ("fmi", "B", 0), ("sequence", "B", 0))
    __bit_fields__ = {"fmi": (("fragments", 4), ("fragment", 4))}


class Application(dpkt.Packet):
    __hdr__ = (("application_type", "B", 0), ("security_type", "B", 0))


def _message(name: str, under: KeySpace, *types: int, **fields: str) -> Layer:
    """A layer of messages of these types that begin with these fields."""
    hdr = tuple((field, code, bytes(int(code[:-1])) if code[-1] == "s" else 0) for field, code in fields.items())
    packet: type[dpkt.Packet] = type(name, (dpkt.Packet,), {"__hdr__": hdr, "__byte_order__": "<"})
    return Layer(packet, name=name, protocol="homeplug_av", under=[under[n] for n in types], bare=True)


_APPLICATION = dict(application_type="B", security_type="B")
_SOUNDS = dict(sounds="B", timeout="B", response_type="B", forwarding_mac="6s")
_ATTENUATED = dict(**_APPLICATION, pev_mac="6s", run_id="8s", pev_id="17s", evse_id="17s")
_MATCH = dict(
    **_APPLICATION, size="H", pev_id="17s", pev_mac="6s", evse_id="17s", evse_mac="6s", run_id="8s", reserved="8s"
)
_NONCES = dict(my_nonce="I", your_nonce="I", protocol_id="B", run_number="H", message_number="B", cco_capability="B")

HOMEPLUG = Layer(
    Mme,
    name="homeplug_av",
    under=[ETHERTYPE[0x88E1]],
    header=lambda h: 0,
    selects=[VENDOR(lambda h: h.type >> 15, when=lambda h: h.version == 0), FORM(lambda h: 0)],
)
PLAIN = Layer(
    Mme, name="homeplug_av_plain", protocol="homeplug_av", under=[VENDOR[1]], selects=[OTHER_TYPE(lambda h: 0)]
)
FRAGMENTABLE = Layer(
    FragmentableMme,
    name="homeplug_av_fragmentable",
    protocol="homeplug_av",
    under=[FORM[0]],
    selects=[TYPE(lambda h: h.type, when=lambda h: h.fragment == 0), OTHER_TYPE(lambda h: 0)],
)
# with a signature, these messages have other fields
SIGNABLE = Layer(
    Application,
    name="homeplug_av_signable",
    protocol="homeplug_av",
    under=[TYPE[n] for n in (0x606A, 0x606E, 0x606F, 0x6076, 0x607C, 0x607D)],
    header=lambda h: 0,
    bare=True,
    selects=[UNSIGNED(lambda h: HOMEPLUG.type, when=lambda h: h.security_type == 0), SIGNED(lambda h: 0)],
)
SIGNED_MESSAGE = _message("homeplug_av_signed", SIGNED, 0, **_APPLICATION)
PARM_REQ = _message("cm_slac_parm_req", TYPE, 0x6064, **_APPLICATION, run_id="8s")
PARM_CNF = _message("cm_slac_parm_cnf", TYPE, 0x6065, sound_target_mac="6s", **_SOUNDS, **_APPLICATION, run_id="8s")
START_ATTEN_CHAR = _message("cm_start_atten_char_ind", UNSIGNED, 0x606A, **_APPLICATION, **_SOUNDS, run_id="8s")
ATTEN_CHAR_IND = _message("cm_atten_char_ind", UNSIGNED, 0x606E, **_ATTENUATED, sounds="B", groups="B")
ATTEN_CHAR_RSP = _message("cm_atten_char_rsp", UNSIGNED, 0x606F, **_ATTENUATED, result="B")
SOUND = _message("cm_mnbc_sound_ind", UNSIGNED, 0x6076, **_APPLICATION, pev_id="17s", sounds="B", run_id="8s")
VALIDATE_REQ = _message("cm_validate_req", TYPE, 0x6078, signal_type="B", timer="B", result="B")
VALIDATE_CNF = _message("cm_validate_cnf", TYPE, 0x6079, signal_type="B", toggles="B", result="B")
MATCH_REQ = _message("cm_slac_match_req", UNSIGNED, 0x607C, **_MATCH)
MATCH_CNF = _message("cm_slac_match_cnf", UNSIGNED, 0x607D, **_MATCH, network_id="7s", reserved_too="B")
ATTEN_PROFILE = _message("cm_atten_profile_ind", TYPE, 0x6086, pev_mac="6s", groups="B", reserved="B")
SET_KEY_REQ = _message("cm_set_key_req", TYPE, 0x6008, key_type="B", **_NONCES, network_id="7s", new_eks="B")
SET_KEY_CNF = _message("cm_set_key_cnf", TYPE, 0x6009, result="B", **_NONCES)
OTHER = Layer(
    Bare, name="homeplug_av_other", protocol="homeplug_av", under=[OTHER_TYPE[0]], header=lambda h: 0, bare=True
)
MESSAGES = (
    *(PARM_REQ, PARM_CNF, START_ATTEN_CHAR, ATTEN_CHAR_IND, ATTEN_CHAR_RSP, SOUND, VALIDATE_REQ, VALIDATE_CNF),
    *(MATCH_REQ, MATCH_CNF, ATTEN_PROFILE, SET_KEY_REQ, SET_KEY_CNF, SIGNED_MESSAGE, OTHER),
)
LAYERS = (HOMEPLUG, PLAIN, FRAGMENTABLE, SIGNABLE, *MESSAGES)
_NUMBERS = (
    "application_type",
    "security_type",
    "sounds",
    "response_type",
    "groups",
    "signal_type",
    "toggles",
    "result",
)
_BYTES = ("run_id", "pev_id", "evse_id", "network_id")
_ADDRESSES = ("sound_target_mac", "forwarding_mac", "pev_mac", "evse_mac")


def _rows(layer: Layer) -> Rows:
    fields = {field for field, _, _ in layer.packet.__hdr__}
    columns: dict[str, Column | FixedBytes] = dict(
        eth_src=(ETHERNET.src.text("mac"), CARRIED_ETHERNET.src.text("mac")),
        eth_dst=(ETHERNET.dst.text("mac"), CARRIED_ETHERNET.dst.text("mac")),
        version=HOMEPLUG.version,
        mme_type=HOMEPLUG.type,
        message=HOMEPLUG.type.names(NAMES),
        fragment=FRAGMENTABLE.fragment,
        fragments=FRAGMENTABLE.fragments,
    )
    columns |= {name: getattr(layer, name) for name in _NUMBERS if name in fields}
    columns |= {name: layer.fixed_bytes(name) for name in _BYTES if name in fields}
    columns |= {name: getattr(layer, name).text("mac") for name in _ADDRESSES if name in fields}
    if (timeout := _timeout_ms(layer, fields)) is not None:
        columns["timeout_ms"] = timeout
    return Rows("homeplug_messages", layer, columns)


def _timeout_ms(layer: Layer, fields: set[str]) -> Term | Case | None:
    if "timeout" in fields:
        return layer.timeout * 100
    return layer.timer * 100 + 100 if "timer" in fields else None


ROWS = tuple(map(_rows, MESSAGES))
