"""Settings of commands, from options and the environment (`PCAPLAKE_<NAME>`); options take precedence."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from pcaplake.common.errors import Fatal, WrongUsage
from pcaplake.lake.config import BATCH_FLUSH_INTERVAL, Creation, LakeConfig
from pcaplake.lake.store.store import Store
from pcaplake.parser import Profile, ProfileError
from pcaplake.parser.schemas import TABLES

from .environment import PREFIX, implied_storage_options, read_variables

_SIZES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?")
_PARTITION_TYPES = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
"""Types whose partition values all readers understand alike."""


def select_shared_settings(settings: BaseModel, kind: type[Any]) -> dict[str, Any]:
    """The settings whose names are fields of this dataclass."""
    return {field.name: getattr(settings, field.name) for field in fields(kind) if hasattr(settings, field.name)}


class WrongSetting(WrongUsage):
    """A setting that cannot be used. The message names it and says what to write."""


def parse_size(value: Any) -> Any:
    """The bytes of `128MB`. A unit is a power of 1024."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a size; write for example 128MB")
        return int(float(match[1]) * _SIZES[match[2].upper()])
    return value


def parse_seconds(value: Any) -> Any:
    """The seconds of `90s`, `1.5m` or `90`."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a time; write for example 60s or 2m")
        return float(match[1]) * _TIMES[match[2] or ""]
    return value


def parse_pairs(values: Any) -> Any:
    """A map, from `KEY=VALUE,KEY=VALUE`, `["KEY=VALUE", ...]`, or JSON of a list or a map."""
    values = _decode_json(values, "KEY=VALUE,KEY=VALUE", '{"KEY": "VALUE"}')
    if isinstance(values, str):
        parts = [part.strip() for part in values.split(",") if part.strip()]
        for number, part in enumerate(parts, 1):
            if part.find("=") < 1:  # the part is not shown, because it may be a secret
                raise ValueError(
                    f"part {number} is not KEY=VALUE, so it cannot be read: write KEY=VALUE,KEY=VALUE, or "
                    'JSON such as {"KEY": "VALUE"} if a value has a comma'
                )
        values = parts
    if isinstance(values, (list, tuple)):
        split = [str(value).partition("=") for value in values]
        for key, equals, _ in split:
            if not (key and equals):
                raise ValueError(f"{key!r} is not KEY=VALUE")
        return {key: value for key, _, value in split}
    return values


def parse_columns(value: Any) -> Any:
    """A tuple of names of columns that a table has, from `date,vehicle_id`, a list of names, or JSON of one."""
    value = _decode_json(value, "date,vehicle_id", '["date", "vehicle_id"]')
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{value!r} is not a list of columns; write for example date,vehicle_id")
    columns = tuple(name for name in map(str.strip, parts) if name)
    known = {name for spec in TABLES.values() for name in spec.schema.names}
    if unknown := [name for name in columns if name not in known]:
        raise ValueError(f"no table has a column {unknown[0]!r}")
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise ValueError(f"{twice} is there twice")
    for name in columns:
        for table, spec in TABLES.items():
            kind = spec.schema.field(name).type if name in spec.schema.names else None
            if kind is not None and not any(is_allowed(kind) for is_allowed in _PARTITION_TYPES):
                raise ValueError(
                    f"{name} cannot be a partition column, because it is {kind} in the table {table}: choose columns with "
                    "texts, whole numbers, booleans or dates, such as date and vehicle_id"
                )
    return columns


def _decode_json(value: Any, plain: str, as_json: str) -> Any:
    """Parses a value that looks like JSON. In the environment, pydantic-settings would otherwise accept only JSON."""
    if not (isinstance(value, str) and value.lstrip().startswith(("{", "["))):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it cannot be read as JSON: write {plain}, or JSON such as {as_json}") from error


def check_table_properties(properties: dict[str, str]) -> dict[str, str]:
    """The properties themselves. Raises ValueError for one that a table of pcaplake cannot have."""
    if properties:  # most commands set none, and need no Delta log
        from pcaplake.lake.delta.properties import find_property_problem
        from pcaplake.signals.tables import CATALOG_SCHEMA, SIGNALS_SCHEMA

        schemas = (*(spec.schema for spec in TABLES.values()), SIGNALS_SCHEMA, CATALOG_SCHEMA)
        if problem := find_property_problem(properties, {name for schema in schemas for name in schema.names}):
            raise ValueError(problem)
    return properties


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1 << 16)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]
Pairs = Annotated[dict[str, str], BeforeValidator(parse_pairs)]
TableProperties = Annotated[Pairs, AfterValidator(check_table_properties)]
Columns = Annotated[tuple[str, ...] | None, BeforeValidator(parse_columns)]


class LakeSettings(BaseModel):
    """How a process writes to a lake: the settings that `ingest` and `run` share. The defaults are those of `LakeConfig`."""

    model_config = ConfigDict(defer_build=True)  # a command uses one of the classes that inherit it

    target_file_size: Size = Field(LakeConfig().target_file_size, description="Target size of Parquet files.")
    max_records: int = Field(
        LakeConfig().max_records,
        ge=1,
        description="Maximum number of rows in a window (rows of several captures that share Parquet files).",
    )
    flush_interval: Seconds = Field(LakeConfig().flush_interval, description="Longest time that a window stays open.")
    max_batch_adds: int = Field(
        LakeConfig().max_batch_adds,
        ge=1,
        description="Maximum number of files in a batch (stages that are committed together).",
    )
    max_batch_age: Seconds = Field(
        LakeConfig().max_batch_age,
        description="Longest time that staged captures wait for more before a batch is committed.",
    )
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = Field(
        LakeConfig().compression,  # type: ignore[arg-type]
        description="Compression of Parquet files.",
    )
    compression_level: int = Field(
        LakeConfig().compression_level, ge=1, le=22, description="Compression level for zstd and gzip."
    )
    row_group_rows: int = Field(LakeConfig().row_group_rows, ge=1, description="Rows in a Parquet row group.")
    checkpoint_interval: int = Field(
        LakeConfig().checkpoint_interval, ge=1, description="Table versions between two checkpoints."
    )
    commit_timeout: Seconds = Field(LakeConfig().commit_timeout, description="Longest time that one commit is retried.")


class Settings(LakeSettings):
    """Settings of `ingest`; other commands use some of them.

    `load` reads the environment, without pydantic-settings, which a short command would import for this alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    lake: str
    profile: Path | None = None
    threads: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    ledger: Path | None = None
    storage_option: Pairs = {}
    table_property: TableProperties = {}
    partition_by: Columns = None
    create: bool = True
    mode: Literal["append", "overwrite"] = "append"
    raw: bool = False

    flush_interval: Seconds = BATCH_FLUSH_INTERVAL

    @classmethod
    def load(cls, **given: Any) -> Self:
        """The settings; values in `given` override the environment, except None. Raises WrongSetting with the reason."""
        options = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**(read_variables(cls.model_fields) | options))
        except ValidationError as error:
            raise WrongSetting(explain_validation_error(error, cls.model_fields, options=options)) from error

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        try:
            store = Store.open(self.lake, self.storage_options_for(self.lake))
        except Fatal as error:
            raise ValueError(f"--lake: {error}") from error
        if store.local is not None and store.local.exists() and not store.local.is_dir():
            raise ValueError(f"--lake: {store.local} is a file; name a folder")
        return self

    def storage_options_for(self, uri: str) -> dict[str, str]:
        """Options of the object store that contains `uri`."""
        return {**implied_storage_options(uri, self.storage_option), **self.storage_option}

    @property
    def lake_config(self) -> LakeConfig:
        """How this process uses the lake."""
        creation = Creation(
            allowed=self.create, partition_columns=self.partition_by, table_properties=self.table_property
        )
        return LakeConfig(**select_shared_settings(self, LakeConfig), creation=creation)

    def load_vehicle_profile(self) -> Profile:
        """The profile in the settings, or the default. Raises WrongSetting if it cannot be used."""
        if self.profile is None:
            return Profile.default()
        try:
            return Profile.load(self.profile)
        except ProfileError as error:
            raise WrongSetting(f"--profile {self.profile}: {error}") from error


