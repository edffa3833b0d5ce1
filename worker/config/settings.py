"""Every setting of a command, and the only reader of the environment (`PCAPLAKE_<NAME>`); the command line wins.

Knows names, units and limits. Must not know what is done with them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from parser import Profile, ProfileError
from parser.tables import TABLES

from .errors import Fatal
from .lake.knobs import Knobs
from .lake.store import Store

PREFIX = "PCAPLAKE_"
S3 = ("s3://", "s3a://", "s3n://")
_SIZES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?")


class WrongSetting(ValueError):
    """A setting that cannot be used; the message names it and says what to write."""


def debug() -> bool:
    """PCAPLAKE_DEBUG: show where an unexpected error came from."""
    return bool(os.environ.get(f"{PREFIX}DEBUG"))


def variable(name: str) -> str | None:
    """PCAPLAKE_<NAME>, if it is set."""
    return os.environ.get(f"{PREFIX}{name.upper()}")


def variables() -> list[str]:
    """The names of all variables PCAPLAKE_... that are set."""
    return [name for name in os.environ if name.upper().startswith(PREFIX)]


def aws_region() -> str | None:
    """AWS_REGION, which newer SDKs read; botocore knows AWS_DEFAULT_REGION and its files only."""
    return os.environ.get("AWS_REGION")


def aws_endpoint(service: str) -> str | None:
    """Where a service is that is not AWS itself, by the variables of the SDKs: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL")


def plain_http(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """What the store of `uri` needs beside its `options` where its endpoint is http:// or AWS_ALLOW_HTTP is true.

    obstore takes AWS_ALLOW_HTTP from the environment only where no option of its client is given, and ours always are.
    """
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    if not uri.startswith(S3) or "allow_http" in given:
        return {}
    endpoint = given.get("endpoint") or given.get("endpoint_url") or aws_endpoint("s3") or ""
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    return {"allow_http": "true"} if allowed or endpoint.lower().startswith("http://") else {}


def spark_submitted() -> bool:
    """Did spark-submit start this process? Then it has a JVM already, with a master and a class path."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_python(executable: str) -> None:
    """Python processes that Spark starts on this machine are this Python, unless PYSPARK_PYTHON names another."""
    os.environ.setdefault("PYSPARK_PYTHON", executable)


def pod() -> tuple[str, str] | None:
    """Namespace and name of the pod that this runs in, from the Downward API: POD_NAMESPACE and POD_NAME."""
    namespace, name = os.environ.get("POD_NAMESPACE"), os.environ.get("POD_NAME")
    return (namespace, name) if namespace and name else None


def traces_endpoint() -> str | None:
    """The URL that OpenTelemetry's own variables name for traces."""
    if named := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return named
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/traces" if base else None


def size(value: Any) -> Any:
    """`128MB` -> bytes. A unit is a power of 1024."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is no size; write for example 128MB")
        return int(float(match[1]) * _SIZES[match[2].upper()])
    return value


def seconds(value: Any) -> Any:
    """`90s`, `1.5m` or `90` -> seconds."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is no time; write for example 60s or 2m")
        return float(match[1]) * _TIMES[match[2] or ""]
    return value


def pairs(values: Any) -> Any:
    """`KEY=VALUE,KEY=VALUE`, `["KEY=VALUE", ...]`, or JSON of a list or a map -> a map."""
    values = _decoded(values, "KEY=VALUE,KEY=VALUE", '{"KEY": "VALUE"}')
    if isinstance(values, str):
        parts = [part.strip() for part in values.split(",") if part.strip()]
        for number, part in enumerate(parts, 1):
            if part.find("=") < 1:  # what it is may be a secret
                raise ValueError(
                    f"part {number} is no KEY=VALUE, so it cannot be read: write KEY=VALUE,KEY=VALUE, or "
                    'JSON such as {"KEY": "VALUE"} where a value has a comma'
                )
        values = parts
    if isinstance(values, (list, tuple)):
        split = [str(value).partition("=") for value in values]
        for key, equals, _ in split:
            if not (key and equals):
                raise ValueError(f"{key!r} is no KEY=VALUE")
        return {key: value for key, _, value in split}
    return values


