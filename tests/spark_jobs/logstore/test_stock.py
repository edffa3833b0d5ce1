"""Delta's own S3DynamoDBLogStore on the same lock table, wherever Maven finds its artifact.

It stands on the first AWS SDK, which knows no endpoint but by a file of regions, and speaks nothing but TLS to it: so a
terminator stands before the local DynamoDB.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.spark_jobs import jars
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.fleet import Spark
from tests.spark_jobs.logstore.places import Place
from tests.spark_jobs.tables import Shared

REGIONS = """<XML><Regions><Region><Name>us-east-1</Name><Domain>amazonaws.com</Domain>
<Endpoint><ServiceName>dynamodb</ServiceName><Http>false</Http><Https>true</Https><Hostname>{}</Hostname></Endpoint>
</Region></Regions></XML>
"""


@asynccontextmanager
async def over_tls(url: str, folder: Path) -> AsyncIterator[str]:
    """host:port that answers as `url` does, over TLS."""
    there = urlsplit(url)
    key, certificate = folder / "tls.key", folder / "tls.crt"
    named = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *named]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


@pytest.mark.slow
async def test_the_stock_class_in_turns_with_ours(site: Site, tmp_path: Path) -> None:
    try:
        jars.ensure_jars(stock=True)
    except Fatal as error:
        pytest.skip(f"Delta's artifact cannot be had here: {error}")
    table = Shared(site)

    async def main() -> None:
        async with over_tls(site.aws.dynamodb, tmp_path) as address:
            regions = tmp_path / "regions.xml"
            regions.write_text(REGIONS.format(address))
            place = Place(table, tmp_path)
            key, secret = (place.settings[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
            place.settings["JAVA_TOOL_OPTIONS"] = (
                f"-Dcom.amazonaws.regions.RegionUtils.fileOverride={regions} -Dcom.amazonaws.sdk.disableCertChecking=true"
                f" -Daws.accessKeyId={key} -Daws.secretKey={secret}"
            )
            spark = Spark(place, "stock")  # type: ignore[arg-type]
            await spark.start("stock")
            try:
                await spark.ready()
                await table.append([1, 2])
                assert "error" not in await spark.ask("append", "t")
                for state in ("entry", "complete"):
                    await table.append([3], dies=state)
                    answer = await spark.ask("read", "t")
                    assert "error" not in answer, answer
                    assert "error" not in await spark.ask("optimize", "t")
                    last = max(table.items())
                    table.unmake(last, keep=state == "complete")
                    assert await table.append([4])
            finally:
                await spark.kill()

    await main()
    table.versions()
