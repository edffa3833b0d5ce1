"""`pcaplake run`: its options."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import Fatal
from ..fleet_settings import FleetSettings, listed
from ..settings import PREFIX
from . import screen


def _every_setting() -> str:
    lines = [f"{PREFIX}{name.upper()}{kind}: {text}" for name, kind, _, text in listed()]
    return "\n\n".join(["Settings, in the environment or as `name: value` in the file of --config:", *lines])


EPILOG = _every_setting()


def run(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"YAML file of settings; {PREFIX}CONFIG names it, too.")
    ] = None,
    role: Annotated[str | None, typer.Option(metavar="all|worker|committer", help="What this process does.")] = None,
) -> None:
    """Read captures as S3 announces them to an SQS queue, into lakes that Spark may write at the same time.

    Any number of these may run. One of them commits what all have staged; which one does not matter. SIGTERM finishes
    what has begun, within `drain_timeout`, and exits 0; a second one exits at once, and loses nothing either.

    Exit codes: 0 stopped, 2 settings, 3 something that only people can mend, 130 stopped at once.

    Examples:

      PCAPLAKE_QUEUE=captures PCAPLAKE_LAKE=s3://lake/drives pcaplake run

      pcaplake run --config fleet.yaml --role worker
    """
    settings = FleetSettings.load(config, role=role)
    try:
        from ..serve import serve  # the extra is only for those who run a service
    except ImportError as error:
        raise Fatal(f"the service needs the extra `aws`: pip install 'pcaplake[aws]' ({error})") from error
    screen.compile_kernels()
    code = asyncio.run(serve(settings))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # everything is closed; a request of the store's client that nobody waits for must not end this badly
