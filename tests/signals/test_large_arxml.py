"""ARXML: one pass and one entry in the cache for all clusters of a file, clusters by name, CAN frames as cantools reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.arxml_file import FRAMES, SIGNALS, write_description
from pcaplake.signals import DatabaseError, Databases, Message, database_cache, load_database
from pcaplake.signals.arxml import networks
from pcaplake.signals.cantools_reader import read_with_cantools
from pcaplake.signals.loaded import DatabaseNetworks
from tests.signals import frame_files
from tests.signals.arxml_files import classic_service, named, package, reference, tag
from tests.signals.can_arxml_files import at, can_file
from tests.signals.cantools_files import fetch
from tests.signals.container_files import BIG, SHORT, arxml, base, i_signal, mapped, pdu

CLUSTERS = """
databases: {can: vehicle.arxml#Can0, flexray: vehicle.arxml#Flex0, ethernet: vehicle.arxml#Eth0, all: vehicle.arxml}
buses: {"1": can, "2": flexray, "*": ethernet}
"""


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a cluster of each kind, and more than what is kept."""
    path = tmp_path_factory.mktemp("large") / "vehicle.arxml"
    assert write_description(path, 1.5).size > database_cache.WORTH_KEEPING
    (path.parent / "buses.yaml").write_text(CLUSTERS)
    return path


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, own_cache: None) -> list[Path]:
    """Each pass over a file; the cache is a new folder."""
    found: list[Path] = []
    read = networks.read_networks

    def counted(path: Path) -> DatabaseNetworks | None:
        found.append(path)
        return read(path)

    monkeypatch.setattr(networks, "read_networks", counted)
    return found


@pytest.mark.slow
def test_a_file_is_read_once_for_all_its_clusters(description: Path, passes: list[Path], tmp_path: Path) -> None:
    databases = Databases.from_file(description.with_name("buses.yaml"))
    assert len(passes) == 1
    assert not databases.unreadable_declarations
    assert databases.kinds == {"can", "flexray", "pdu"}
    assert all(len(one.messages) >= FRAMES for one in databases.networks.values())
    (entry,) = (tmp_path / ".cache" / "pcaplake" / "databases").iterdir()
    for name in ("Can0", "Flex0", None):  # another run
        load_database(description, name)
    assert len(passes) == 1
    assert list(entry.parent.iterdir()) == [entry]


def test_a_small_file_is_read_once_for_all_its_clusters(passes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "car.arxml").write_text(arxml(SHORT, BIG), encoding="utf-8")
    (tmp_path / "buses.yaml").write_text("databases: {a: car.arxml#Can, b: car.arxml#Flex}\nbuses: {1: a, 2: b}\n")
    databases = Databases.from_file(tmp_path / "buses.yaml")
    assert [(bus, message.kind) for bus, message in databases] == [("1", "can"), ("2", "flexray")]
    assert len(passes) == 1


@pytest.mark.slow
def test_a_cluster_by_name(description: Path, own_cache: None) -> None:
    whole = load_database(description)
    assert not whole.lost
    parts = [load_database(description, name) for name in ("Can0", "Flex0", "Eth0")]
    for part, kind in zip(parts, ("can", "flexray", "pdu"), strict=True):
        assert {message.kind for message in part.messages} == {kind}
        assert [len(message.signals) for message in part.messages] == [SIGNALS] * FRAMES
        assert not list(part.services)
    assert [one for part in parts for one in part.messages] == list(whole.messages)
    assert len(list(whole.services)) == 10  # of the adaptive platform, which has no clusters
    assert {message.cycle_ms for message in parts[0].messages} == {20.0}
    for wrong in ("Can", "Service0", "Shared"):
        with pytest.raises(DatabaseError, match=rf"vehicle\.arxml has no network '{wrong}'; it has Can0, Eth0, Flex0"):
            load_database(description, wrong)


def test_services_of_an_ethernet_cluster(tmp_path: Path) -> None:
    path = tmp_path / "car.arxml"
    path.write_text(package(*classic_service(), named("CAN-CLUSTER", "Can")), encoding="utf-8")
    assert [one.name for one in load_database(path, "Cluster").services] == ["Doors.State"]
    assert list(load_database(path, "Can").services) == []
    assert [one.name for one in load_database(path).services] == ["Doors.State"]


