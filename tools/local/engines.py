"""The two engines and their servers. Defines commands and environments; starts nothing.

LocalStack (S3, SQS) with AWS's own DynamoDB Local is the reference. MiniStack is one process with all three, installs in
seconds and starts in two. They are independent implementations, so behavior that both share is not a bug of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Engine = Literal["localstack", "ministack"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
LOOPBACK = "127.0.0.1"
HERE = Path(__file__).parent
SERVICES = "s3,sqs,sns,dynamodb"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """One process: `command` with `environment` added, listening on `port` of loopback.

    It is up when the health page (LocalStack, MiniStack) or ListTables (DynamoDB Local) answers.
    """

    name: str
    port: int
    health: bool
    dynamodb: bool
    command: tuple[str, ...]
    environment: Mapping[str, str]


def engine_venv_path(engine: Engine, state: Path) -> Path:
    """The engine's virtual environment; it is separate because its pins conflict with those of pcaplake."""
    return state / engine


def dynamodb_jars_path(state: Path) -> Path:
    """The folder of DynamoDB Local with all its jars and native libraries."""
    return state / "dynamodb"


def servers_of_engine(
    engine: Engine, *, port: int, dynamodb_port: int, state: Path, run: Path
) -> tuple[EngineServer, ...]:
    """The servers to run. They keep their files in the folder `run`, which is deleted when they stop."""
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
                name="ministack", port=port, health=True, dynamodb=True, command=start, environment=environment
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
        EngineServer(name="localstack", port=port, health=True, dynamodb=False, command=start, environment=environment),
        EngineServer(
            name="dynamodb", port=dynamodb_port, health=False, dynamodb=True, command=java, environment=common
        ),
    )
