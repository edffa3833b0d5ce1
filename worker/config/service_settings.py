"""Every setting of the service `pcaplake run` and of the tools around it: environment (`PCAPLAKE_<NAME>`) and a YAML file.

Knows names, units, limits and what each is for; docs/settings.md is made from this class. Must not know what is done
with them. What is given wins in this order: the call, the environment, the file, the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from parser.tables import TABLES

from .lake.knobs import Knobs
from .routes import Routes, WrongRoutes
from .settings import (
    PREFIX,
    S3,
    Columns,
    Pairs,
    Seconds,
    Settings,
    Size,
    WrongSetting,
    aws_region,
    explained,
    plain_http,
    suggested,
    traces_endpoint,
    variable,
    variables,
)

LOW_LATENCY: Mapping[str, Any] = {"flush_interval": 1.0, "max_batch_age": 0.25}
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Bytes this process may have: the smaller of the control group's limit and the machine's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue  # `max`, or no control groups
    return min(limits)


class FleetSettings(BaseSettings):
    """One worker service. Sizes in bytes or as `128MB`, times in seconds or as `90s`, `2m`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    queue: str | None = Field(None, description="Name of the SQS queue with the notifications of S3.")
    routes: Path | None = Field(
        None,
        description="YAML file of routes: which capture goes to which lake, with which profile. Or name one `lake`.",
    )
    lake: str | None = Field(
        None, description="URI of the one lake that takes every capture, where there are no `routes`."
    )
    profile: Path | None = Field(
        None, description="YAML profile of the one lake's captures: ports, bus names, vehicle id."
    )
    role: Literal["all", "worker", "committer"] = Field(
        "all", description="`worker` reads captures, `committer` commits what is staged, `all` does both."
    )
    region: str | None = Field(
        default_factory=aws_region, description="AWS region; by default AWS_REGION, else what botocore finds."
    )
    ledger_table: str = Field(
        "pcaplake_ledger", description="DynamoDB table of the ledger; it serves any number of lakes."
    )
    log_store: Literal["dynamodb", "put-if-absent"] = Field(
        "dynamodb",
        description="How versions of tables are made: `dynamodb` as Spark's S3DynamoDBLogStore does, `put-if-absent` where "
        "nobody uses that one. All writers of a lake use the same.",
    )
    lock_table: str = Field("delta_log", description="DynamoDB table of Spark's S3DynamoDBLogStore.")
    shards: int = Field(8, ge=1, le=64, description="Parts of the ledger's work list, of lakes that are made now.")
    storage_option: Pairs = Field({}, description="Options of the object store, as KEY=VALUE,KEY=VALUE or as a map.")
    table_property: Pairs = Field(
        {},
        description="Delta properties of tables that are made now, as KEY=VALUE,KEY=VALUE or as a map.",
    )
    partition_by: Columns = Field(
        None,
        description="Partition columns of lakes that are made now, as date,vehicle_id or as a list; `date` by default.",
    )
    create: bool = Field(True, description="Make lakes and tables that are missing; otherwise stop.")
    raw: bool = Field(False, description="Keep the bytes of every packet (packets.raw).")

    threads: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        ge=1,
        le=1024,
        description="Decoder threads; all cores by default.",
    )
    max_inflight_bytes: Size = Field(
        default_factory=lambda: memory_limit() // 3,
        description="Bytes of captures in memory at once; a third of the memory limit by default.",
    )
    max_inflight: int = Field(64, ge=1, description="Messages that are waited for or worked on at once.")
    poll_wait: float = Field(20.0, ge=1, le=20, description="Seconds of a long poll; each is a request.")
    visibility_cap: Seconds = Field(
        43_000.0, description="A message is kept hidden no longer than this; SQS allows 12 h."
    )
    retry_first: Seconds = Field(
        5.0, description="A failed message comes back after up to this, doubled with each receipt."
    )
    retry_most: Seconds = Field(900.0, description="A failed message comes back after this at the latest.")
    drain_timeout: Seconds = Field(60.0, description="After SIGTERM captures are finished and staged within this time.")
    preset: Literal["default", "low_latency"] = Field(
        "default", description="`low_latency`: small windows and batches, so rows are queryable within seconds."
    )
    target_file_size: Size = Field(Knobs().target_file_size, description="Size that Parquet files aim at.")
    max_records: int = Field(Knobs().max_records, ge=1, description="Rows in one merge window.")
    flush_interval: Seconds = Field(Knobs().flush_interval, description="A merge window is open no longer than this.")
    max_batch_adds: int = Field(Knobs().max_batch_adds, ge=1, description="Files in one batch of commits.")
    max_batch_age: Seconds = Field(Knobs().max_batch_age, description="A batch waits no longer than this.")
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = Field("zstd", description="Of Parquet files.")
    compression_level: int = Field(Knobs().compression_level, ge=1, le=22, description="Of zstd and gzip.")
    row_group_rows: int = Field(Knobs().row_group_rows, ge=1, description="Rows in a Parquet row group.")
    checkpoint_interval: int = Field(
        Knobs().checkpoint_interval, ge=1, description="Versions of a table between checkpoints."
    )
    commit_timeout: Seconds = Field(Knobs().commit_timeout, description="One commit is tried no longer than this.")
    lease_timeout: Seconds = Field(10.0, description="A committer that is silent for this long is replaced.")

    deletion_cost: bool = Field(
        False,
        description="In Kubernetes: write the work in flight to the pod's own annotation "
        "`controller.kubernetes.io/pod-deletion-cost`, so that idle pods go first when the fleet shrinks. Needs the extra "
        "`cluster`, POD_NAME and POD_NAMESPACE, and the right to patch pods.",
    )
    deletion_cost_interval: Seconds = Field(
        30.0, description="The annotation is written no more often than this, and only when the work has changed much."
    )

    http_host: str = Field(
        "127.0.0.1", description="Address that /metrics, /healthz and /readyz listen on; 0.0.0.0 in a pod."
    )
    http_port: int = Field(9464, ge=0, le=65_535, description="Their port; 0 takes a free one, which the log names.")
    traces_endpoint: str | None = Field(
        default_factory=traces_endpoint,
        description="URL that takes traces (OTLP over HTTP), with the extra `otel`; by default OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    log_format: Literal["json", "text"] = Field("json", description="One JSON object a line, or text for people.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important lines that are logged."
    )

    @classmethod
    def load(cls, config: Path | None = None, **given: Any) -> Self:
        """The settings; `config` defaults to PCAPLAKE_CONFIG. WrongSetting names the setting and what to write."""
        named = config or (Path(path) if (path := variable("config")) else None)
        file = {} if named is None else _read(named)
        values = {name: value for name, value in file.items() if variable(name) is None}
        options = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**(values | options))
        except ValidationError as error:
            text = explained(error, cls.model_fields, options=options, file=named, lines=values)
            raise WrongSetting(text) from error

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.routes is not None and (self.lake is not None or self.profile is not None):
            raise ValueError("give either `routes`, or `lake` with `profile`")
        known = {name for spec in TABLES.values() for name in spec.schema.names}
        for column in self.partition_by or ():
            if column not in known:
                raise ValueError(f"partition_by: no table has a column {column!r}")
        if self.drain_timeout <= self.poll_wait:
            raise ValueError("drain_timeout must be longer than poll_wait: the last poll answers within it")
        return self

    @property
    def knobs(self) -> Knobs:
        """The knobs of every lake; the preset changes those that were not set."""
        knobs = Knobs(**{name: getattr(self, name) for name in Knobs.__slots__})
        if self.preset == "default":
            return knobs
        return replace(knobs, **{n: v for n, v in LOW_LATENCY.items() if n not in self.model_fields_set})

    def storage(self, uri: str) -> dict[str, str]:
        """Options of the object store for one lake: `storage_option`, and on S3 the region where it names none.

        There also `allow_http` where it says nothing and the endpoint is http://, or AWS_ALLOW_HTTP is true.
        """
        named = any(name.lower() in ("region", "aws_region") for name in self.storage_option)
        ours = uri.startswith(S3) and self.region and not named  # other stores refuse a region
        region = {"region": self.region} if ours and self.region else {}
        return {**region, **plain_http(uri, self.storage_option), **self.storage_option}

    def load_routes(self) -> Routes:
        """What `routes`, or `lake` and `profile`, say. WrongSetting when they cannot be used."""
        try:
            if self.routes is not None:
                return Routes.load(self.routes, storage_options=self.storage_option)
            if self.lake is None:
                raise WrongSetting(
                    f"no lake: name a file of settings with --config, or set {PREFIX}ROUTES to a file of routes, or "
                    f"{PREFIX}LAKE to the URI of one lake"
                )
            route = {"bucket": "*", "lake": self.lake, "name": "lake"}
            if self.profile is not None:
                route["profile"] = str(self.profile.absolute())
            return Routes.parse([route], folder=Path("/"), storage_options=self.storage_option)
        except WrongRoutes as error:
            raise WrongSetting(str(error)) from error

    def the_queue(self) -> str:
        """The queue's name. WrongSetting when there is none."""
        if not self.queue:
            raise WrongSetting(
                f"no queue: name a file of settings with --config, or set {PREFIX}QUEUE to the name of the SQS queue; "
                "`pcaplake setup` makes one"
            )
        return self.queue


