"""An S3 on loopback that keeps any key as it is: as much of it as listing a prefix and reading a capture take."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "raw"
LOOPBACK = "127.0.0.1"


class SmallS3:
    """`objects` by key; keys that are `refused` are listed and not given. `copies`: how often one
    was copied onto itself, with a key of KMS: its eTag is another one each time. `options` open it. Requests are not signed."""

    def __init__(self, port: int) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused: set[str] = set()
        self.copies: dict[str, int] = {}
        self.options = {
            "endpoint": f"http://{LOOPBACK}:{port}",
            "allow_http": "true",
            "region": "x",
            "skip_signature": "true",
        }

    def etag(self, key: str) -> str:
        return hashlib.md5(self.objects[key] + bytes(self.copies.get(key, 0)), usedforsecurity=False).hexdigest()

    def listing(self, prefix: str, encoded: bool) -> bytes:
        """ListObjectsV2: keys are encoded where the client asks for it, because XML cannot hold all of them."""

        def one(key: str) -> str:
            name, data = quote(key, safe="/") if encoded else escape(key), self.objects[key]
            tag = self.etag(key)
            return (
                f"<Contents><Key>{name}</Key><Size>{len(data)}</Size><ETag>&quot;{tag}&quot;</ETag>"
                "<LastModified>2026-03-01T12:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            )

        said = "".join(one(key) for key in sorted(self.objects) if key.startswith(prefix))
        encoding = "<EncodingType>url</EncodingType>" if encoded else ""
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{encoding}{said}</ListBucketResult>".encode()


@contextmanager
def small_s3() -> Iterator[SmallS3]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            key, query = unquote(asked.path).removeprefix(f"/{BUCKET}").removeprefix("/"), parse_qs(asked.query)
            if "list-type" in query:
                encoded = query.get("encoding-type") == ["url"]
                self.answer(200, s3.listing(query.get("prefix", [""])[0], encoded), "")
            elif key in s3.refused:
                self.answer(403, b"<Error><Code>AccessDenied</Code></Error>", "")
            elif key not in s3.objects:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", "")
            else:
                data = s3.objects[key]
                span = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if span is None:
                    self.answer(200, data, s3.etag(key))
                else:
                    start, end = int(span[1]), min(int(span[2]) + 1, len(data))
                    self.answer(206, data[start:end], s3.etag(key), f"bytes {start}-{end - 1}/{len(data)}")

        def answer(self, status: int, body: bytes, tag: str, span: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Sun, 01 Mar 2026 12:00:00 GMT")
            if tag:
                self.send_header("ETag", f'"{tag}"')
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        s3 = SmallS3(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield s3
        finally:
            server.shutdown()
            thread.join()
