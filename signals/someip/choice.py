"""Which signals of SOME/IP messages are wanted, by patterns such as `VehicleState.wheels[*].speed`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

from .description import PayloadMessage, Services
from .members import list_paths

_INDEX = re.compile(r"\[(\d+|\*?)\]")


class PathChoice:
    """Patterns for paths, alone or after `Service.method.`: `*`, `?` and `[...]` as in file names; `[2]` is an index, `[*]` any.

    `unknown`: the patterns that name no signal of these services.
    """

    def __init__(self, services: Services, patterns: Iterable[str]) -> None:
        self._exact, self._leaves = {}, {}
        for pattern in patterns:
            self._exact[pattern] = re.compile(_translate(pattern, any_index=False))
            self._leaves[pattern] = re.compile(_translate(pattern, any_index=True))
        self._chosen: dict[str, frozenset[str]] = {}
        found: set[str] = set()
        for message in services:
            chosen = set()
            for path in list_paths(message):
                example = path.format(*[0] * path.count("{}"))
                its = [pattern for pattern, regex in self._leaves.items() if _matches(regex, message, example)]
                found.update(its)
                if its:
                    chosen.add(path)
            self._chosen[message.definition_hash] = frozenset(chosen)
        self.unknown = [pattern for pattern in self._exact if pattern not in found]

    def takes_any_of(self, message: PayloadMessage) -> bool:
        return bool(self._chosen[message.definition_hash])

    def leaves_of(self, message: PayloadMessage) -> Callable[[str], bool]:
        """Whether a path, with `{}` for each index, may be chosen."""
        return self._chosen[message.definition_hash].__contains__

    def takes(self, message: PayloadMessage, path: str) -> bool:
        return any(_matches(regex, message, path) for regex in self._exact.values())


def _matches(regex: re.Pattern[str], message: PayloadMessage, path: str) -> bool:
    return bool(regex.match(path) or regex.match(f"{message.name}.{path}") or regex.match(f"{message.method}.{path}"))


def _translate(pattern: str, *, any_index: bool) -> str:
    parts, at = [], 0
    for match in _INDEX.finditer(pattern):
        index = r"\d+" if any_index or match[1] in ("", "*") else match[1]
        parts += [_translate_plain(pattern[at : match.start()]), rf"\[{index}\]"]
        at = match.end()
    return "".join([*parts, _translate_plain(pattern[at:])]) + r"\Z"


def _translate_plain(pattern: str) -> str:
    return f"(?:{translate(pattern).removesuffix(chr(92) + 'Z')})"
