"""One bucket on loopback that speaks S3, the XML API of Google Cloud Storage, or Azure Blob Storage.

What it answers to conditional writes is as documented:

- S3: "Preventing object overwrites with conditional writes" (user guide): `If-None-Match: *` on what is there is 412,
  `If-Match` of another eTag 412, of what is not there 404.
- Google: "Request preconditions" and "x-goog-if-generation-match" (XML API reference): the generation must be the one
  given, 0 means that there must be none; else 412. Each write makes another generation.
- Azure: "Specifying conditional headers for Blob service operations": `If-None-Match: *` on what is there is 409
  BlobAlreadyExists, `If-Match` of another eTag, or of what is not there, 412 ConditionNotMet.

`honors`: the headers that are not ignored, as they are by stores that do not know them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from pcaplake.lake.store.store import Store

CREATE, MATCH, GENERATION = "If-None-Match", "If-Match", "x-goog-if-generation-match"
CONDITIONS = (CREATE, MATCH, GENERATION)
KEY = "c2VjcmV0"  # base64
KINDS = ("s3", "gs", "az")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Kept:
    data: bytes
    etag: str
    generation: int


class Bucket:
    """`seen`: the conditions of every PUT, in order. `keeps`: nobody may delete (S3). `loses`: a list that begins after a path
    is empty, as it was in Microsoft's OneLake (apache/arrow-rs-object-store, issue 695).
    """

    def __init__(self, kind: str, honors: Collection[str] = CONDITIONS) -> None:
        self.kind, self.honors = kind, honors
        self.objects: dict[str, Kept] = {}
        self.seen: list[dict[str, str]] = []
        self.lock, self.keeps, self.loses = threading.Lock(), False, False
        self._generations = itertools.count(1_700_000_000_000_000)

    def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> tuple[int, Kept | None]:
        """-> the status, and what is there now."""
        given = {name: headers[name] for name in CONDITIONS if name in headers}
        with self.lock:
            self.seen.append(given)
            there = self.objects.get(key)
            if status := self._refused(there, {name: value for name, value in given.items() if name in self.honors}):
                return status, there
            generation = next(self._generations)
            etag = f"0x{generation:x}"
            if self.kind == "s3":
                etag = hashlib.md5(data, usedforsecurity=False).hexdigest()  # the same for the same bytes
            made = self.objects[key] = Kept(data, f'"{etag}"', generation)
            return 201 if self.kind == "az" else 200, made

    def _refused(self, there: Kept | None, given: Mapping[str, str]) -> int | None:
        if self.kind == "gs":
            wanted = given.get(GENERATION)
            return 412 if wanted is not None and int(wanted) != (there.generation if there else 0) else None
        if CREATE in given and there is not None:
            return 409 if self.kind == "az" else 412
        if MATCH in given and there is None:
            return 412 if self.kind == "az" else 404
        return 412 if MATCH in given and there is not None and given[MATCH] != there.etag else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def _key(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        names = unquote(parts.path).removeprefix("/").split("/", 1)
        return names[1] if len(names) > 1 else "", parse_qs(parts.query, keep_blank_values=True)

    def _answer(
        self, status: int, kept: Kept | None = None, body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> None:
        self.send_response(status)
        if kept is not None:
            self.send_header("ETag", kept.etag)
            self.send_header("x-goog-generation", str(kept.generation))
            self.send_header("Last-Modified", formatdate(1.7e9, usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        length = len(kept.data) if self.command == "HEAD" and kept is not None else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        key, _ = self._key()
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, kept = self.server.bucket.put(key, data, self.headers)
        self._answer(status, kept if status < 300 else None)

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        key, query = self._key()
        if not key:
            self._list(query)
        else:
            self._read()

    def do_POST(self) -> None:
        """Deletes of S3 and Azure, of which there may be many in one request."""
        body, bucket = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.server.bucket
        keys = re.findall(r"DELETE /[^/]+/(\S+) HTTP" if bucket.kind == "az" else r"<Key>(.*?)</Key>", body)
        with bucket.lock:
            for key in () if bucket.keeps else keys:
                bucket.objects.pop(unquote(key) if bucket.kind == "az" else unescape(key), None)
        if bucket.kind == "az":
            parts = (
                f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n\r\n"
                for number in range(len(keys))
            )
            answer, kind = "".join([*parts, "--b--\r\n"]), "multipart/mixed; boundary=b"
        else:
            each = "<Error><Key>{}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
            each = each if bucket.keeps else "<Deleted><Key>{}</Key></Deleted>"
            deleted = "".join(map(each.format, keys))
            answer, kind = f"<DeleteResult>{deleted}</DeleteResult>", "application/xml"
        self._answer(202 if bucket.kind == "az" else 200, body=answer.encode(), headers={"Content-Type": kind})

    def do_DELETE(self) -> None:
        key, _ = self._key()
        with self.server.bucket.lock:
            there = self.server.bucket.objects.pop(key, None)
        self._answer(404 if there is None else 202 if self.server.bucket.kind == "az" else 204)

    def _read(self) -> None:
        kept = self.server.bucket.objects.get(self._key()[0])
        if kept is None:
            self._answer(404)
        elif asked := (self.headers.get("Range") or self.headers.get("x-ms-range")):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = kept.data[int(first) : int(last) + 1]
            shown = f"bytes {first}-{int(first) + len(part) - 1}/{len(kept.data)}"
            self._answer(206, kept, part, {"Content-Range": shown})
        else:
            self._answer(200, kept, kept.data)

    def _list(self, query: Mapping[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        after = next((query[name][0] for name in ("start-after", "startOffset", "startFrom") if name in query), "")
        found = sorted(item for item in self.server.bucket.objects.items() if item[0].startswith(prefix))
        if self.server.bucket.kind != "az":  # Azurite ignores it
            found = [(key, kept) for key, kept in found if key > after]
        if after and self.server.bucket.loses:
            found = []
        body = (_blobs if self.server.bucket.kind == "az" else _contents)(found)
        self._answer(200, body=body.encode(), headers={"Content-Type": "application/xml"})


def _contents(found: list[tuple[str, Kept]]) -> str:
    items = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
        f"<ETag>{escape(kept.etag)}</ETag><Size>{len(kept.data)}</Size></Contents>"
        for key, kept in found
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"


def _blobs(found: list[tuple[str, Kept]]) -> str:
    items = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{formatdate(1.7e9, usegmt=True)}</Last-Modified>"
        f"<Etag>{escape(kept.etag)}</Etag><Content-Length>{len(kept.data)}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for key, kept in found
    )
    return f"<EnumerationResults><Blobs>{items}</Blobs><NextMarker /></EnumerationResults>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bucket: Bucket) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.bucket = bucket


@contextmanager
def serving(kind: str, honors: Collection[str] = CONDITIONS) -> Iterator[tuple[Bucket, Store]]:
    """A bucket of `kind`, empty, and a store in it."""
    bucket = Bucket(kind, honors)
    server = _Server(bucket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield bucket, Store.open(f"{kind}://bucket/{uuid.uuid4().hex}", options(kind, server.server_address[1]))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def options(kind: str, port: int) -> dict[str, str]:
    """Storage options of a server on this port."""
    url = f"http://{LOOPBACK}:{port}"
    if kind == "gs":
        account = (
            f'{{"gcs_base_url":"{url}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}'
        )
        return {"google_service_account_key": account, "allow_http": "true"}
    if kind == "az":
        return {"account_name": "account", "account_key": KEY, "endpoint": url, "allow_http": "true"}
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
    return {**keys, "aws_endpoint": url, "allow_http": "true"}
