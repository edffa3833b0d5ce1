"""Routes: which capture goes to which lake, and with which profile it is read.

Files of a lake are never read as captures. Profiles and URIs of lakes are checked when routes are loaded, so that a wrong
one is refused at the start. `EXAMPLE` shows all keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import yaml

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.store import Store
from pcaplake.parser import Profile, ProfileError
from pcaplake.suggestions import suggest_name

from .settings import WrongSetting

_KEYS = ("name", "bucket", "key", "lake", "profile", "vehicle_id", "vehicle_id_pattern", "also")
EXAMPLE = """\
routes:
  - bucket: fleet-raw                   # a shell pattern; `*` also matches `/`
    key: "a/*.pcap*"                    # a shell pattern; default: all keys
    lake: s3://lakes/a
    profile: profiles/a.yaml            # relative to this file
    vehicle_id_pattern: "a/(?P<vehicle_id>[^/]+)/"     # or `vehicle_id: test-bench-7`
    name: fleet-a                       # appears in error messages; default: `route 1`
    also: true                          # continue with the next routes; default: the first match wins
"""


class WrongRoutes(WrongSetting):
    """Routes that cannot be used. The message has one line for each problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Captures whose bucket and key match the patterns go to `lake`, a URI as `Store` writes it."""

    name: str
    bucket: str
    key: str
    lake: str
    profile: Profile
    also: bool = False

    def matches_object(self, bucket: str, key: str) -> bool:
        return fnmatchcase(bucket, self.bucket) and fnmatchcase(key, self.key)

    def shadows_route(self, later: Route) -> bool:
        """True if no capture can reach `later`. Detects only equal keys and keys that match everything."""
        return (
            not self.also and self.bucket in ("*", later.bucket) and (self.key == later.key or set(self.key) == {"*"})
        )


@dataclass(frozen=True, slots=True)
class Routes:
    """Routes in their order."""

    routes: tuple[Route, ...]

    @classmethod
    def load(cls, path: Path, *, storage_options: Mapping[str, str] | None = None) -> Self:
        """The routes of a YAML file. Raises WrongRoutes when it cannot be read or used."""
        try:
            raw = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
        except (OSError, UnicodeDecodeError) as error:
            raise WrongRoutes(f"cannot read the routes {path}: {error}") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise WrongRoutes(
                f"{path} is not YAML: {' '.join(str(error).split())}; patterns with * must be in quotes"
            ) from error
        if not isinstance(raw, Mapping) or set(raw) != {"routes"}:
            raise WrongRoutes(f"{path} must have one key, `routes`, with a list")
        return cls.parse_routes(raw["routes"], folder=path.parent, storage_options=storage_options)

    @classmethod
    def parse_routes(
        cls, raw: Any, *, folder: Path | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Self:
        """Parses a list of maps, as in the YAML file. Paths of profiles are relative to `folder`. Raises WrongRoutes."""
        if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
            raise WrongRoutes("routes must be a list with at least one route")
        reader = _RoutesParser(folder or Path(), storage_options)
        routes = [reader.parse_route(number, raw_route) for number, raw_route in enumerate(raw, 1)]
        reader.check_all_routes([route for route in routes if route is not None])
        if reader.problems:
            raise WrongRoutes("\n".join(reader.problems))
        return cls(tuple(route for route in routes if route is not None))

    @property
    def lake_uris(self) -> tuple[str, ...]:
        """The URIs of all lakes, each once, in the order of their first routes."""
        return tuple(dict.fromkeys(route.lake for route in self.routes))

    def find_routes(self, uri: str) -> tuple[Route, ...]:
        """The routes of the capture `s3://bucket/key`: none, one, or several to different lakes.

        Files of a lake have no route, even if a pattern matches them.
        """
        if any(uri.startswith(f"{lake}/") for lake in self.lake_uris):
            return ()
        bucket, _, key = uri.partition("://")[2].partition("/")
        routes_by_lake: dict[str, Route] = {}
        for route in self.routes:
            if route.matches_object(bucket, key):
                routes_by_lake.setdefault(route.lake, route)
                if not route.also:
                    break
        return tuple(routes_by_lake.values())


class _RoutesParser:
    """Parses routes and collects all problems."""

    def __init__(self, folder: Path, storage_options: Mapping[str, str] | None) -> None:
        self.problems: list[str] = []
        self._folder, self._storage_options = folder, storage_options
        self._where = ""

    def _add_problem(self, text: str) -> None:
        self.problems.append(f"{self._where}: {text}")

    def parse_route(self, number: int, raw: Any) -> Route | None:
        self._where = f"route {number}"
        if not isinstance(raw, Mapping):
            self._add_problem(f"must be a map of `key: value` lines, not {raw!r}")
            return None
        before = len(self.problems)
        for key in raw:
            if key not in _KEYS:
                self._add_problem(f"has no key {key!r}; {suggest_name(str(key), _KEYS)}")
        name = self._read_text(raw, "name") or self._where
        if "name" in raw:
            self._where += f" ({name})"
        bucket, key = self._read_text(raw, "bucket", needed=True), self._read_text(raw, "key") or "*"
        if "/" in bucket:
            self._add_problem(f"bucket is {bucket!r}; write only its name, and the rest under `key`")
        if key.startswith("/"):
            self._add_problem(f"key is {key!r}; keys do not start with /")
        also = raw.get("also", False)
        if not isinstance(also, bool):
            self._add_problem(f"also is {also!r}; write true or false")
        lake, profile = self._parse_lake_uri(raw), self._load_profile(raw)
        if len(self.problems) > before:
            return None
        return Route(name=name, bucket=bucket, key=key, lake=lake, profile=profile, also=also)

    def _read_text(self, raw: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
        value = raw.get(key)
        if isinstance(value, str) and value:
            return value
        if value is not None:
            self._add_problem(f"{key} is {value!r}; write a string, in quotes")
        elif needed:
            self._add_problem(f"{key} is missing")
        return ""

    def _parse_lake_uri(self, raw: Mapping[str, Any]) -> str:
        uri = self._read_text(raw, "lake", needed=True)
        if not uri:
            return ""
        try:
            return Store.open(uri, self._storage_options).uri
        except Fatal as error:
            self._add_problem(f"lake: {error}")
            return ""

    def _load_profile(self, raw: Mapping[str, Any]) -> Profile:
        profile = Profile.default()
        if path := self._read_text(raw, "profile"):
            try:
                profile = Profile.load(self._folder / path)
            except ProfileError as error:
                self._add_problem(f"profile {path}: {error}")
        vehicle_id, pattern = self._read_text(raw, "vehicle_id"), self._read_text(raw, "vehicle_id_pattern")
        if vehicle_id and pattern:
            self._add_problem("has vehicle_id and vehicle_id_pattern; keep one of them")
        if vehicle_id:
            return replace(profile, vehicle_id=vehicle_id)
        if not pattern:
            return profile
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            self._add_problem(f"vehicle_id_pattern is not a regular expression: {error}; correct {pattern!r}")
            return profile
        if "vehicle_id" not in compiled.groupindex:
            self._add_problem("vehicle_id_pattern needs a group vehicle_id, such as (?P<vehicle_id>[^/]+)")
        return replace(profile, vehicle_id_pattern=compiled)

    def check_all_routes(self, routes: Sequence[Route]) -> None:
        """Checks the routes against each other and against the lakes."""
        lakes = {route.lake for route in routes}
        for number, route in enumerate(routes):
            self._where = route.name
            for earlier in routes[:number]:
                if earlier.name == route.name:
                    self._add_problem("another route has the same name")
                if earlier.shadows_route(route):
                    self._add_problem(f"is never reached: {earlier.name} takes everything; give that one `also: true`")
            fixed = re.split(r"[*?\[]", route.key, maxsplit=1)[0]
            for lake in sorted(lakes):
                bucket = lake.removeprefix("s3://").partition("/")[0]
                if fnmatchcase(bucket, route.bucket) and f"s3://{bucket}/{fixed}".startswith(f"{lake}/"):
                    self._add_problem(
                        f"selects keys of the bucket {bucket} that are inside the lake {lake}, and those are never ingested: put "
                        f"the lake next to its captures, as s3://{bucket}/lake, or name other buckets in the route"
                    )
        for lake in sorted(lakes):
            for other in sorted(lakes):
                if lake.startswith(f"{other}/"):
                    self._where = lake
                    self._add_problem(f"is inside the lake {other}, which would delete files that it does not know")


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a string", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
