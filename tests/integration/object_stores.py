"""Object stores of several makers on loopback, and a reader of their lakes that shares no code with pcaplake.

`s3`: the S3 of the session's AWS engine. `azurite` and `minio`: servers of their own, which end with the tests, whatever happens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from obstore.store import from_url

from pcaplake.parser.schemas import TABLES
from tests.aws import Aws, start_engine
from tools.local.engines import AZURITE_ACCOUNT, AZURITE_KEY, LOOPBACK, Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreServer:
    """`options`: storage options that are all pcaplake needs. `reader`: those of the reader. `environment`: instead of
    `options`, as the documentation has it.
    """

    kind: str
    endpoint: str
    options: Mapping[str, str]
    reader: Mapping[str, str]
    environment: Mapping[str, str]

    def new_lake(self) -> str:
        """The URI of a lake in a new bucket or container."""
        name = f"lakes-{uuid.uuid4().hex[:12]}"
        if self.kind == "azurite":
            _create_container(self.endpoint, name)
            return f"az://{name}/drives"
        obstore_options = {name.removeprefix("aws_"): value for name, value in self.reader.items()}
        _create_bucket(self.endpoint, name, obstore_options)
        return f"s3://{name}/drives"

    def arguments(self) -> list[str]:
        """The storage options as arguments of a command."""
        return [part for name, value in self.options.items() for part in ("--storage-option", f"{name}={value}")]

    def table(self, lake: str, name: str) -> DeltaTable:
        return DeltaTable(f"{lake}/{name}", storage_options=dict(self.reader))

    def rows_once(self, lake: str) -> dict[str, int]:
        """Rows by table, after each row was seen to be there once by its key."""
        counts = {}
        for name, spec in TABLES.items():
            keys = self.table(lake, name).to_pyarrow_table(columns=list(spec.key))
            assert keys.group_by(list(spec.key)).aggregate([]).num_rows == keys.num_rows, f"{name} has a row twice"
            counts[name] = keys.num_rows
        return counts

    def copy(self, lake: str, to: str) -> None:
        source, target = self.connect(lake), self.connect(to)
        for chunk in obstore.list(source):
            for meta in chunk:
                obstore.put(target, meta["path"], obstore.get(source, meta["path"]).bytes())

    def connect(self, lake: str) -> Any:
        """The objects of the lake, by obstore."""
        config = {
            name: value for name, value in self.reader.items() if name != "aws_allow_http"
        }  # obstore panics on it
        return from_url(lake, config=config, client_options={"allow_http": True})  # type: ignore[call-overload]


def rows_by_capture(lake: Path, tables: Iterable[str] = TABLES) -> dict[Path, Counter[str]]:
    """Rows of a local lake by capture, and by table."""
    captures = DeltaTable(f"{lake}/captures").to_pyarrow_table(columns=["capture_id", "uri"])
    paths = {one["capture_id"]: Path(one["uri"].removeprefix("file://")) for one in captures.to_pylist()}
    found: dict[Path, Counter[str]] = {path: Counter() for path in paths.values()}
    for name in tables:
        ids: pa.ChunkedArray = DeltaTable(f"{lake}/{name}").to_pyarrow_table(columns=["capture_id"])["capture_id"]
        for id_, count in Counter(ids.to_pylist()).items():
            found[paths[id_]][name] += count
    return found


@contextmanager
def serve(kind: str, folder: Path, aws: Aws | None) -> Iterator[ObjectStoreServer]:
    if kind == "s3":
        assert aws is not None
        yield _s3_server(kind, aws.s3, "test", "test")
        return
    engine: Engine = "azurite" if kind == "azurite" else "minio"
    stack = start_engine(engine, folder)
    try:
        environment = stack.client_environment
        if kind == "minio":
            keys = (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"])
            yield _s3_server(kind, stack.endpoint_url, *keys)
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AZURITE_BLOB_STORAGE_URL", stack.endpoint_url)  # the only way to tell deltalake
            options = {
                "account_name": AZURITE_ACCOUNT,
                "account_key": AZURITE_KEY,
                "endpoint": f"{stack.endpoint_url}/{AZURITE_ACCOUNT}",
            }
            yield ObjectStoreServer(
                kind=kind,
                endpoint=stack.endpoint_url,
                options=options,
                reader={"use_emulator": "true"},
                environment={
                    "AZURITE_BLOB_STORAGE_URL": stack.endpoint_url,
                    "PCAPLAKE_STORAGE_OPTION": "use_emulator=true",
                },
            )
    finally:
        stack.stop()


def _s3_server(kind: str, endpoint: str, key: str, secret: str) -> ObjectStoreServer:
    options = {
        "aws_endpoint": endpoint,
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_region": "us-east-1",
    }
    environment = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL_S3": endpoint}
    return ObjectStoreServer(
        kind=kind,
        endpoint=endpoint,
        options=options,
        reader={**options, "aws_allow_http": "true"},
        environment={**environment, "PCAPLAKE_STORAGE_OPTION": "region=us-east-1"},
    )


def _create_bucket(endpoint: str, name: str, options: Mapping[str, str]) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name=options["region"],
    )
    client.create_bucket(Bucket=name)
    client.close()


def _create_container(endpoint: str, name: str) -> None:
    """PUT of a container with a Shared Key ("Authorize with Shared Key", Azure Storage REST API): obstore creates none."""
    date, version = formatdate(usegmt=True), "2021-12-02"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
    to_sign = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), to_sign.encode(), hashlib.sha256).digest()
    signature = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(LOOPBACK, urlsplit(endpoint).port or 0, timeout=30)
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": signature, "Content-Length": "0"}
    connection.request("PUT", f"/{AZURITE_ACCOUNT}/{name}?restype=container", headers=headers)
    assert connection.getresponse().status == 201
    connection.close()
