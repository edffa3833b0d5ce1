"""`pcaplake inspect`: describes captures, without a lake."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.plain_text import counted
from pcaplake.ingest.captures.discovery import counts_by_name, find_captures, require_captures
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.store.store import SCHEMES
from pcaplake.parser import CaptureError
from pcaplake.signals.database import Databases
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import Settings, WrongSetting
from pcaplake.worker.inspection.sources import STDIN, Inspector

from .inspect_report import Totals, describe_capture, describe_totals, display_name
from .lake_options import FollowLinks, Pair

NOT_A_CAPTURE, NOT_READ = 1, 3


def inspect(
    names: Annotated[
        list[str],
        typer.Argument(metavar="CAPTURES...", help=f"Files, folders, globs, {SCHEMES} URIs, - for stdin."),
    ],
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: ports, bus names, vehicle id.")] = None,
    databases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Signal databases, as for `signals`: also show which messages they describe."
        ),
    ] = None,
    follow_links: FollowLinks = False,
    storage_option: Pair = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on one line for each capture.")] = False,
) -> None:
    """Show what is in captures: format, origin, interfaces, times, rates, protocols, faults, and what is not decoded.

    Needs no lake. Captures may be compressed with gzip, zstd or lz4. It also shows which UDP ports look like SOME/IP
    although the profile does not name them. With --databases it also shows which messages the databases describe, how
    many frames no database describes, and cycle times beside those in the database. In a folder, files that are not
    captures are ignored, as in ingest.

    Exit codes: 0 all captures are described, 1 some files are not captures, 2 wrong usage or settings, or no
    capture, 3 some captures could not be read, 130 Ctrl-C. The others are described. With --json, an object for a
    file that is not described has `error` and `detail`.

    Examples:

      pcaplake inspect drive.pcapng --profile vehicle.yaml

      pcaplake inspect drive.pcapng --databases car.dbc

      pcaplake inspect drives/ s3://fleet/drives/today/ --json

      zcat drive.pcap.gz | pcaplake inspect -
    """
    # inspect needs no lake: this one is not opened
    settings = Settings.load(lake=os.curdir, profile=profile, storage_option=storage_option)
    screen.logs()
    inspector = Inspector(
        sources=Sources(settings.storage_options_for),
        profile=settings.load_vehicle_profile(),
        databases=None if databases is None else Databases.from_file(databases),
    )
    raise typer.Exit(asyncio.run(InspectionRun(inspector, as_json=json).inspect_all(names, follow_links=follow_links)))


class InspectionRun:
    """One run: every capture is described as soon as it is read. `profile` inspects, too, and shows something else."""

    readings = 1  # how often each capture is read

    def __init__(self, inspector: Inspector, *, as_json: bool) -> None:
        self.inspector, self.as_json, self.totals = inspector, as_json, Totals()

    async def inspect_all(self, names: Sequence[str], *, follow_links: bool = False) -> int:
        """Inspect everything that is named -> exit code. Raises NotThere and WrongSetting before anything is read."""
        totals = self.totals
        refs: list[ObjectRef | None] = []
        if others := [name for name in names if name != STDIN]:
            found = await find_captures(
                others, self.inspector.sources, skipped=totals.count_ignored, follow_links=follow_links
            )
            await require_captures(found, self.inspector.sources, others)
            refs += found
        if STDIN in names:
            if sys.stdin.isatty():
                raise WrongSetting("-: standard input is a terminal; pipe a capture into it")
            refs.insert(0 if names[0] == STDIN else len(refs), None)
        totals.found, size = len(refs), sum(ref.size for ref in refs if ref)
        captures, done = sum(ref is None or counts_by_name(ref) for ref in refs), 0

        def progress() -> tuple[float, float, str]:
            return self.inspector.read_bytes, self.readings * size, f"{done:,}/{counted(captures, 'capture')}"

        async with screen.running(progress, "inspect") as pause:
            for ref in refs:
                description = await self.inspect(ref)
                if description is not None:
                    done += 1
                    captures += ref is not None and not counts_by_name(ref)
                with pause():
                    self._count(description)
        self.show_totals()
        return NOT_READ if totals.not_read else NOT_A_CAPTURE if totals.not_captures else 0

    async def inspect(self, ref: ObjectRef | None) -> dict[str, Any] | None:
        """A description, or an object with `error` and `detail`; None if the file is ignored."""
        uri = ref.uri if ref else STDIN
        try:
            if ref:
                return await asyncio.to_thread(self.inspector.inspect_reference, ref, asyncio.get_running_loop())
            return await asyncio.to_thread(self.inspector.inspect_standard_input, sys.stdin.fileno())
        except CaptureError as error:
            self.totals.not_captures += 1
            return {"uri": uri, "error": error.reason, "detail": error.detail}
        except (OSError, PcaplakeError) as error:
            self.totals.not_read += 1
            return {"uri": uri, "error": "not_read", "detail": getattr(error, "strerror", None) or str(error)}
        except asyncio.CancelledError:
            self.inspector.stop.set()  # otherwise the thread would read to the end of the capture
            raise

    def _count(self, found: dict[str, Any] | None) -> None:
        if found is None:
            self.totals.ignored += 1
            return
        if "error" in found:
            name, why = display_name(found["uri"]), found["detail"]
            if found["error"] == "not_read":
                screen.say(f"pcaplake: {name} cannot be read: {why}")
            else:
                screen.say(f"pcaplake: {name} is not a capture ({found['error']}): {why}")
        else:
            self.totals.add(found)
        self.show(found)

    def show(self, found: dict[str, Any]) -> None:
        """Show what was found in a capture, or with --json the error."""
        if self.as_json:
            screen.as_json(found)
        elif "error" not in found:
            describe_capture(found)

    def show_totals(self) -> None:
        """Show what all captures have in common, at the end."""
        if self.totals.are_worth_showing and not self.as_json:
            screen.out.print(describe_totals(self.totals), markup=False)
