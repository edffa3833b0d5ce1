"""Prints the part of requirements.lock, with hashes, that the project and the given extras need.

    python needed.py aws otel cluster > worker.txt       # the project with these extras
    python needed.py --only setuptools > build.txt       # only these packages

Reads the `# via` comments that uv writes. Needs no installed packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_ENTRY = re.compile(r"\n(?=\S)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def name_of(requirement: str) -> str:
    """The name `aiohttp` of `aiohttp[speedups]>=3`, as package indexes spell it."""
    match = _NAME.match(requirement)
    if match is None:
        raise SystemExit(f"needed.py: {requirement!r} is not a requirement")
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def entries(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package -> its lines in the lock file, and the packages that require it."""
    found = {}
    for entry in _ENTRY.split(lock.strip()):
        lines, _, via = entry.partition("    # via")
        wanted = [part.strip(" #") for part in via.splitlines()]
        found[name_of(entry)] = (lines.rstrip(), frozenset(name_of(one) for one in wanted if one))
    return found


def closure(locked: Mapping[str, tuple[str, frozenset[str]]], roots: Iterable[str]) -> list[str]:
    """The roots and all their dependencies, sorted. Exits if one is not in the lock file."""
    chosen: set[str] = set()
    todo = set(roots)
    while todo:
        if missing := todo - locked.keys():
            raise SystemExit(f"needed.py: not in requirements.lock: {', '.join(sorted(missing))}; run `make lock`")
        chosen |= todo
        todo = {name for name, (_, wanted) in locked.items() if wanted & chosen} - chosen
    return sorted(chosen)


def roots(project: Mapping[str, Mapping[str, object]], extras: Sequence[str]) -> list[str]:
    """The requirements of the project itself and of these extras."""
    table = project["project"]
    optional: Mapping[str, Sequence[str]] = table["optional-dependencies"]  # type: ignore[assignment]
    if unknown := [extra for extra in extras if extra not in optional]:
        raise SystemExit(f"needed.py: no extra {unknown[0]!r}; available: {', '.join(optional)}")
    own: Sequence[str] = table["dependencies"]  # type: ignore[assignment]
    return [name_of(one) for one in [*own, *(each for extra in extras for each in optional[extra])]]


def main(arguments: Sequence[str]) -> int:
    here = Path()
    locked = entries((here / "requirements.lock").read_text())
    if arguments[:1] == ["--only"]:
        chosen = closure(locked, map(name_of, arguments[1:]))
    else:
        chosen = closure(locked, roots(tomllib.loads((here / "pyproject.toml").read_text()), arguments))
    print("\n".join(locked[name][0] for name in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
