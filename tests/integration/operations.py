"""Which operation of S3, SQS or DynamoDB an HTTP request is. Knows their protocols by name, and no connection."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs, unquote

# What a query parameter of S3 makes of the method, and the method without one.
_BUCKET_OPERATIONS = {
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versioning"): "GetBucketVersioning",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("GET", "notification"): "GetBucketNotificationConfiguration",
    ("PUT", "notification"): "PutBucketNotificationConfiguration",
    ("POST", "delete"): "DeleteObjects",
    ("GET", ""): "ListObjects",
    ("PUT", ""): "CreateBucket",
    ("HEAD", ""): "HeadBucket",
    ("DELETE", ""): "DeleteBucket",
}
_OBJECT_OPERATIONS = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("PUT", "uploadId"): "UploadPart",
    ("GET", "uploadId"): "ListParts",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "tagging"): "GetObjectTagging",
    ("PUT", "tagging"): "PutObjectTagging",
    ("GET", ""): "GetObject",
    ("PUT", ""): "PutObject",
    ("HEAD", ""): "HeadObject",
    ("DELETE", ""): "DeleteObject",
}
_OF_COPIES = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}


def in_xml(method: str, raw_path: str) -> bool:
    """Whether it deletes many objects: its body names them."""
    return method == "POST" and raw_path.partition("?")[2].partition("=")[0] == "delete"


def in_body(method: str, headers: Mapping[str, str]) -> bool:
    """Whether the request is JSON or a form: small, and its body says what it is about. S3's bodies are objects."""
    if "X-Amz-Target" in headers:
        return True
    return method == "POST" and headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded")


def name_of(method: str, raw_path: str, headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """The operation as the SDKs call it, and the decoded key (S3, path style; else empty).

    `headers` find their names in any case. What has no name here is called by its method and path.
    """
    target = headers.get("X-Amz-Target")
    if target is not None:
        return target.rpartition(".")[2], ""
    path, _, query = raw_path.partition("?")
    parameters = parse_qs(query, keep_blank_values=True)
    if in_body(method, headers):
        parameters |= parse_qs(body.decode())
    if "Action" in parameters:
        return parameters["Action"][0], ""
    bucket, _, quoted = path.removeprefix("/").partition("/")
    key = unquote(quoted)
    if not bucket:
        return ("ListBuckets" if method == "GET" else f"{method} {raw_path}"), ""
    names = _OBJECT_OPERATIONS if key else _BUCKET_OPERATIONS
    unnamed = f"{method} {raw_path}"
    for (of, parameter), name in names.items():
        if of == method and parameter in parameters:
            return _copied(name, headers), key
    subresource = any(part and "=" not in part for part in query.split("&"))  # such as ?acl, which has no name here
    return (unnamed if subresource else _copied(names.get((method, ""), unnamed), headers)), key


def conditions_of(headers: Mapping[str, str]) -> frozenset[str]:
    """The headers that make a request of S3 conditional, in lower case."""
    return frozenset({"if-match", "if-none-match"} & {name.lower() for name in headers})


def _copied(name: str, headers: Mapping[str, str]) -> str:
    return _OF_COPIES.get(name, name) if "x-amz-copy-source" in headers else name
