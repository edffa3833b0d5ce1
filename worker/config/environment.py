"""Reads environment variables: PCAPLAKE_..., and those of AWS, Spark, Java, Kubernetes and OpenTelemetry.

No other module reads the environment. It imports nothing of pcaplake, so it costs a command nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

PREFIX = "PCAPLAKE_"
S3 = ("s3://", "s3a://", "s3n://")
AZURE = ("az://", "azure://", "abfs://", "abfss://")
SAFE_PATH = "PYTHONSAFEPATH"  # Python looks for no modules in the working directory, which may contain files of others


def is_debug_enabled() -> bool:
    """PCAPLAKE_DEBUG: show the traceback of an unexpected error."""
    return bool(read_variable("debug"))


def read_variable(name: str) -> str | None:
    """The variable PCAPLAKE_<NAME>, or None."""
    return os.environ.get(f"{PREFIX}{name.upper()}")


def read_variables(names: Collection[str]) -> dict[str, str]:
    """The variables PCAPLAKE_<NAME> of these names that are set, in upper or lower case, by name."""
    found = {name.upper().removeprefix(PREFIX): os.environ[name] for name in list_variables()}
    return {name: found[name.upper()] for name in names if name.upper() in found}


def list_variables() -> list[str]:
    """The names of all variables PCAPLAKE_... that are set."""
    return [name for name in os.environ if name.upper().startswith(PREFIX)]


def limit_numpy_threads() -> None:
    """Keeps numpy's linear algebra, which pcaplake does not use, from starting threads that spin while they wait for work."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def is_terminal_forced() -> bool:
    """FORCE_COLOR or TTY_COMPATIBLE, with which rich may treat a pipe as a terminal."""
    return "FORCE_COLOR" in os.environ or "TTY_COMPATIBLE" in os.environ


def read_aws_region() -> str | None:
    """AWS_REGION, which newer SDKs read; botocore reads only AWS_DEFAULT_REGION and its files."""
    return os.environ.get("AWS_REGION")


def read_aws_endpoint(service: str) -> str | None:
    """The endpoint of a service, from the variables of the SDKs, such as AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL")


def implied_storage_options(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options of the store of `uri` that `options` and the environment imply, so that obstore and deltalake reach the same store.

    - `allow_http`, if the endpoint is http://, or AWS_ALLOW_HTTP is true: obstore reads AWS_ALLOW_HTTP only if its client gets
      no options, and pcaplake always passes some.
    - `endpoint`, from AWS_ENDPOINT_URL_S3: deltalake reads only AWS_ENDPOINT_URL. Without an endpoint, it takes the store
      for AWS, and looks for region and credentials in the metadata service of the machine. For Azure, from
      AZURE_STORAGE_ENDPOINT, which both read.
    - `use_emulator`, if the endpoint of an Azure account is `http://HOST:PORT/ACCOUNT`, as only Azurite has it. Azurite ignores
      `startFrom` when it lists, so clients must know that they talk to it: else deltalake takes old versions of a log for
      new ones ("Invalid table version"). They read the address of an emulator only from AZURITE_BLOB_STORAGE_URL, which is
      set here.
    """
    if not uri.startswith((*S3, *AZURE)):
        return {}
    given = {_bare_name(name): value for name, value in options.items()}
    named = given.get("endpoint") or given.get("endpoint_url") or ""
    endpoint = named or (read_aws_endpoint("s3") if uri.startswith(S3) else _read_azure_endpoint()) or ""
    implied = {}
    if endpoint and not named:
        implied["endpoint"] = endpoint
    aws_allows = uri.startswith(S3) and os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    if "allow_http" not in given and (aws_allows or endpoint.lower().startswith("http://")):
        implied["allow_http"] = "true"
    if uri.startswith(AZURE) and "use_emulator" not in given:
        account = given.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        server, _, path = endpoint.rstrip("/").rpartition("/")
        if account and path == account and "://" in server:
            os.environ["AZURITE_BLOB_STORAGE_URL"] = server
            implied["use_emulator"] = "true"
    return implied


def _read_azure_endpoint() -> str | None:
    return os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")


def _bare_name(option: str) -> str:
    """The name of a storage option without the prefix of its service."""
    bare = option.lower()
    for prefix in ("aws_", "azure_storage_", "azure_"):
        bare = bare.removeprefix(prefix)
    return bare


def is_started_by_spark_submit() -> bool:
    """True if spark-submit started this process, which then has a JVM with a master and a class path."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def set_spark_python(executable: str, *, replace: bool = False) -> None:
    """Makes executors use this Python. A value of PYSPARK_PYTHON that is already set stays unless it is to `replace`."""
    if replace or not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = executable


def read_java_home() -> str | None:
    """JAVA_HOME, by which Spark finds Java; without it Spark looks on the PATH."""
    return os.environ.get("JAVA_HOME") or None


def read_pod_identity() -> tuple[str, str] | None:
    """Namespace and name of this process's pod, from the Downward API: POD_NAMESPACE and POD_NAME."""
    namespace, name = os.environ.get("POD_NAMESPACE"), os.environ.get("POD_NAME")
    return (namespace, name) if namespace and name else None


def read_traces_endpoint() -> str | None:
    """The URL for traces from OpenTelemetry's own variables."""
    if named := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return named
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/traces" if base else None


def state_folder() -> Path:
    """Where a user's programs keep what they remember. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "pcaplake"
