"""The engines and their servers. Defines commands and environments; starts nothing.

Two have all of AWS that pcaplake uses: LocalStack (S3, SQS) with AWS's own DynamoDB Local is the reference. MiniStack is one
process with all three, installs in seconds and starts in two. They are independent implementations, so behavior that both
share is not a bug of one. Two are object stores alone: MinIO (S3) and Azurite (Azure Blob Storage).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

AwsEngine = Literal["localstack", "ministack"]
Engine = Literal["localstack", "ministack", "azurite", "minio"]
AWS_ENGINES: tuple[AwsEngine, ...] = get_args(AwsEngine)
ENGINES: tuple[Engine, ...] = get_args(Engine)
LOOPBACK = "127.0.0.1"
HERE = Path(__file__).parent
SERVICES = "s3,sqs,sns,dynamodb"
REGION = "us-east-1"
MINIO_USER, MINIO_PASSWORD = "minio", "minio-secret"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Not a secret: Microsoft documents it for every Azurite."""
_AWS_HEALTH = ("/_localstack/health", 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """One process: `command` with `environment` added, listening on `port` of loopback.

    It is up when the path `health` answers with that status, and ListTables too if it has DynamoDB.
    """

    name: str
    port: int
    health: tuple[str, int] | None
    dynamodb: bool
    command: tuple[str, ...]
    environment: Mapping[str, str]


def engine_venv_path(engine: Engine, state: Path) -> Path:
    """The engine's virtual environment; it is separate because its pins conflict with those of pcaplake."""
    return state / engine


def azurite_path(state: Path) -> Path:
    """The folder with Azurite's `node_modules`."""
    return state / "azurite"


def minio_path(state: Path) -> Path:
    """MinIO's binary."""
    return state / "minio" / "minio"


def dynamodb_jars_path(state: Path) -> Path:
    """The folder of DynamoDB Local with all its jars and native libraries."""
    return state / "dynamodb"


def servers_of_engine(
    engine: Engine, *, port: int, dynamodb_port: int, state: Path, run: Path
) -> tuple[EngineServer, ...]:
    """The servers to run. They keep their files in the folder `run`, which is deleted when they stop."""
    if engine in ("azurite", "minio"):
        return (_object_store(engine, port=port, state=state, run=run),)
    python = str(engine_venv_path(engine, state) / "bin" / "python")
    start = (python, str(HERE / "serve.py"), engine)
    common = {
        "SERVICES": SERVICES,
        "TMPDIR": str(run / "tmp"),
        "XDG_CACHE_HOME": str(run / "cache"),  # LocalStack keeps entry points there, by path, for all versions alike
    }
    if engine == "ministack":
        environment = common | {
            "BIND_HOST": LOOPBACK,
            "MINISTACK_HOST": LOOPBACK,
            "GATEWAY_PORT": str(port),
            "LOG_LEVEL": "WARNING",
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",  # would listen on a port of its own
            "DOCKER_HOST": f"unix://{run / 'no-docker.sock'}",  # otherwise it looks for old containers at every start
        }
        return (
            EngineServer(
                name="ministack", port=port, health=_AWS_HEALTH, dynamodb=True, command=start, environment=environment
            ),
        )
    environment = common | {
        "GATEWAY_LISTEN": f"{LOOPBACK}:{port}",
        "LOCALSTACK_HOST": f"{LOOPBACK}:{port}",
        "FILESYSTEM_ROOT": str(run / "files"),
        "SERVICES": "s3,sqs,sns",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "SQS_ENDPOINT_STRATEGY": "dynamic",  # the default queue URL names a host that resolves nowhere
        "DISABLE_EVENTS": "1",  # this and the next two: nothing tries to reach the internet
        "DNS_ADDRESS": "0",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
    }
    jars = dynamodb_jars_path(state)
    java = (
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Djava.library.path={jars}",
        "-cp",
        f"{jars}:{jars}/*",
        "DynamoLoopback",
        "-inMemory",
        "-sharedDb",  # else tables depend on access key and region
        "-disableTelemetry",
        "-port",
        str(dynamodb_port),
    )
    return (
        EngineServer(
            name="localstack", port=port, health=_AWS_HEALTH, dynamodb=False, command=start, environment=environment
        ),
        EngineServer(name="dynamodb", port=dynamodb_port, health=None, dynamodb=True, command=java, environment=common),
    )


def _object_store(engine: Engine, *, port: int, state: Path, run: Path) -> EngineServer:
    """Azurite or MinIO. `serve.py` runs its command, because neither ends with the process that started it."""
    address, tethered = f"{LOOPBACK}:{port}", (sys.executable, str(HERE / "serve.py"), engine)
    if engine == "azurite":
        main = azurite_path(state) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        options = ("--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck")
        command: tuple[str, ...] = ("node", str(main), "--blobHost", LOOPBACK, "--blobPort", str(port), *options)
        health = (f"/{AZURITE_ACCOUNT}?comp=list", 403)  # it answers, and wants a signature
        environment: Mapping[str, str] = {}
    else:
        command = (str(minio_path(state)), "server", "--quiet", "--address", address, str(run / "data"))
        health = ("/minio/health/ready", 200)
        environment = {
            "MINIO_ROOT_USER": MINIO_USER,
            "MINIO_ROOT_PASSWORD": MINIO_PASSWORD,
            "MINIO_BROWSER": "off",  # it would listen on a port of its own
            "MINIO_UPDATE": "off",
        }
    return EngineServer(
        name=engine, port=port, health=health, dynamodb=False, command=tethered + command, environment=environment
    )


def environment_of_clients(engine: Engine, *, port: int, dynamodb_port: int) -> dict[str, str]:
    """Environment variables that connect SDKs and pcaplake to this engine. No other settings are needed."""
    endpoint = f"http://{LOOPBACK}:{port}"
    if engine == "azurite":
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
            "AZURITE_BLOB_STORAGE_URL": endpoint,
            "PCAPLAKE_STORAGE_OPTION": "use_emulator=true",
        }
    region = {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}
    if engine == "minio":
        keys = {"AWS_ACCESS_KEY_ID": MINIO_USER, "AWS_SECRET_ACCESS_KEY": MINIO_PASSWORD}
        return {"AWS_ENDPOINT_URL_S3": endpoint, **keys, **region}
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_DYNAMODB": f"http://{LOOPBACK}:{dynamodb_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        **region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
