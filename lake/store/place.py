"""The places of lakes that all programs spell alike.

Our stores, deltalake, DuckDB, Spark and Hadoop parse paths and URIs in different ways: some decode `%20`, some drop what
follows `#`, some turn `\\` into `/`. A place with such a character would be several places: no reader would find the
tables, and deltalake would write a checkpoint into another lake.
"""

from __future__ import annotations

import re
from pathlib import Path

from pcaplake.common.errors import WrongChoice

from .bucket_names import is_bucket_name

_OF_ONE_PROGRAM = ("memory", "file")  # `refuse_ambiguous_folder` examines the folder of a file:// URI
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_MISTYPED = re.compile(r"(s3|s3a|s3n|gs|gcs|az|azure|abfss?|memory|file):(?!//)/?")
_IN_FOLDERS = re.compile(r"[%\\\x00-\x1f\x7f]")
_IN_URIS = frozenset("?#%\\[]|^")  # deltalake's datasets do not open tables at URIs with the last four


def refuse_ambiguous_folder(folder: Path) -> None:
    """Raise WrongChoice for an absolute path that other programs read as another folder, or not at all."""
    named = next((part for part in folder.parts if _IN_FOLDERS.search(part)), None)
    # rule: a place that programs spell in different ways holds no lake
    if named is not None:
        raise WrongChoice(
            f"the path {str(folder)!r} has {_IN_FOLDERS.search(named)[0]!r} in {named!r}, which other programs read as another "  # type: ignore[index]
            "name, so they would not open the tables there: rename that folder (a lake can be moved), or name another place"
        )


def refuse_ambiguous_uri(uri: str) -> None:
    """Raise WrongChoice for a URI of an object store that not all programs read alike, and for `s3:/bucket` and `~/lake`.

    Both would be names of folders below the working directory.
    """
    if mistyped := _MISTYPED.match(uri):
        slashes = ":///" if mistyped[1] in _OF_ONE_PROGRAM else "://"
        raise WrongChoice(f"{uri}: write {mistyped[1]}{slashes}{uri[mistyped.end() :]}")
    if uri.partition("/")[0] == "~":
        raise WrongChoice(f"{uri}: only a shell replaces ~, and only outside of quotes; write the folder in full")
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme in _OF_ONE_PROGRAM:
        return
    bucket, _, folder = rest.rstrip("/").partition("/")
    if not is_bucket_name(scheme, bucket):
        raise WrongChoice(
            f"{uri}: {bucket!r} is not a bucket; write {scheme}://bucket/path, without a key, a port or a query"
        )
    parts = folder.split("/") if folder else []
    if any(part in ("", ".", "..") for part in parts):
        better = "/".join([bucket, *(part for part in parts if part not in ("", "."))])
        raise WrongChoice(f"{uri}: a part of the path is empty, '.' or '..'; write {scheme}://{better}")
    if _ESCAPE.search(folder):
        raise WrongChoice(f"{uri}: {folder!r} is percent-encoded, which Spark takes literally; write the plain name")
    # rule: a place that programs spell in different ways holds no lake
    if odd := next((char for char in folder if char in _IN_URIS or not char.isprintable()), None):
        raise WrongChoice(f"{uri}: {folder!r} has {odd!r}, which not all programs read alike; use a path without it")
    if any(part != part.strip() for part in parts):
        raise WrongChoice(
            f"{uri}: a part of {folder!r} begins or ends with a space, which some programs drop; use another"
        )
