"""`pcaplake ingest --config`: captures go into the lake of a fleet and are read again there, under its lock table."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.worker.fleets import can_capture
from tests.worker.lakes import run

from .conftest import Aws
from .examined_fleet import Fleet


def test_captures_of_a_fleet_are_read_again(aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(aws, tmp_path)

    def route(vehicle: str) -> None:
        routes = [{"bucket": fleet.raw, "key": "a/*", "lake": fleet.uri, "vehicle_id": vehicle}]
        (tmp_path / "routes.yaml").write_text(json.dumps({"routes": routes}))

    def ingest(*given: str) -> tuple[int, dict[str, Any], str]:
        code, out, err = run(capsys, "ingest", f"s3://{fleet.raw}/a/", "--config", fleet.config, "--json", *given)
        return code, json.loads(out) if out else {}, err

    async def create() -> None:
        async with fleet.lake():
            pass

    route("old")
    asyncio.run(create())
    for number in range(3):
        key = f"a/{number}.pcap" if number else "elsewhere.pcap"
        aws.client("s3").put_object(Bucket=fleet.raw, Key=key, Body=can_capture(4, number))
    code, result, err = ingest()
    assert (code, result["captures"]) == (0, 2), err
    route("new")
    code, result, err = ingest()
    assert (code, result["already_ingested"], result["other_profile"]) == (0, 2, 2), err
    code, result, err = ingest("--reread")
    assert (code, result["reread"]) == (0, 2), err
    for table, rows in (("captures", 2), ("packets", 8), ("can_frames", 8)):
        found = DeltaTable(f"{fleet.uri}/{table}", storage_options={"allow_http": "true"})
        assert found.to_pyarrow_table()["vehicle_id"].to_pylist() == ["new"] * rows
        assert fleet.entry(table, found.version())["complete"] == {"S": "true"}
    code, _, err = run(capsys, "ingest", f"s3://{fleet.raw}/elsewhere.pcap", "--config", fleet.config)
    assert (code, "no route leads" in err) == (2, True)
    assert ingest("--replace-changed")[0] == 2
    assert run(capsys, "ingest", f"s3://{fleet.raw}/a/", "--lake", fleet.uri, "--ledger", tmp_path)[0] == 3
