"""Which names a bucket or a container can have.

A name with other characters would be one bucket to whoever compares texts, such as a route, and another one to a store that
parses `scheme://name/key` as a URL: `a@b`, `b#1`, `b?2` and `b:3` all open the bucket `b`.
"""

from __future__ import annotations

import re

# Characters decide: a name that is too short is only a bucket that does not exist.
_NAMES = {
    # "Bucket naming rules" of the S3 user guide, with the older rules of us-east-1: up to 255 characters, `_`, capitals
    "s3": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?"),
    "gs": re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,220}[a-z0-9])?"),  # "Bucket names" of Cloud Storage
    "az": re.compile(r"\$root|\$web|\$logs|[a-z0-9](?:-?[a-z0-9]){0,62}"),  # "Container names" of Azure Blob Storage
}
_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"}


def is_bucket_name(scheme: str, name: str) -> bool:
    """Whether `name` can be a bucket of S3 or GCS, or a container of Azure, by the scheme of its URI.

    The scheme `abfs` has `container@account` too.
    """
    if scheme.startswith("abfs"):
        name = name.partition("@")[0]
    return _NAMES[_SCHEMES.get(scheme, "az")].fullmatch(name) is not None