def test_a_set_of_identifiers_is_in_the_cluster_of_its_triggerings(tmp_path: Path) -> None:
    text = frame_files.arxml(frame_files.REPEATED)
    identifier = tag("HEADER-ID", 0x79) + reference("PDU-TRIGGERING-REF", "PDU-TRIGGERING", "/P/Ethernet/E/Trigger")
    identifiers = tag("I-PDU-IDENTIFIERS", named("SO-CON-I-PDU-IDENTIFIER", "I", identifier))
    extra = named("SOCKET-CONNECTION-IPDU-IDENTIFIER-SET", "Set", identifiers)
    (tmp_path / "car.arxml").write_text(text.replace("<ELEMENTS>", f"<ELEMENTS>{extra}", 1), encoding="utf-8")
    assert sorted(one.id for one in load_database(tmp_path / "car.arxml", "Ethernet").messages) == [0x77, 0x79]
    assert {one.kind for one in load_database(tmp_path / "car.arxml", "Flex").messages} == {"flexray"}


def test_pdus_of_two_clusters_with_one_id(tmp_path: Path) -> None:
    """Both are there by the name of the cluster; PDUs have no bus, so of the whole file the first one is read."""
    text = frame_files.arxml(frame_files.REPEATED)
    cluster = text[text.index("<ETHERNET-CLUSTER>") : text.index("</ETHERNET-CLUSTER>") + len("</ETHERNET-CLUSTER>")]
    other = cluster.replace(">Ethernet<", ">Other<").replace("/P/Ethernet/", "/P/Other/").replace("/P/Body", "/P/Mux")
    (tmp_path / "car.arxml").write_text(text.replace(cluster, cluster + other), encoding="utf-8")
    for name, message in (("Ethernet", "Body"), ("Other", "Mux")):
        assert [one.name for one in load_database(tmp_path / "car.arxml", name).messages] == [message]
    whole = load_database(tmp_path / "car.arxml")
    assert [one.name for one in whole.messages if one.kind == "pdu"] == ["Body"]
    assert list(whole.lost.values()) == ["Body of another network has the same id 0x77, and is read instead"]


def test_a_file_with_nothing_to_read(tmp_path: Path) -> None:
    path = tmp_path / "car.arxml"
    path.write_text(package(named("APPLICATION-SW-COMPONENT-TYPE", "Component")), encoding="utf-8")
    loaded = load_database(path)
    assert (loaded.messages, list(loaded.services), loaded.skipped, loaded.lost) == ((), [], {}, {})
    with pytest.raises(DatabaseError, match="it has no names"):
        load_database(path, "Can")


# -- equal to cantools ------------------------------------------------------------------------------------------------
EQUAL = (
    "compu_method_no_category.arxml",
    "ecu-extract-4.2.arxml",
    "system-3.2.3.arxml",
    "system-4.2.arxml",
    "system-float-limits-missing-compu-scale-4.2.arxml",
    "system-float-values.arxml",
    "system-missing-rational-4.2.arxml",
)


def _in_order(messages: tuple[Message, ...]) -> list[Message]:
    return sorted(messages, key=lambda message: message.name)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_cantools(name: str) -> None:
    """Multiplexed and secured PDUs, floats, value tables, units, limits, cycles, octal numbers and relative references."""
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    path = folder / "arxml" / name
    theirs, ours = read_with_cantools(path).select(None), load_database(path)
    plain = tuple(one for one in ours.messages if not one.containers)  # test_containers.py compares the others
    if name == "system-4.2.arxml":
        assert len(plain) == len(ours.messages) - 1
        # cantools says that 7 is invalid only as a scaled value
        plain = tuple(_without_invalid(one, "MultiplexedMessage_selector1", 7) for one in plain)
        assert [place.partition(", ")[2] for place in ours.lost] == ["/SwBaseType/S16_1C", "/SwBaseType/S16_SM"]
    assert _in_order(plain) == _in_order(theirs.messages)
    assert ours.skipped == {
        reason: number - (len(ours.messages) - len(plain)) for reason, number in theirs.skipped.items()
    }
    for bus, network in read_with_cantools(path).networks.items():
        if bus is not None:
            assert len(load_database(path, bus).messages) >= len(network.messages)


def _without_invalid(message: Message, signal: str, invalid: float) -> Message:
    signals = tuple(
        replace(one, invalid=None) if (one.name, one.invalid) == (signal, invalid) else one for one in message.signals
    )
    return replace(message, signals=signals)