def columns(value: Any) -> Any:
    """`date,vehicle_id`, a list of names, or JSON of one -> a tuple of names."""
    value = _decoded(value, "date,vehicle_id", '["date", "vehicle_id"]')
    parts = value.split(",") if isinstance(value, str) else value
    if parts is None or (isinstance(parts, (list, tuple)) and all(isinstance(one, str) for one in parts)):
        return parts and tuple(name for name in map(str.strip, parts) if name)
    raise ValueError(f"{value!r} names no columns; write for example date,vehicle_id")


def _decoded(value: Any, plain: str, as_json: str) -> Any:
    """JSON, where it looks like it; pydantic-settings would take nothing else."""
    if not (isinstance(value, str) and value.lstrip().startswith(("{", "["))):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it cannot be read as JSON: write {plain}, or JSON such as {as_json}") from error


Size = Annotated[int, BeforeValidator(size), Field(ge=1 << 16)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0)]
Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(pairs)]
Columns = Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(columns)]


class Settings(BaseSettings):
    """What `ingest` needs; the other commands read some of it. Defaults that are knobs are those of `Knobs`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    lake: str
    profile: Path | None = None
    threads: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    ledger: Path | None = None
    storage_option: Pairs = {}
    table_property: Pairs = {}
    partition_by: Columns = None
    create: bool = True
    mode: Literal["append", "overwrite"] = "append"
    raw: bool = False

    target_file_size: Size = Knobs().target_file_size
    max_records: int = Field(Knobs().max_records, ge=1)
    flush_interval: Seconds = 60.0
    max_batch_adds: int = Field(Knobs().max_batch_adds, ge=1)
    max_batch_age: Seconds = Knobs().max_batch_age
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    compression_level: int = Field(Knobs().compression_level, ge=1, le=22)
    row_group_rows: int = Field(Knobs().row_group_rows, ge=1)
    checkpoint_interval: int = Field(Knobs().checkpoint_interval, ge=1)
    commit_timeout: Seconds = Knobs().commit_timeout

    @classmethod
    def load(cls, **given: Any) -> Self:
        """The settings, `given` (where not None) before the environment. WrongSetting says what is wrong."""
        options = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**options)
        except ValidationError as error:
            raise WrongSetting(explained(error, cls.model_fields, options=options)) from error

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = {name for spec in TABLES.values() for name in spec.schema.names}
        for column in self.partition_by or ():
            if column not in known:
                raise ValueError(f"--partition-by: no table has a column {column!r}")
        try:
            store = Store.open(self.lake, self.storage(self.lake))
        except Fatal as error:
            raise ValueError(f"--lake: {error}") from error
        if store.local is not None and store.local.exists() and not store.local.is_dir():
            raise ValueError(f"--lake: {store.local} is a file; name a folder")
        return self

    def storage(self, uri: str) -> dict[str, str]:
        """Options of the object store that `uri` is in."""
        return {**plain_http(uri, self.storage_option), **self.storage_option}

    def knobs(self) -> Knobs:
        """The knobs of the lake."""
        return Knobs(**{name: getattr(self, name) for name in Knobs.__slots__})

    def vehicle_profile(self) -> Profile:
        """The profile that was named, or the default. WrongSetting when it cannot be used."""
        if self.profile is None:
            return Profile.default()
        try:
            return Profile.load(self.profile)
        except ProfileError as error:
            raise WrongSetting(f"--profile {self.profile}: {error}") from error


def explained(
    error: ValidationError,
    known: Collection[str],
    *,
    options: Collection[str] = (),
    file: Path | None = None,
    lines: Collection[str] = (),
) -> str:
    """What is wrong first, by the name that it was given by: one of `options`, of the `lines` of `file`, a variable.

    `known`: all names that there are.
    """
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not first["loc"]:
        return message
    name, *within = map(str, first["loc"])
    option, upper = f"--{name.replace('_', '-')}", f"{PREFIX}{name.upper()}"
    if first["type"] == "missing":
        return f"{option} is missing: give it, or set {upper}"
    where = option if name in options else f"{file}: {name}" if name in lines else upper
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such setting; {suggested(name, known)}"
    if first["type"] == "string_type":
        message += "; put it in quotes"
    return ": ".join([where, *within, message])


def suggested(word: str, known: Collection[str], prefix: str = "") -> str:
    """Which of the settings may be meant; all are shown with `prefix`, which would make any two look alike."""
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {prefix + close[0]!r}?" if close else "docs/settings.md lists what there is"
