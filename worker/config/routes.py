"""Which capture goes to which lake, and how it is read: the settings of many streams that one worker serves.

Knows routes, their YAML, and that lakes are never read as captures. Must not know queues, stores' contents or decoders;
profiles and lakes' URIs are checked when routes are loaded, so that a wrong one is refused at the start.

    routes:
      - name: fleet-a                       # for logs and metrics; otherwise `route 1`
        bucket: "fleet-raw"                 # patterns of the shell; `*` also stands for `/`
        key: "a/*.pcap*"
        lake: s3://lakes/a
        profile: profiles/a.yaml            # beside this file
        vehicle_id_pattern: "a/(?P<vehicle_id>[^/]+)/"     # or `vehicle_id: test-bench-7`
        also: true                          # the capture goes on to the routes below; otherwise the first match wins
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import yaml

from parser import Profile, ProfileError

from .errors import Fatal
from .lake.store import Store

_KEYS = ("name", "bucket", "key", "lake", "profile", "vehicle_id", "vehicle_id_pattern", "also")


class WrongRoutes(ValueError):
    """Routes that cannot be used; the message has a line for everything that is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Captures whose bucket and key match the patterns go to `lake`, a URI as `Store` spells it."""

    name: str
    bucket: str
    key: str
    lake: str
    profile: Profile
    also: bool = False

    def matches(self, bucket: str, key: str) -> bool:
        return fnmatchcase(bucket, self.bucket) and fnmatchcase(key, self.key)

    def hides(self, later: Route) -> bool:
        """Nothing ever gets as far as `later`; of patterns only the plain cases are seen."""
        return (
            not self.also and self.bucket in ("*", later.bucket) and (self.key == later.key or set(self.key) == {"*"})
        )


@dataclass(frozen=True, slots=True)
class Routes:
    """Routes in their order."""

    routes: tuple[Route, ...]

    @classmethod
    def load(cls, path: Path, *, storage_options: Mapping[str, str] | None = None) -> Self:
        """The routes of a YAML file. WrongRoutes when it cannot be read or used."""
        try:
            raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        except (OSError, UnicodeDecodeError) as error:
            raise WrongRoutes(f"cannot read the routes {path}: {error}") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise WrongRoutes(f"{path} is not YAML: {error}; patterns with * must be in quotes") from error
        if not isinstance(raw, Mapping) or set(raw) != {"routes"}:
            raise WrongRoutes(f"{path} must have one key, `routes`, with a list below it")
        return cls.parse(raw["routes"], folder=path.parent, storage_options=storage_options)

    @classmethod
    def parse(cls, raw: Any, *, folder: Path | None = None, storage_options: Mapping[str, str] | None = None) -> Self:
        """A list of maps, as they are in YAML; profiles lie below `folder`. WrongRoutes."""
        if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
            raise WrongRoutes("routes must be a list with one route at least")
        reader = _Reader(folder or Path(), storage_options)
        routes = [reader.route(number, each) for number, each in enumerate(raw, 1)]
        reader.together([route for route in routes if route is not None])
        if reader.problems:
            raise WrongRoutes("\n".join(reader.problems))
        return cls(tuple(route for route in routes if route is not None))

    @property
    def lakes(self) -> tuple[str, ...]:
        """The URIs of all lakes, each once, in the order of their first routes."""
        return tuple(dict.fromkeys(route.lake for route in self.routes))

    def of(self, uri: str) -> tuple[Route, ...]:
        """Where the capture `s3://bucket/key` goes: nowhere, to one lake, or to several; never twice to one.

        What lies in a lake goes nowhere, whatever the patterns say.
        """
        if any(uri.startswith(f"{lake}/") for lake in self.lakes):
            return ()
        bucket, _, key = uri.partition("://")[2].partition("/")
        found: dict[str, Route] = {}
        for route in self.routes:
            if route.matches(bucket, key):
                found.setdefault(route.lake, route)
                if not route.also:
                    break
        return tuple(found.values())


class _Reader:
    """Raw routes -> routes; everything that is wrong is collected."""

    def __init__(self, folder: Path, storage_options: Mapping[str, str] | None) -> None:
        self.problems: list[str] = []
        self._folder, self._storage_options = folder, storage_options
        self._where = ""

    def _wrong(self, text: str) -> None:
        self.problems.append(f"{self._where}: {text}")

    def route(self, number: int, raw: Any) -> Route | None:
        self._where = f"route {number}"
        if not isinstance(raw, Mapping):
            self._wrong(f"must be a map of `key: value` lines, not {raw!r}")
            return None
        before = len(self.problems)
        for key in raw:
            if key not in _KEYS:
                self._wrong(f"has no key {key!r}; {_suggest(str(key), _KEYS)}")
        name = self._text(raw, "name") or self._where
        if "name" in raw:
            self._where += f" ({name})"
        bucket, key = self._text(raw, "bucket", needed=True), self._text(raw, "key") or "*"
        if "/" in bucket:
            self._wrong(f"bucket is {bucket!r}; write its name only, and the rest under `key`")
        if key.startswith("/"):
            self._wrong(f"key is {key!r}; keys do not begin with /")
        also = raw.get("also", False)
        if not isinstance(also, bool):
            self._wrong(f"also is {also!r}; write true or false")
        lake, profile = self._lake(raw), self._profile(raw)
        if len(self.problems) > before:
            return None
        return Route(name=name, bucket=bucket, key=key, lake=lake, profile=profile, also=also)

    def _text(self, raw: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
        value = raw.get(key)
        if isinstance(value, str) and value:
            return value
        if value is not None:
            self._wrong(f"{key} is {value!r}; write a text, in quotes")
        elif needed:
            self._wrong(f"{key} is missing")
        return ""

    def _lake(self, raw: Mapping[str, Any]) -> str:
        uri = self._text(raw, "lake", needed=True)
        if not uri:
            return ""
        try:
            return Store.open(uri, self._storage_options).uri
        except Fatal as error:
            self._wrong(f"lake: {error}")
            return ""

    def _profile(self, raw: Mapping[str, Any]) -> Profile:
        profile = Profile.default()
        if path := self._text(raw, "profile"):
            try:
                profile = Profile.load(self._folder / path)
            except ProfileError as error:
                self._wrong(f"profile {path}: {error}")
        vehicle_id, pattern = self._text(raw, "vehicle_id"), self._text(raw, "vehicle_id_pattern")
        if vehicle_id and pattern:
            self._wrong("has vehicle_id and vehicle_id_pattern; keep one of them")
        if vehicle_id:
            return replace(profile, vehicle_id=vehicle_id)
        if not pattern:
            return profile
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            self._wrong(f"vehicle_id_pattern is no regular expression: {error}; mend {pattern!r}")
            return profile
        if "vehicle_id" not in compiled.groupindex:
            self._wrong("vehicle_id_pattern needs a group of that name, such as (?P<vehicle_id>[^/]+)")
        return replace(profile, vehicle_id_pattern=compiled)

    def together(self, routes: Sequence[Route]) -> None:
        """What can only be wrong with several of them."""
        lakes = {route.lake for route in routes}
        for number, route in enumerate(routes):
            self._where = route.name
            for earlier in routes[:number]:
                if earlier.name == route.name:
                    self._wrong("this name is given twice")
                if earlier.hides(route):
                    self._wrong(f"is never reached: {earlier.name} takes everything; give that one `also: true`")
            fixed = re.split(r"[*?\[]", route.key, maxsplit=1)[0]
            for lake in sorted(lakes):
                bucket = lake.removeprefix("s3://").partition("/")[0]
                if fnmatchcase(bucket, route.bucket) and f"s3://{bucket}/{fixed}".startswith(f"{lake}/"):
                    self._wrong(
                        f"takes from the bucket {bucket} what lies in the lake {lake}, which is never ingested: put the "
                        f"lake beside its captures, as s3://{bucket}/lake, or let the route name other buckets only"
                    )
        for lake in sorted(lakes):
            for other in sorted(lakes):
                if lake.startswith(f"{other}/"):
                    self._where = lake
                    self._wrong(f"lies in the lake {other}, which would delete what it does not know")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _suggest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"write one of: {', '.join(known)}"
