"""The operator's plan, which Jobs to launch and when: a YAML file, usually from a ConfigMap (docs/operator.md).

Parses the file and builds Jobs from templates.

    timezone: Europe/Berlin
    template: spark-job.yaml        # a batch/v1 Job in the folder of this file, or the map itself
    jobs:
      compact: {schedule: "17 * * * *", args: [compact, --lake, "s3://lake/drives"]}
      vacuum: {schedule: "41 2 * * *", args: [vacuum, --lake, "s3://lake/drives"]}
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml
from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pcaplake.worker.config.settings import Seconds, WrongSetting

MANAGED, OPERATOR, JOB, DUE = "app.kubernetes.io/managed-by", "pcaplake-operator", "pcaplake-job", "pcaplake-due"
"""Labels of every Job that the operator creates; the last one is an annotation."""
US = "pcaplake-operator"
_NAME = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"


def _cron(text: str) -> str:
    if len(text.split()) != 5:
        raise ValueError(f"{text!r} must have five fields: minute, hour, day of month, month, day of week")
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"{text!r} is not a cron schedule: {error}") from error
    except StopIteration:
        raise ValueError(f"{text!r} never occurs") from None
    return text


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{text!r} is not a time zone; write for example Europe/Berlin") from error
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Job(_Strict):
    """One job of the plan. `args` go to the template's first container, `labels` and `annotations` to Job and pod."""

    schedule: Annotated[str, AfterValidator(_cron)]
    args: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    template: dict[str, Any] | str | None = None
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    late: Seconds | None = None
    suspend: bool = False
    keep_succeeded: int | None = Field(None, ge=1)
    keep_failed: int | None = Field(None, ge=1)


class Plan(_Strict):
    """The file, with defaults for all jobs. `late`: a missed due time is still launched within this many seconds."""

    jobs: dict[Annotated[str, Field(pattern=_NAME)], Job] = Field(min_length=1)
    template: dict[str, Any] | str | None = None
    timezone: Annotated[str, AfterValidator(_zone)] = "Etc/UTC"
    late: Seconds = 600.0
    keep_succeeded: int = Field(1, ge=1)
    keep_failed: int = Field(3, ge=1)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read the file and all templates. Raises WrongSetting, which names the line and says what to write."""
        raw = _yaml(path)
        try:
            plan = cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise WrongSetting(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
        jobs = {}
        for name, job in plan.jobs.items():
            template = job.template if job.template is not None else plan.template
            if template is None:
                raise WrongSetting(f"{path}: jobs.{name}: no template: name a file with a Job of batch/v1")
            where, found = f"{path}: jobs.{name}: the template", template
            if isinstance(template, str):
                where, found = f"{path.parent / template}", _yaml(path.parent / template)
            if not isinstance(found, Mapping):
                raise WrongSetting(f"{where} must be one Job of batch/v1")
            jobs[name] = job.model_copy(update={"template": _checked(where, dict(found))})
        return plan.model_copy(update={"jobs": jobs, "template": None})

    def last_due(self, name: str, now: datetime) -> datetime:
        """The last due time up to and including `now`."""
        job = self.jobs[name]
        zone = ZoneInfo(job.timezone or self.timezone)
        instant = now.astimezone(zone).replace(microsecond=1)  # the library excludes the start time
        return next(CronSim(job.schedule, instant, reverse=True)).astimezone(UTC)

    def next_due(self, name: str, now: datetime, count: int = 1) -> list[datetime]:
        """The next due times, in the job's time zone."""
        job = self.jobs[name]
        times = CronSim(job.schedule, now.astimezone(ZoneInfo(job.timezone or self.timezone)))
        return [next(times) for _ in range(count)]

    def late_of(self, name: str) -> float:
        return self.jobs[name].late or self.late

    def keep(self, name: str, *, failed: bool) -> int:
        """How many finished Jobs are kept for inspection."""
        job = self.jobs[name]
        if failed:
            return job.keep_failed or self.keep_failed
        return job.keep_succeeded or self.keep_succeeded

    def manifest(self, name: str, due: datetime, *, operator: str) -> dict[str, Any]:
        """The Job of one due time. The due time is part of its name, so it can be created only once."""
        job = self.jobs[name]
        assert isinstance(job.template, dict)
        made: dict[str, Any] = copy.deepcopy(job.template)
        labels = {**job.labels, MANAGED: US, OPERATOR: operator, JOB: name}
        pod = made["spec"]["template"]
        for meta in (made.setdefault("metadata", {}), pod.setdefault("metadata", {})):
            meta["labels"] = {**(meta.get("labels") or {}), **labels}
            meta["annotations"] = {**(meta.get("annotations") or {}), **job.annotations}
        made["metadata"]["name"] = f"{operator}-{name}-{int(due.timestamp()) // 60}"
        made["metadata"]["annotations"][DUE] = due.isoformat()
        if job.args is not None:
            pod["spec"]["containers"][0]["args"] = list(job.args)
        return made


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WrongSetting(f"cannot read {path}: {error}") from error


def _checked(where: str, job: dict[str, Any]) -> dict[str, Any]:
    """Checks only what would fail late or conflict with the operator; the API server validates the rest strictly."""
    if (job.setdefault("apiVersion", "batch/v1"), job.setdefault("kind", "Job")) != ("batch/v1", "Job"):
        raise WrongSetting(f"{where} must be a Job of batch/v1, not {job['kind']} of {job['apiVersion']}")
    try:
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        if not pod["containers"][0]["name"]:
            raise KeyError
    except (KeyError, IndexError, TypeError) as error:
        raise WrongSetting(f"{where} needs spec.template.spec.containers with at least one container") from error
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        raise WrongSetting(f"{where}: spec.template.spec.restartPolicy must be Never or OnFailure")
    if "ttlSecondsAfterFinished" in spec:
        raise WrongSetting(
            f"{where}: remove ttlSecondsAfterFinished: keep_succeeded and keep_failed say what is kept, and the last Job "
            "records which due times are done"
        )
    if (job.get("metadata") or {}).get("namespace"):
        raise WrongSetting(f"{where}: remove metadata.namespace: Jobs run in the operator's namespace")
    return job