_OTHERS = ("CONFIG", "DEBUG", "SPARK_JARS", "K8S_BIN", "TEST_AWS", "CAPTURES")  # read elsewhere, here or in tests


def misspelt() -> str | None:
    """One line on the variables PCAPLAKE_... that nobody reads, with what may be meant; None where there are none.

    What Kubernetes sets for a Service whose name begins with `pcaplake` is no setting.
    """
    known = {name.upper() for name in (*Settings.model_fields, *FleetSettings.model_fields, *_OTHERS)}
    given = variables()
    services = {name.removesuffix("_SERVICE_HOST") for name in given if name.endswith("_SERVICE_HOST")}
    foreign = tuple(f"{service}_{kind}" for service in services for kind in ("SERVICE_", "PORT"))
    bare = {name: name.upper().removeprefix(PREFIX) for name in sorted(given) if not name.startswith(foreign)}
    unread = {name: word for name, word in bare.items() if word not in known}
    if not unread:
        return None
    told = "; ".join(f"{name}: {suggested(word, known, PREFIX)}" for name, word in unread.items())
    return f"nobody reads what these variables say: {told}"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WrongSetting(f"cannot read the settings {path}: {error}") from error
    if not isinstance(raw, Mapping):
        raise WrongSetting(f"{path} must have lines `name: value`, with the names of docs/settings.md")
    given = {str(name): value for name, value in raw.items()}
    for name in ("routes", "profile"):  # they lie beside the file that names them
        if isinstance(given.get(name), str):
            given[name] = str(path.parent / given[name])
    return given


