"""`pcaplake run`: its options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.worker.config.environment import PREFIX
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.setting_texts import list_settings


def _describe_settings() -> str:
    lines = [f"{PREFIX}{name.upper()}{kind}: {text}" for name, kind, _, text in list_settings()]
    return "\n\n".join(
        ["Settings, as environment variables or as `name: value` in the file that --config names:", *lines]
    )


EPILOG = _describe_settings()


def run(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"YAML settings file; default: {PREFIX}CONFIG.")
    ] = None,
    role: Annotated[str | None, typer.Option(metavar="all|worker|committer", help="What this process does.")] = None,
) -> None:
    """Run a worker: read captures that S3 announces to an SQS queue into lakes. Spark may write them at the same time.

    You can run any number of workers. One of them commits what all have staged. SIGTERM finishes work in progress within
    `drain_timeout` and exits with code 0; a second SIGTERM exits at once. Neither loses data.

    Exit codes: 0 stopped, 2 wrong settings, 3 an error that someone has to fix, 130 stopped at once.

    Examples:

      PCAPLAKE_QUEUE=captures PCAPLAKE_LAKE=s3://lake/drives pcaplake run

      pcaplake run --config fleet.yaml --role worker
    """
    settings = FleetSettings.load(config, role=role)
    try:
        from pcaplake.worker.service.run import run_service  # needs the extra `aws`
    except ImportError as error:
        raise Fatal(f"the service needs the extra `aws`: pip install 'pcaplake[aws]' ({error})") from error
    code = run_service(settings)
    sys.stdout.flush()
    sys.stderr.flush()
    # everything is closed; an abandoned request of the store's client must not change the exit code
    os._exit(code)
