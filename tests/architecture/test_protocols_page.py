"""docs/protocols.md is generated from the declarations, so a new protocol is on it without another file to change."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import dpkt
import pytest

from pcaplake.parser import protocols
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer, Rows
from pcaplake.parser.protocols.ethernet import ETHERTYPE
from pcaplake.parser.schemas import TABLES
from tools import protocols_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs/protocols.md").read_text() == protocols_page.render_markdown(), "make docs"


def test_every_protocol_and_every_column_that_is_filled_is_on_it() -> None:
    """Of the segments of a stream no packet is named, and a header in a trailer is part of its frame."""
    page = protocols_page.render_markdown()
    shown = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    tails = {layer.tail for layer in protocols.LAYERS}
    assert {layer.protocol for layer in protocols.LAYERS if layer not in tails} <= shown
    for rows in protocols.ROWS:
        for column in rows.columns:
            assert re.search(rf"^\| `{rows.table}` \| .*`{column}`", page, re.MULTILINE), (rows.table, column)
    for ports in (protocols.UDP_PROTOCOLS, protocols.TCP_PROTOCOLS):
        assert all(f"that the profile names `{name}`" in page for name in ports)


def _module(doc: str) -> ModuleType:
    module = ModuleType("made", doc)
    inner = KeySpace("kind of a made message", 4)
    carrier = Layer(
        type("Made", (dpkt.Packet,), {"__hdr__": (("kind", "B", 0),)}),
        name="made",
        under=[ETHERTYPE[0x88B5]],
        selects=[inner(lambda h: h.kind)],
    )
    child = Layer(carrier.packet, name="made_child", protocol="made", under=[inner[1:4]])
    vars(module).update(LAYERS=(carrier, child), ROWS=(Rows("faults", child, dict(need=child.kind)),))
    return module


def test_one_module_is_all_that_a_protocol_needs() -> None:
    doc = "Made over Ethernet, for this test.\n\nLayout: none that\nanyone wrote.\n\nMore.\n\nNot read: the rest."
    lines = protocols_page._render_module(_module(doc)).splitlines()
    assert lines[0] == "## Made"
    assert "- **Layout**: none that anyone wrote." in lines
    assert "- **Not read**: the rest." in lines
    assert "| `made` | ethertype 0x88B5 |" in lines  # and not the key that it selects its own child by
    assert "| `faults` | `need` |" in lines
    assert "need" in TABLES["faults"].columns


@pytest.mark.parametrize("missing", ["Layout", "Not read"])
def test_a_module_that_does_not_say_it_is_refused_with_its_name(missing: str) -> None:
    doc = "Made.\n\nLayout: A.\n\nNot read: B.".replace(f"{missing}: ", "")
    with pytest.raises(ValueError, match=rf"made.*`{missing}: `"):
        protocols_page._render_module(_module(doc))