def markdown() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings of the service",
        "",
        "Made by `make docs` from the class `FleetSettings`; a test keeps it true. Each is an environment variable, or a",
        "line `name: value` of the YAML file that `--config` or `PCAPLAKE_CONFIG` names; the environment wins. Sizes are",
        "bytes or `128MB`, times seconds or `90s`, `2m`. Maps and lists are JSON in the environment where a value has a comma:",
        '`PCAPLAKE_STORAGE_OPTION=allow_http=true,timeout=60s`, or `PCAPLAKE_STORAGE_OPTION=\'{"allow_http": "true"}\'`.',
        "",
        "| environment | in the file | default | what it is |",
        "|---|---|---|---|",
    ]
    for name, kind, default, text in listed():
        lines.append(f"| `{PREFIX}{name.upper()}` | `{name}`{kind} | {default} | {text} |")
    return "\n".join(lines) + "\n"


def listed() -> list[tuple[str, str, str, str]]:
    """Name, choices, default and description of every setting."""
    found = []
    for name, field in FleetSettings.model_fields.items():
        choices = getattr(field.annotation, "__args__", ())
        kind = f" ({', '.join(map(str, choices))})" if choices and all(isinstance(one, str) for one in choices) else ""
        if field.default_factory is not None:
            default = "of the environment" if name in ("region", "traces_endpoint") else "of the machine"
        else:
            default = "" if field.default in (None, {}) else f"`{field.default}`"
        found.append((name, kind, default, field.description or ""))
    return found


if __name__ == "__main__":
    print(markdown(), end="")
