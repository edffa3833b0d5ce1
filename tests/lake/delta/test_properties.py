"""Delta properties of new tables: each that would block them or that is none is refused by name, by every way in."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcaplake.lake.config import Creation, LakeConfig
from pcaplake.lake.delta import PROPERTIES, LogStore
from pcaplake.lake.delta.properties import KINDS, find_property_problem, parse_interval
from pcaplake.lake.lake import Lake
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import Settings, WrongSetting
from tests.worker import lakes
from tests.worker.adapters.memory_store import MemoryStore

REFUSED = {
    "delta.constraints.x": ("n > 0", "without this feature"),
    "delta.columnMapping.mode": ("name", "write none"),
    "delta.setTransactionRetentionDuration": ("interval 30 days", "forget which rows"),
    "delta.feature.deletionVectors": ("supported", "without this feature"),
    "delta.enableDeletionVectors": ("true", "write false"),
    "delta.enableChangeDataFeed": ("True", "write false"),
    "delta.enableRowTracking": ("true", "write false"),
    "delta.enableInCommitTimestamps": ("true", "write false"),
    "delta.enableIcebergCompatV2": ("true", "write false"),
    "delta.universalFormat.enabledFormats": ("iceberg", "without this feature"),
    "delta.minWriterVersion": ("7", "without this feature"),
    "delta.checkpointPolicy": ("v2", "write classic"),
    "delta.checkpointInterval": ("x", "write a number from 1"),
    "delta.randomPrefixLength": ("0", "write a number from 1"),
    "delta.dataSkippingNumIndexedCols": ("-2", "write a number from -1"),
    "delta.dataSkippingStatsColumns": ("interval 7 days", "write names of columns"),
    "delta.appendOnly": ("yes", "write true or false"),
    "delta.logRetentionDuration": ("7", "write a time such as"),
    "delta.deletedFileRetentionDuration": ("interval 1 month", "write a time such as"),
    "delta.isolationLevel": ("Snapshot", "write Serializable"),
    "delta.checkpointIntreval": ("5", r"did you mean delta\.checkpointInterval\?"),
    "delta.checkpointinterval": ("5", r"did you mean delta\.checkpointInterval\?"),
    "Delta.appendOnly": ("true", r"did you mean delta\.appendOnly\?"),
    "delta.zzz": ("5", "another beginning"),
    "appendOnly": ("true", r"without `delta\.` it changes nothing; did you mean delta\.appendOnly\?"),
    "checkpointintreval": ("5", r"did you mean delta\.checkpointInterval\?"),
}
ACCEPTED = {
    "owner": "",
    "delta": "x",
    "delta.checkpointInterval": "7",
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.appendOnly": "TRUE",
    "delta.dataSkippingStatsColumns": "TS, interfaces.`a b`,can_id, signal",
    "delta.logRetentionDuration": "interval 2 weeks",
    "delta.deletedFileRetentionDuration": "3 hours",
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.isolationLevel": "Serializable",
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_property_that_no_table_can_have_is_refused_by_every_way_in(key: str, tmp_path: Path) -> None:
    value, message = REFUSED[key]
    named = rf"{key.replace('.', '[.]')}={value}: .*{message}"
    for problem in (WrongSetting, FleetSettings.load), (WrongSetting, lambda **given: Settings.load(lake="x", **given)):
        with pytest.raises(problem[0], match=f"--table-property: {named}"):
            problem[1](table_property={"owner": "me", key: value})
    with pytest.raises(ValueError, match=named):
        LogStore(MemoryStore(), properties={key: value})


def test_properties_that_tables_can_have() -> None:
    assert find_property_problem(ACCEPTED) is None
    assert find_property_problem(PROPERTIES) is None
    assert Settings.load(lake="x", table_property=ACCEPTED).table_property == ACCEPTED
    assert find_property_problem({"foo": "bar", "team.retention": "7", "columnMapping": "x"}) is None
    assert FleetSettings.load(table_property=ACCEPTED).lake_config.creation.table_properties == ACCEPTED


async def test_a_lake_that_a_program_opens(tmp_path: Path) -> None:
    creation = Creation(table_properties={"delta.checkpointInterval": "x"})
    with pytest.raises(ValueError, match=r"delta\.checkpointInterval=x"):
        await Lake.open(tmp_path / "lake", lake_config=LakeConfig(creation=creation))


@pytest.mark.parametrize(
    ("columns", "unknown"),
    [("nope", "nope"), ("ts,nope", "nope"), ("can_id.nope, `no pe`", "no pe"), ("delta.ts", "delta")],
)
def test_statistics_of_a_column_that_no_table_has_are_refused(columns: str, unknown: str) -> None:
    wanted = {"delta.dataSkippingStatsColumns": columns}
    with pytest.raises(WrongSetting, match=f"no table of pcaplake has a column '{unknown}'"):
        Settings.load(lake="x", table_property=wanted)
    assert find_property_problem(wanted) is None, "a log alone does not know the tables"


def test_an_interval_that_is_longer_than_time() -> None:
    assert parse_interval("interval 99999999999 weeks") is None
    assert "delta.logRetentionDuration" in KINDS


@pytest.mark.parametrize("command", ["ingest", "setup"])
def test_a_command_ends_with_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text("queue: q\nlake: s3://lakes/x\ntable_property:\n  delta.checkpointInterval: x\n")
    capture = tmp_path / "c.pcap"
    capture.write_bytes(b"")
    options = {
        "ingest": (capture, "--lake", tmp_path / "lake", "--table-property", "delta.checkpointInterval=x"),
        "setup": ("--config", config),
    }
    code, _, err = lakes.run(capsys, command, *options[command])
    assert code == 2
    assert "delta.checkpointInterval=x: write a number from 1 on" in " ".join(err.split())
    assert not (tmp_path / "lake").exists()
