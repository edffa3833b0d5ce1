"""Buckets and prefixes of captures, from routes or from the command line. Makes no requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .routes import Routes, WrongRoutes
from .settings import WrongSetting

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """All keys of `bucket` that start with `prefix`, which may end without a slash."""

    bucket: str
    prefix: str = ""

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def covers_place(self, other: Place) -> bool:
        return self.bucket == other.bucket and other.prefix.startswith(self.prefix)


def parse_place(uri: str) -> tuple[Place, str]:
    """Parses `s3://bucket/prefix` or a glob of keys into a place and the glob that its keys must match ("*" for all).

    Raises WrongSetting for anything else.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in ("s3", "s3a", "s3n") or not bucket or _MAGIC & set(bucket):
        raise WrongSetting(f"{uri!r} is not a bucket with a prefix; write s3://bucket/prefix or s3://bucket/a/*.pcap")
    prefix = fixed_prefix(key)
    return Place(bucket=bucket, prefix=prefix), "*" if prefix == key else key


def fixed_prefix(pattern: str) -> str:
    """The fixed text that every matching name starts with."""
    return pattern[: min((pattern.index(letter) for letter in _MAGIC & set(pattern)), default=len(pattern))]


def find_watched_places(
    routes: Routes, buckets: Collection[str] = (), *, by: str = "--bucket NAME"
) -> tuple[Place, ...]:
    """The places where captures of the routes can be, sorted, without duplicates. Raises WrongRoutes if a bucket must be named.

    `buckets` are the real names for routes whose bucket is a pattern; `by` tells a user how to name one.
    """
    for bucket in buckets:
        if not any(fnmatchcase(bucket, route.bucket) for route in routes.routes):
            raise WrongRoutes(f"no route selects the bucket {bucket}: do not name it, or add a route for it")
    known = {route.bucket for route in routes.routes if not _MAGIC & set(route.bucket)} | set(buckets)
    places = []
    for route in routes.routes:
        matching_buckets = [bucket for bucket in known if fnmatchcase(bucket, route.bucket)]
        if not matching_buckets:
            raise WrongRoutes(
                f"{route.name}: its bucket is the pattern {route.bucket!r}: name the existing buckets with {by}"
            )
        places += [Place(bucket=bucket, prefix=fixed_prefix(route.key)) for bucket in matching_buckets]
    return remove_covered_places(places)


def places_in_named_buckets(routes: Routes) -> tuple[Place, ...]:
    """Like `find_watched_places`, but without routes whose bucket is a pattern."""
    exact = (route for route in routes.routes if not _MAGIC & set(route.bucket))
    return remove_covered_places(Place(bucket=route.bucket, prefix=fixed_prefix(route.key)) for route in exact)


def remove_covered_places(places: Iterable[Place]) -> tuple[Place, ...]:
    """The fewest places that cover the same keys."""
    kept: list[Place] = []
    for place in sorted(set(places)):  # a prefix sorts before the longer prefixes that start with it
        if not any(other.covers_place(place) for other in kept):
            kept.append(place)
    return tuple(kept)
