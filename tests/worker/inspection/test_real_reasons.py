"""Every capture of other people: inspect says of each byte that it did not decode which layer, key or fault was the reason."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from pcaplake.parser import CaptureError, Profile
from pcaplake.worker.inspection.content import HashedFile
from pcaplake.worker.inspection.inspection import inspect_capture
from tests.oracles import captures as real

ENCRYPTED, NEEDS_A_PROFILE = "encrypted", "needs a profile"
EXPLAINED = re.compile(
    r"(UDP|TCP) port \d+( \(.+\)| (before service discovery offered|without SOME/IP, though service discovery offers) it)?"
    r"|(link type|IP version|address family|IP protocol) \d+( \(.+\))?|ethertype 0x[0-9a-f]{4}( \(.+\))?"
    r"|IP fragment|IEEE 802.3 frame without an ethertype|interface that the file does not describe"
    r"|inside \w+( \((encrypted|changed)\))?|(short_header|bad_length|bad_value|too_deep|gap) in \w+"
    r"|(truncated|unreadable) in capture"
)
# what is in captures whose contents others have described: the reason, and the least bytes that it has
KNOWN = {
    "pcapplusplus/sll.pcap": {"TCP port 80 (HTTP)": 400_000, "UDP port 53 (DNS)": 500},
    "pcapplusplus/one_ipv6_http_stream.pcap": {"TCP port 80 (HTTP)": 5_000},
    "pcapplusplus/ip4_bad_fragment.pcap": {"ethertype 0x8847 (MPLS)": 46},
    "lightpcapng/many_interfaces.pcapng": {
        "TCP port 443 (TLS, encrypted)": 3_000,
        "UDP port 443 (HTTPS, encrypted)": 7_000,
    },
    "tcpdump/macsec-encrypted.pcap": {"inside macsec (encrypted)": 90},
    "tcpdump/macsec-changed.pcap": {"inside macsec (changed)": 90},
}


def inspect(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    file = HashedFile(io.BytesIO(data), threading.Event(), lambda count: None)
    return inspect_capture(file, path.as_uri(), Profile.default())


@pytest.mark.parametrize("path", real.paths(), ids=lambda path: path.name)
def test_every_byte_that_is_not_decoded_has_a_reason(path: Path) -> None:
    try:
        found = inspect(path)
    except CaptureError:
        return  # the command says that it is none
    reasons = found["undecoded"]["reasons"]
    for reason in reasons:
        assert EXPLAINED.fullmatch(reason), reason
    assert 0 <= found["undecoded"]["bytes"] <= max(found["bytes"], found["size"])
    for reason, least in KNOWN.get(str(path.relative_to(real.FOLDER)), {}).items():
        assert reasons[reason]["bytes"] >= least, reasons


def test_captures_whose_reasons_are_known_are_there() -> None:
    folder = real.require()
    assert all((folder / name).exists() for name in KNOWN)
