"""Where captures lie: buckets and prefixes, as routes name them or a person does. Knows patterns, and asks nobody."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..routes import Routes, WrongRoutes

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Every key of `bucket` that begins with `prefix`, which need not end with a slash."""

    bucket: str
    prefix: str = ""

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def covers(self, other: Place) -> bool:
        return self.bucket == other.bucket and other.prefix.startswith(self.prefix)


def named(uri: str) -> tuple[Place, str]:
    """`s3://bucket/prefix`, or a glob of keys -> the place, and the glob that its keys must match ("*": all).

    ValueError when it is neither.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in ("s3", "s3a", "s3n") or not bucket or _MAGIC & set(bucket):
        raise ValueError(f"{uri!r} is no place in a bucket; write s3://bucket/prefix or s3://bucket/a/*.pcap")
    prefix = fixed(key)
    return Place(bucket=bucket, prefix=prefix), "*" if prefix == key else key


def fixed(pattern: str) -> str:
    """What every name that matches begins with."""
    return pattern[: min((pattern.index(one) for one in _MAGIC & set(pattern)), default=len(pattern))]


def watched(routes: Routes, buckets: Collection[str] = (), *, by: str = "--bucket NAME") -> tuple[Place, ...]:
    """Where the routes' captures may lie, no place twice, sorted. WrongRoutes when a bucket must be named.

    `buckets`: real names for routes whose bucket is a pattern; `by`: how a person names one.
    """
    for bucket in buckets:
        if not any(fnmatchcase(bucket, route.bucket) for route in routes.routes):
            raise WrongRoutes(f"no route is about the bucket {bucket}: leave it away, or write a route")
    known = {route.bucket for route in routes.routes if not _MAGIC & set(route.bucket)} | set(buckets)
    places = []
    for route in routes.routes:
        found = [bucket for bucket in known if fnmatchcase(bucket, route.bucket)]
        if not found:
            raise WrongRoutes(
                f"{route.name}: its bucket is the pattern {route.bucket!r}: name those that there are, by {by}"
            )
        places += [Place(bucket=bucket, prefix=fixed(route.key)) for bucket in found]
    return smallest(places)


def fixed_places(routes: Routes) -> tuple[Place, ...]:
    """As `watched`, without the routes whose bucket is a pattern."""
    exact = (route for route in routes.routes if not _MAGIC & set(route.bucket))
    return smallest(Place(bucket=route.bucket, prefix=fixed(route.key)) for route in exact)


def smallest(places: Iterable[Place]) -> tuple[Place, ...]:
    """The same keys by the fewest places."""
    kept: list[Place] = []
    for place in sorted(set(places)):  # a prefix comes before what begins with it
        if not any(one.covers(place) for one in kept):
            kept.append(place)
    return tuple(kept)
