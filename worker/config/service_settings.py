"""Settings of the service `pcaplake run` and of its tools, from the environment (`PCAPLAKE_<NAME>`) and a YAML file.

docs/settings.md is generated from the names, units, limits and descriptions of this class. Precedence: arguments of the
call, environment, file, default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pcaplake.lake.config import FLEET_LEASE_TIMEOUT, Creation, LakeConfig

from .environment import (
    PREFIX,
    S3,
    implied_storage_options,
    read_aws_region,
    read_traces_endpoint,
    read_variable,
)
from .routes import Routes
from .settings import (
    Columns,
    LakeSettings,
    Pairs,
    Seconds,
    Size,
    TableProperties,
    WrongSetting,
    explain_validation_error,
    join_problems,
    select_shared_settings,
)

LOW_LATENCY: Mapping[str, Any] = {"flush_interval": 1.0, "max_batch_age": 0.25}
_DEFAULT_PORTS = 10  # that are tried if `http_port` is not set: workers on one machine need one each
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def read_memory_limit() -> int:
    """Bytes of memory that this process can use: the smaller of the cgroup limit and the machine's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue  # `max`, or no cgroups
    return min(limits)


class FleetSettings(BaseSettings, LakeSettings):
    """Settings of one worker service. Sizes are bytes or `128MB`, times are seconds or `90s`, `2m`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    queue: str | None = Field(None, description="Name of the SQS queue that receives the S3 notifications.")
    routes: Path | None = Field(
        None,
        description="YAML file of routes, which select the lake and the profile of each capture. Alternative: `lake`.",
    )
    lake: str | None = Field(None, description="URI of the lake that gets every capture, if there are no `routes`.")
    profile: Path | None = Field(
        None, description="With `lake`: YAML profile of its captures (ports, bus names, vehicle id)."
    )
    role: Literal["all", "worker", "committer"] = Field(
        "all", description="`worker` reads captures, `committer` commits what is staged, `all` does both."
    )
    region: str | None = Field(
        default_factory=read_aws_region, description="AWS region. Default: AWS_REGION, else what botocore finds."
    )
    ledger_table: str = Field(
        "pcaplake_ledger", description="DynamoDB table of the ledger. One table serves any number of lakes."
    )
    log_store: Literal["dynamodb", "put-if-absent"] = Field(
        "dynamodb",
        description="How table versions are written: `dynamodb` as Spark's S3DynamoDBLogStore does, `put-if-absent` with "
        "conditional writes only. All writers of a lake must use the same log store.",
    )
    lock_table: str = Field("delta_log", description="DynamoDB table that S3DynamoDBLogStore uses as lock table.")
    shards: int = Field(Creation().shards, ge=1, le=64, description="Shards of the ledger's work list, for new lakes.")
    storage_option: Annotated[Pairs, NoDecode] = Field(
        {},
        description="Options of the object store, as KEY=VALUE,KEY=VALUE or as a map; examples: `pcaplake docs object-stores`.",
    )
    table_property: Annotated[TableProperties, NoDecode] = Field(
        {}, description="Delta properties of new tables, as KEY=VALUE,KEY=VALUE or as a map."
    )
    partition_by: Annotated[Columns, NoDecode] = Field(
        None, description="Partition columns of new lakes, as date,vehicle_id or as a list. Default: `date`."
    )
    create: bool = Field(True, description="Create missing lakes and tables. If false, stop if one is missing.")
    raw: bool = Field(False, description="Store the bytes of every packet (column packets.raw).")

    threads: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        ge=1,
        le=1024,
        description="Decoder threads. Default: all cores.",
    )
    max_inflight_bytes: Size = Field(
        default_factory=lambda: read_memory_limit() // 3,
        description="Bytes of captures in memory at the same time. Default: a third of the memory limit.",
    )
    max_inflight: int = Field(128, ge=1, description="Messages that are requested or in progress at the same time.")
    poll_wait: float = Field(
        20.0, ge=1, le=20, description="Seconds that one long poll of the queue lasts. Each poll is a paid request."
    )
    visibility_cap: Seconds = Field(
        43_000.0, description="Longest time that a message stays invisible while it is in progress. SQS allows 12 h."
    )
    retry_first: Seconds = Field(
        5.0, description="Longest delay before a failed message is first delivered again. It doubles with each receive."
    )
    retry_most: Seconds = Field(900.0, description="Upper limit of that delay.")
    drain_timeout: Seconds = Field(
        60.0, description="After SIGTERM, captures in progress are finished and staged within this time."
    )
    preset: Literal["default", "low_latency"] = Field(
        "default", description="`low_latency`: smaller windows and batches, so that rows can be queried within seconds."
    )
    lease_timeout: Seconds = Field(
        FLEET_LEASE_TIMEOUT,
        description="A leader whose heartbeat stops is replaced after this time. Workers that stage nothing check the "
        "lease only a quarter as often.",
    )

    changed_captures: Literal["keep", "replace"] = Field(
        LakeConfig().changed_captures,
        description="If an object gets another content: `keep` the rows of both, or `replace`: the committer removes the rows of "
        "older contents, within minutes after those of the newest one are in every table.",
    )
    deletion_cost: bool = Field(
        False,
        description="In Kubernetes: write the work in progress to the pod's own annotation "
        "`controller.kubernetes.io/pod-deletion-cost`, so that idle pods are removed first. Needs the extra `cluster`, "
        "POD_NAME and POD_NAMESPACE, and permission to patch pods.",
    )
    deletion_cost_interval: Seconds = Field(
        30.0,
        description="Shortest time between two writes of this annotation. It is written only when its value changes.",
    )

    http_host: str = Field(
        "127.0.0.1", description="Listen address of /metrics, /healthz and /readyz. In a pod: 0.0.0.0."
    )
    http_port: int = Field(
        9464,
        ge=0,
        le=65_535,
        description="Port of /metrics, /healthz and /readyz; the log names it. 0 selects a free port. "
        "Default: 9464, or the next free port up to 9473.",
    )
    traces_endpoint: str | None = Field(
        default_factory=read_traces_endpoint,
        description="URL that receives traces (OTLP over HTTP). Needs the extra `otel`. Default: OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="`json`: one JSON object per line. `text`: readable lines."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged; `pcaplake docs logs` lists all events."
    )

    @classmethod
    def load(cls, config: Path | None = None, **given: Any) -> Self:
        """The settings; `config` defaults to PCAPLAKE_CONFIG. Raises WrongSetting, which says what to write."""
        named = config or (Path(path) if (path := read_variable("config")) else None)
        file = {} if named is None else _read_settings_file(named)
        values = {name: value for name, value in file.items() if read_variable(name) is None}
        options = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**(values | options))
        except ValidationError as error:
            text = explain_validation_error(error, cls.model_fields, options=options, file=named, lines=values)
            raise WrongSetting(text) from error

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.routes is not None and (self.lake is not None or self.profile is not None):
            raise ValueError("give either `routes`, or `lake` with `profile`")
        if self.drain_timeout <= self.poll_wait:
            raise ValueError("drain_timeout must be longer than poll_wait, because the last poll must end within it")
        return self

    @property
    def lake_config(self) -> LakeConfig:
        """How this process uses each lake. The preset changes only what is not set explicitly."""
        lake_config = LakeConfig(
            **select_shared_settings(self, LakeConfig),
            commits=self.role != "worker",
            only_commits=self.role == "committer",
            creation=Creation(
                allowed=self.create,
                partition_columns=self.partition_by,
                table_properties=self.table_property,
                shards=self.shards,
            ),
        )
        if self.preset == "default":
            return lake_config
        return replace(lake_config, **{n: v for n, v in LOW_LATENCY.items() if n not in self.model_fields_set})

    @property
    def http_ports(self) -> Sequence[int]:
        """The ports to try, in this order. A port that is set explicitly is the only one, because others rely on it."""
        return range(self.http_port, self.http_port + (1 if "http_port" in self.model_fields_set else _DEFAULT_PORTS))

    def storage_options_for(self, uri: str) -> dict[str, str]:
        """Options of the object store for one lake: `storage_option`, what it implies, and on S3 the region."""
        named = any(name.lower() in ("region", "aws_region") for name in self.storage_option)
        sets_region = uri.startswith(S3) and self.region and not named  # other stores refuse a region
        region = {"region": self.region} if sets_region and self.region else {}
        return {**region, **implied_storage_options(uri, self.storage_option), **self.storage_option}

    def load_routes(self) -> Routes:
        """The routes from `routes`, or from `lake` and `profile`. Raises WrongSetting if they cannot be used."""
        if self.routes is not None:
            return Routes.load(self.routes, storage_options=self.storage_option)
        if self.lake is None:
            raise WrongSetting(
                f"no lake is set: name a settings file with --config, or set {PREFIX}ROUTES to a routes file, or "
                f"{PREFIX}LAKE to the URI of one lake"
            )
        route = {"bucket": "*", "lake": self.lake, "name": "lake"}
        if self.profile is not None:
            route["profile"] = str(self.profile.absolute())
        return Routes.parse_routes([route], folder=Path("/"), storage_options=self.storage_option)

    def require_routes_and_queue_name(self) -> tuple[Routes, str]:
        """Raises WrongSetting with the problems of both."""
        try:
            routes = self.load_routes()
        except WrongSetting as wrong:
            problems = [str(wrong)]
            try:
                self.require_queue_name()
            except WrongSetting as also_wrong:
                problems.append(str(also_wrong))
            raise WrongSetting(join_problems(problems)) from wrong
        return routes, self.require_queue_name()

    def require_queue_name(self) -> str:
        """The queue's name. Raises WrongSetting if it is not set."""
        if not self.queue:
            raise WrongSetting(
                f"no queue is set: name a settings file with --config, or set {PREFIX}QUEUE to the name of the SQS queue; "
                "`pcaplake setup` creates a queue"
            )
        return self.queue


def _read_settings_file(path: Path) -> Mapping[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise WrongSetting(f"cannot read the settings {path}: {error.strerror}; give the path of a file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise WrongSetting(f"cannot read the settings {path}: {error}") from error
    if not isinstance(raw, Mapping):
        raise WrongSetting(f"{path} must have lines `name: value`, with the names that `pcaplake docs settings` lists")
    values = {str(name): value for name, value in raw.items()}
    for name in ("routes", "profile"):  # relative to the file that names them
        if isinstance(values.get(name), str):
            values[name] = str(path.parent / values[name])
    return values
