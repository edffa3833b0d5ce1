"""The jars that Spark needs in addition to pyspark's own: Delta, S3A and this project's log store. Maven builds them once.

    python -m pcaplake.spark_jobs.jars [--stock] [FOLDER]

The folder's name is a hash of the sources, so a newer pcaplake builds its own jars and a folder never changes. An image
without Maven gets the jars while it is built (FOLDER), and PCAPLAKE_SPARK_JARS names that folder at run time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import visible
from pcaplake.worker.config.environment import PREFIX, read_variable

HERE = Path(__file__).parent
LOG_STORE = HERE / "logstore"
NOTICE = "fetching the jars for Spark with Maven, once, about a minute"
_USAGE = """usage: python -m pcaplake.spark_jobs.jars [--stock] [FOLDER]

Build the jars for Spark with Maven, once, and print their folder. Needs a JDK 17 or newer, and access to a Maven
repository. FOLDER: build them there, for an image; set PCAPLAKE_SPARK_JARS to it at run time. --stock: also Delta's
own S3DynamoDBLogStore (`pcaplake docs spark`)."""
_MADE_FROM = "made-from"
_LAST_LINES = 15


def require_jars(*, stock: bool = False) -> Path:
    """The folder with all jars. Raises Fatal if they are not built yet; a job does not download anything.

    `stock`: with Delta's S3DynamoDBLogStore.
    """
    folder = _existing_folder(stock)
    if folder is None:
        raise Fatal(
            f"the jars for Spark are not built yet: run `python -m pcaplake.spark_jobs.jars{' --stock' if stock else ''}` once "
            "(it needs a JDK 17 or newer, Maven, and access to a Maven repository)"
        )
    return folder


def _existing_folder(stock: bool) -> Path | None:
    named = read_variable("spark_jars")
    if named is not None:
        return _require_same_version(Path(named), stock)
    with contextlib.suppress(RuntimeError, OSError):  # the user has no home folder
        folder = _cache_folder() / f"spark-{source_fingerprint(stock=stock)}"
        return folder if folder.is_dir() else None
    return None


def _cache_folder() -> Path:
    return Path.home() / ".cache" / "pcaplake"


def ensure_jars(*, stock: bool = False) -> Path:
    """The folder with all jars, which is built first if it does not exist. `stock`: add Delta's S3DynamoDBLogStore.

    Raises Fatal if Maven is missing or fails, or the cache folder cannot be written; the message says what to do.
    """
    existing = _existing_folder(stock)
    if existing is not None:
        return existing
    try:
        base = _cache_folder()
        folder = base / f"spark-{source_fingerprint(stock=stock)}"
        base.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError) as error:  # the user has no home folder
        raise Fatal(
            f"the jars for Spark are cached in the home folder, which cannot be written ({error}): build them with `python "
            f"-m pcaplake.spark_jobs.jars FOLDER`, and set {PREFIX}SPARK_JARS to that folder"
        ) from error
    with (base / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of several processes builds them
        if not folder.is_dir():
            build_jars(folder, stock=stock)
    return folder


def source_fingerprint(*, stock: bool = False) -> str:
    """A hash of everything that the jars are built from."""
    digest = hashlib.blake2b(digest_size=8)
    for path in [HERE / "pom.xml", LOG_STORE / "pom.xml", *sorted((LOG_STORE / "src" / "main").rglob("*.java"))]:
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest() + ("-stock" if stock else "")


def build_jars(folder: Path, *, stock: bool = False) -> None:
    """Fetch and compile the jars; `folder` appears when it is complete."""
    print(NOTICE, file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        jar_folder, source = Path(scratch) / "jars", Path(scratch) / "logstore"
        # the installed sources may be read-only
        shutil.copytree(LOG_STORE, source, ignore=shutil.ignore_patterns("target"))
        profile = ["-Pstock"] if stock else []
        copy = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jar_folder}")
        _run_maven(HERE / "pom.xml", *profile, *copy)
        _run_maven(source / "pom.xml", "-Dmaven.test.skip=true", "package")
        for jar in (source / "target").glob("*.jar"):
            shutil.copy(jar, jar_folder)
        (jar_folder / _MADE_FROM).write_text(source_fingerprint(stock=stock))
        jar_folder.rename(folder)


def _run_maven(pom: Path, *arguments: str) -> None:
    try:
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(pom), *arguments],
            cwd=pom.parent,  # Maven reads settings, which may name extensions, from `.mvn` in the working directory
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise Fatal(
            "the jars for Spark are built with Maven, which is not installed: install it with a JDK 17 or newer (Debian: "
            f"apt-get install maven), or set {PREFIX}SPARK_JARS to a folder that has the jars"
        ) from error
    if done.returncode:
        for line in done.stdout.splitlines()[-_LAST_LINES:]:
            print(visible(line), file=sys.stderr)
        raise Fatal(
            "Maven could not build the jars for Spark; it needs access to a repository once. Its output is above"
        )


def _require_same_version(folder: Path, stock: bool) -> Path:
    try:
        made_from = (folder / _MADE_FROM).read_text()
    except OSError as error:
        raise Fatal(
            f"{PREFIX}SPARK_JARS: {folder} has no jars built by `python -m pcaplake.spark_jobs.jars {folder}`: {error}"
        ) from error
    if made_from not in (source_fingerprint(stock=stock), source_fingerprint(stock=True)):
        raise Fatal(
            f"{PREFIX}SPARK_JARS: the jars in {folder} were built by another version of pcaplake: delete the folder and build it "
            f"again with `python -m pcaplake.spark_jobs.jars {folder}`"
        )
    return folder


def main(arguments: Sequence[str]) -> int:
    folders = [argument for argument in arguments if argument != "--stock"]
    stock = len(folders) < len(arguments)
    if len(folders) > 1 or (folders and folders[0].startswith("-")):
        print(_USAGE, file=sys.stderr)
        return 0 if folders in (["--help"], ["-h"]) else 2
    try:
        if folders:
            build_jars(Path(folders[0]).absolute(), stock=stock)
        else:
            print(ensure_jars(stock=stock))
    except (Fatal, OSError) as error:
        print(f"jars: {visible(str(error))}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
