"""The jars that Spark needs beside pyspark's own: Delta, S3A, our log store. Made by Maven, once.

    python -m spark_jobs.jars [FOLDER]

Knows Maven and where the jars are kept. Must not know a session. The folder is named by what the jars are made from, so
a newer pcaplake makes its own, and what is in one never changes. An image that has no Maven gets them by FOLDER while
it is built, and is told of it by PCAPLAKE_SPARK_JARS.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from worker.errors import Fatal
from worker.settings import PREFIX, variable

HERE = Path(__file__).parent
LOG_STORE = HERE / "logstore"
NOTICE = "fetching the jars for Spark with Maven, once, about a minute"
_MADE_FROM = "made-from"
_LAST_LINES = 15


def jars(*, stock: bool = False) -> Path:
    """The folder with all jars, made first where there is none. `stock`: with Delta's own S3DynamoDBLogStore too.

    Raises Fatal where Maven is missing or fails; the message says what to do.
    """
    named = variable("spark_jars")
    if named is not None:
        return _checked(Path(named), stock)
    base = Path.home() / ".cache" / "pcaplake"
    folder = base / f"spark-{fingerprint(stock=stock)}"
    if folder.is_dir():
        return folder
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes one makes them
        if not folder.is_dir():
            make(folder, stock=stock)
    return folder


def fingerprint(*, stock: bool = False) -> str:
    """Of everything that the jars are made from."""
    digest = hashlib.blake2b(digest_size=8)
    for path in [HERE / "pom.xml", LOG_STORE / "pom.xml", *sorted((LOG_STORE / "src" / "main").rglob("*.java"))]:
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest() + ("-stock" if stock else "")


def make(folder: Path, *, stock: bool = False) -> None:
    """Fetch and compile; `folder` appears when it is complete."""
    print(NOTICE, file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        made, source = Path(scratch) / "jars", Path(scratch) / "logstore"
        shutil.copytree(LOG_STORE, source, ignore=shutil.ignore_patterns("target"))  # ours may be read-only
        profile = ["-Pstock"] if stock else []
        copy = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={made}")
        _maven(HERE / "pom.xml", *profile, *copy)
        _maven(source / "pom.xml", "-Dmaven.test.skip=true", "package")
        for jar in (source / "target").glob("*.jar"):
            shutil.copy(jar, made)
        (made / _MADE_FROM).write_text(fingerprint(stock=stock))
        made.rename(folder)


def _maven(pom: Path, *arguments: str) -> None:
    try:
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(pom), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise Fatal(
            "the jars for Spark are made with Maven, and there is none: install it with a JDK 17 or newer (Debian: "
            f"apt-get install maven), or name a folder that has them in {PREFIX}SPARK_JARS"
        ) from error
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise Fatal(f"Maven could not make the jars for Spark; it needs a repository once. It said:\n{last}")


def _checked(folder: Path, stock: bool) -> Path:
    try:
        made_from = (folder / _MADE_FROM).read_text()
    except OSError as error:
        raise Fatal(
            f"{PREFIX}SPARK_JARS: {folder} has no jars of `python -m spark_jobs.jars {folder}`: {error}"
        ) from error
    if made_from not in (fingerprint(stock=stock), fingerprint(stock=True)):
        raise Fatal(
            f"{PREFIX}SPARK_JARS: the jars in {folder} are of another version of pcaplake: delete the folder and make it "
            f"again with `python -m spark_jobs.jars {folder}`"
        )
    return folder


def main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print("usage: python -m spark_jobs.jars [FOLDER]", file=sys.stderr)
        return 2
    try:
        if arguments:
            make(Path(arguments[0]).absolute())
        else:
            print(jars())
    except (Fatal, OSError) as error:
        print(f"jars: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
