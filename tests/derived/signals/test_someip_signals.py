"""`pcaplake signals` on SOME/IP messages: every row once, only what changed again, and what no description has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pcaplake.lake.lake import Lake
from pcaplake.signals import Databases
from pcaplake.signals.database import Network
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import REQUEST, RESPONSE, Services
from pcaplake.signals.tables import wide_table_name
from pcaplake.signals.wide import require_wide_messages, wide_schema_named
from pcaplake.worker.cli.app import run_command_line
from tests.derived.signals.runs import decode
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake
from tests.signals.someip.traffic import MESSAGES, PAYLOADS, Drawn, Traffic, draw_messages
from tests.worker.adapters.faults import Killed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return draw_messages()


@pytest.fixture
def traffic(tmp_path: Path, drawn: Drawn) -> Traffic:
    return Traffic(tmp_path, drawn)


@pytest.fixture
def lake(tmp_path: Path, traffic: Traffic) -> SignalLake:
    lake = SignalLake(tmp_path / "lake")
    traffic.fill(lake)
    lake.can(5)
    return lake


def services(lake: SignalLake) -> set[int]:
    return set(lake.table("signals")["service_id"].drop_null().to_pylist())


def test_every_row_once_from_run_to_run(lake: SignalLake, traffic: Traffic) -> None:
    known = traffic.describe()
    tally = decode(lake, known)
    assert lake.signals() == lake.expected(known)
    assert services(lake) == {message.service_id for message, _ in traffic.drawn}
    assert (tally.counts.someip.decoded, tally.counts.someip.unknown.total()) == (5 * MESSAGES, 0)
    assert decode(lake, known).rows == 0
    traffic.fill(lake)
    decode(lake, known)
    assert lake.signals() == lake.expected(known)


def test_the_catalog_names_each_path(lake: SignalLake, traffic: Traffic) -> None:
    decode(lake, traffic.describe())
    catalog = lake.table("signal_catalog").to_pylist()
    listed = {(row["message"], row["signal"]) for row in catalog if row["service_id"] is not None}
    decoded = {
        (row["message"], re.sub(r"\d+(?=\])", "", row["signal"]))
        for row in lake.table("signals").to_pylist()
        if row["service_id"] is not None
    }
    assert decoded <= listed
    version = lake.version("signal_catalog")
    decode(lake, traffic.describe())
    assert lake.version("signal_catalog") == version


def test_other_descriptions_decode_only_what_changed_again(lake: SignalLake, traffic: Traffic) -> None:
    decode(lake, traffic.describe(2))
    for count, changed in ((3, 1), (1, 2), (MESSAGES, 3)):
        traffic.fill(lake)
        known = traffic.describe(count)
        assert decode(lake, known).decoded_again == changed
        assert lake.signals() == lake.expected(known)


def test_descriptions_that_come_later(lake: SignalLake, traffic: Traffic, tmp_path: Path) -> None:
    decode(lake, databases(tmp_path, TWO_BUSES))
    assert services(lake) == set()
    known = traffic.describe()
    assert decode(lake, known).decoded_again == MESSAGES
    assert lake.signals() == lake.expected(known)
    gone = databases(tmp_path, TWO_BUSES)
    decode(lake, gone)
    assert lake.signals() == lake.expected(gone)
    assert services(lake) == set()


def test_wide_tables_follow(lake: SignalLake, traffic: Traffic) -> None:
    """A later message, beside one of CAN; then new frames, and another definition with other columns, and a kill."""
    first, second = (message.name for message, _ in traffic.drawn[:2])
    known, tables = traffic.describe(2), [wide_table_name(name) for name in (first, second, "Speed")]
    for wide in ((first,), (first, second, "Speed")):
        tally = decode(lake, known, wide=wide)
        check_wide(lake, known, wide)
    assert tally.wide == dict(zip(tables, (0, PAYLOADS, 5), strict=True))
    assert tally.counts.someip.decoded == 0, "they count once, for `signals`"

    other, payloads = traffic.drawn[-1]
    traffic.drawn[1] = replace(traffic.drawn[1][0], parameters=other.parameters), payloads
    traffic.fill(lake)
    known = traffic.describe(2)

    def step(name: str) -> None:
        if name == f"after {tables[1]}.decode someip":
            raise Killed

    with pytest.raises(Killed):
        decode(lake, known, step, wide=wide)
    tally = decode(lake, known, wide=wide)
    check_wide(lake, known, wide)
    assert tally.wide == dict(zip(tables, (PAYLOADS, 2 * PAYLOADS, 0), strict=True)), "one table begins again"


def check_wide(lake: SignalLake, known: Databases, names: Sequence[str]) -> None:
    assert lake.signals() == lake.expected(known)
    for name in names:
        assert lake.wide(name) == lake.expected_wide(known, name)
        assert lake.table(wide_table_name(name)).schema.names == wide_schema_named(known, name).names


def test_messages_that_cannot_have_a_table(tmp_path: Path, drawn: Drawn) -> None:
    known, name = databases(tmp_path, TWO_BUSES), drawn[0][0].name
    request, response = (replace(drawn[0][0], message_type=number) for number in (REQUEST, RESPONSE))
    both = replace(known, services=Services.from_messages([request, response]))
    with pytest.raises(DatabaseError, match=rf"several types .* write {name}\.request or {name}\.response"):
        require_wide_messages(both, [name])
    require_wide_messages(both, ["Speed", f"{name}.request", f"{name}.response"])
    speed = replace(next(message for _, message in known if message.name == "Speed"), name=name)
    clash = replace(both, networks={"*": Network.from_messages([speed], "")})
    with pytest.raises(DatabaseError, match=r"a message of SOME/IP and of can, which cannot share a table"):
        require_wide_messages(clash, [name])


def test_the_report_names_what_no_description_has(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def create() -> None:
        async with await Lake.open(tmp_path / "lake"):
            pass

    asyncio.run(create())
    lake = SignalLake(tmp_path / "lake")
    traffic.fill(lake)
    lake.someip(traffic.drawn[0][0], [b""])
    traffic.describe(MESSAGES - 1)
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["signals", "--lake", "lake", "--databases", "tables", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["someip"]
    last = traffic.drawn[-1][0]
    assert found["decoded"] == 5 * (MESSAGES - 1) + 1
    assert found["unknown"] == [
        {
            "service_id": last.service_id,
            "method_id": last.method_id,
            "message_type": last.message_type,
            "interface_version": last.interface_version or 0,
            "messages": 5,
        }
    ]
    assert found["short"] == {traffic.drawn[0][0].name: 1}
    (tmp_path / "lake" / "_pcaplake" / "spark" / "signals" / "0" / "state.json").unlink()
    assert run_command_line(["signals", "--lake", "lake", "--databases", "tables"]) == 0
    assert (
        f"SOME/IP: 5 messages of 1 kind that no description has, most of service 0x{last.service_id:04x}, "
        f"method 0x{last.method_id:04x}, type 0x{last.message_type:02x}"
    ) in capsys.readouterr().out