@pytest.mark.slow
def test_equal_to_cantools_on_a_large_file(description: Path, own_cache: None) -> None:
    theirs = read_with_cantools(description).select("Can0")
    ours = load_database(description, "Can0")
    assert ours.messages == theirs.messages
    assert len(ours.messages) == FRAMES


@pytest.mark.parametrize(
    "name",
    ["system-missing-denominator-4.2.arxml", "system-missing-factor-4.2.arxml", "system-dangling-reference-4.2.arxml"],
)
def test_one_wrong_element_does_not_refuse_the_file(name: str) -> None:
    """cantools refuses it."""
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    loaded = load_database(folder / "arxml" / name)
    assert bool(loaded.messages) == ("missing" in name)
    listed = "an offset and no factor" if "factor" in name else "is not in the file"
    assert all(listed in reason for reason in loaded.lost.values())


# -- what cantools does not read --------------------------------------------------------------------------------------
def test_several_pdus_of_a_can_frame(tmp_path: Path) -> None:
    elements = [i_signal(name, 16, base("u")) for name in ("One", "Two")]
    elements += [pdu("First", 2, mapped("One", 0)), pdu("Second", 2, mapped("Two", 0))]
    path = can_file(tmp_path / "car.arxml", 0x123, at("First", 0) + at("Second", 16), *elements)
    (message,) = load_database(path).messages
    assert [(one.name, one.start) for one in message.signals] == [("One", 0), ("Two", 16)]


@pytest.mark.parametrize("identifier", [1 << 11, -1])
def test_an_identifier_with_too_many_bits(tmp_path: Path, identifier: int) -> None:
    path = can_file(tmp_path / "car.arxml", identifier, at("First", 0), i_signal("One", 16, base("u")), pdu("First", 2))
    loaded = load_database(path)
    assert not loaded.messages
    assert list(loaded.lost.values()) == [f"its identifier is {identifier}, and identifiers have 11 bits"]


def test_a_frame_without_signals_is_counted(tmp_path: Path) -> None:
    path = can_file(tmp_path / "car.arxml", 1, at("First", 0), named("I-SIGNAL-I-PDU", "First", tag("LENGTH", 8)))
    assert load_database(path).skipped == {"no signals": 1}
    assert load_database(path, "Can").skipped == {"no signals": 1}


def test_a_relative_reference_without_a_base(tmp_path: Path) -> None:
    """It refers to nothing, and only its signal is lost."""
    elements = [i_signal("One", 16, base("u")).replace("/P/u<", "u<"), i_signal("Two", 16, base("u"))]
    elements.append(pdu("First", 4, mapped("One", 0), mapped("Two", 16)))
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("First", 0), *elements)).messages
    assert [one.name for one in message.signals] == ["Two"]
    assert [(one.signal.name, one.reason) for one in message.unreadable] == [
        ("One", "its base type u is not in the file")
    ]


def test_limits_of_a_scale_are_those_of_the_value(tmp_path: Path) -> None:
    """A negative factor turns them round."""
    numerator = tag("COMPU-NUMERATOR", tag("V", 10) + tag("V", -2))
    coefficients = tag("COMPU-RATIONAL-COEFFS", numerator + tag("COMPU-DENOMINATOR", tag("V", 1)))
    scale = tag("LOWER-LIMIT", 0) + tag("UPPER-LIMIT", 100) + coefficients
    elements = [
        frame_files.method("Down", "LINEAR", scale),
        i_signal("One", 16, base("u") + reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Down")),
        pdu("First", 2, mapped("One", 0)),
    ]
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("First", 0), *elements)).messages
    assert (message.signals[0].minimum, message.signals[0].maximum) == (-190, 10)


@pytest.mark.parametrize(("text", "invalid"), [("0xFFFF", 65535), ("017", 15), ("0.5", None), ("1e999", None)])
def test_an_invalid_value(tmp_path: Path, text: str, invalid: float | None) -> None:
    """One that is no raw value is listed, and costs only itself."""
    value = tag("INVALID-VALUE", tag("NUMERICAL-VALUE-SPECIFICATION", tag("VALUE", text)))
    elements = [i_signal("One", 16, base("u") + value), pdu("First", 2, mapped("One", 0))]
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("First", 0), *elements))
    assert [one.invalid for one in loaded.messages[0].signals] == [invalid]
    assert bool(loaded.lost) == (invalid is None)