def explain_validation_error(
    error: ValidationError,
    known: Collection[str],
    *,
    options: Collection[str] = (),
    file: Path | None = None,
    lines: Collection[str] = (),
) -> str:
    """All problems, each with the name under which the value was set: one of `options`, of the `lines` of `file`, or a variable.

    `known` are the names of all settings.
    """
    problems = [_explain_problem(problem, known, options=options, file=file, lines=lines) for problem in error.errors()]
    return join_problems(problems)


def join_problems(problems: Sequence[str]) -> str:
    """One text for all problems of the settings."""
    return problems[0] if len(problems) == 1 else f"{len(problems)} settings are wrong: " + "; ".join(problems)


_NOT_A: Final = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""What a value must be, by pydantic's type of the problem."""


def _explain_problem(
    problem: ErrorDetails,
    known: Collection[str],
    *,
    options: Collection[str],
    file: Path | None,
    lines: Collection[str],
) -> str:
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not problem["loc"]:
        return message
    name, *within = map(str, problem["loc"])
    option, upper = f"--{name.replace('_', '-')}", f"{PREFIX}{name.upper()}"
    if problem["type"] == "missing":
        return f"{option} is missing: give it, or set {upper}"
    where = option if name in options else f"{file}: {name}" if name in lines else upper
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown setting; {suggest_setting(name, known)}"
    if problem["type"] in _NOT_A:
        message = f"{problem['input']!r} is not {_NOT_A[problem['type']]}"
    elif problem["type"] == "string_type":
        message += "; put it in quotes"
    return ": ".join([where, *within, message])


def suggest_setting(word: str, known: Collection[str], prefix: str = "") -> str:
    """Suggests a setting with a similar name. `prefix` is only shown: comparing it would make all names similar."""
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {prefix + close[0]!r}?" if close else "`pcaplake docs settings` lists all settings"
