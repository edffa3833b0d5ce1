"""Which database describes which bus: the YAML file that a job is given.

    databases:
      chassis: [chassis.dbc, diagnosis.dbc]     # one file or several; paths from this file's folder
      body: vehicle.arxml#BodyCAN               # one network of a file that has several
      doors: doors.ldf
    buses:                                      # as in `can_frames.bus`; "*" is every bus that is not named
      CAN1: chassis
      "7": body
      "*": [chassis, doors]

Knows names, files and ids. Must not know Spark, nor what is in a payload.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from worker.errors import Fatal

from .files import load
from .model import Kind, Message

OTHERS = "*"
Key: TypeAlias = tuple[Kind, int, bool]
"""What names a message on a bus: kind, id, extended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The messages of one bus, from one database or several."""

    messages: Mapping[Key, Message]

    @classmethod
    def of(cls, messages: Iterable[Message], where: str) -> Network:
        """Fatal when two different messages have one id."""
        found: dict[Key, Message] = {}
        for one in messages:
            key = (one.kind, one.id, one.extended)
            other = found.setdefault(key, one)
            if other.hash != one.hash:
                raise Fatal(
                    f"{where}: {other.name} ({other.database}) and {one.name} ({one.database}) have the same id "
                    f"0x{one.id:x}: name one network of the file (`file.kcd#network`), or give them buses of their own"
                )
        return cls(messages=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Networks by bus; the one of OTHERS serves every bus without one of its own, and frames without a bus.

    `skipped`: why messages of the files are left out -> how many.
    """

    networks: Mapping[str, Network]
    skipped: Mapping[str, int]

    @classmethod
    def read(cls, path: str | Path) -> Databases:
        """From a YAML file as above, or one database file for all buses. Fatal says what to do."""
        path = Path(path)
        if path.suffix.lower() not in (".yaml", ".yml"):
            return cls.of_files([str(path)])
        try:
            said = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Fatal(f"cannot read {path}: {error.strerror}; give the path of a file") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Fatal(f"{path} is not YAML: {error}") from error
        return cls.parse(said, str(path), path.parent)

    @classmethod
    def of_files(cls, files: Sequence[str], folder: Path = Path()) -> Databases:
        """All files together, for every bus."""
        return cls.parse({"databases": {"all": list(files)}, "buses": {OTHERS: "all"}}, ", ".join(files), folder)

    @classmethod
    def parse(cls, said: Any, where: str, folder: Path) -> Databases:
        sections = _map(said, where)
        for name in sections.keys() - {"databases", "buses"}:
            raise Fatal(f"{where} has no key {name!r}; {_suggest(str(name), ('databases', 'buses'))}")
        skipped: Counter[str] = Counter()
        databases: dict[str, list[Message]] = {}
        for name, files in _map(sections.get("databases"), f"{where}: databases").items():
            databases[name] = []
            for one in _texts(files, f"{where}: databases.{name}"):
                file, _, network = one.partition("#")
                loaded = load(folder / file, network or None)
                databases[name] += loaded.messages
                skipped.update(loaded.skipped)
        if not databases:
            raise Fatal(f"{where} names no database; write `databases: {{name: file.dbc}}`")
        networks = {}
        buses = _map(sections.get("buses"), f"{where}: buses") or {OTHERS: list(databases)}
        for bus, names in buses.items():
            for name in _texts(names, f"{where}: buses.{bus}"):
                if name not in databases:
                    raise Fatal(f"{where}: bus {bus} has no database {name!r}; {_suggest(name, list(databases))}")
            messages = [one for name in _texts(names, "") for one in databases[name]]
            networks[str(bus)] = Network.of(messages, f"{where}: bus {bus}")
        return cls(networks=networks, skipped=dict(skipped))

    @property
    def named(self) -> tuple[str, ...]:
        """Buses that have a network of their own."""
        return tuple(sorted(bus for bus in self.networks if bus != OTHERS))

    def at(self, bus: str | None) -> Network | None:
        """Whatever describes the frames of a bus."""
        return self.networks.get(OTHERS if bus is None else bus) or self.networks.get(OTHERS)

    def __iter__(self) -> Iterator[tuple[str, Message]]:
        """(bus or OTHERS, message), in an order that does not change."""
        for bus in sorted(self.networks):
            for key in sorted(self.networks[bus].messages):
                yield bus, self.networks[bus].messages[key]

    def hash_of(self, database: str) -> str:
        """16 hex digits over all messages of one file."""
        found = sorted({one.hash for _, one in self if one.database == database})
        return hashlib.blake2b("".join(found).encode(), digest_size=8).hexdigest()


def _map(said: Any, where: str) -> dict[Any, Any]:
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise Fatal(f"{where} must be a map of `name: value` lines")
    return said


def _texts(said: Any, where: str) -> list[str]:
    found = said if isinstance(said, list) else [said]
    if not found or not all(isinstance(one, str) and one for one in found):
        raise Fatal(f"{where} must be a name or a list of names")
    return found


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"write one of: {', '.join(sorted(known))}"
