"""Which database describes which bus: the YAML file of `--databases`.

databases:
  chassis: [chassis.dbc, diagnosis.dbc]     # one file or several; paths are relative to this file
  body: vehicle.arxml#BodyCAN               # one network of a file with several
  doors: doors.ldf
  services: wireshark/                      # a folder of Wireshark's SOME/IP tables; applies to all SOME/IP messages
buses:                                      # as in `can_frames.bus`; "*" means all other buses
  CAN1: chassis
  "7": body
  "*": [chassis, doors]
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pcaplake.suggestions import suggest_name

from .errors import DatabaseError, add_reason, add_reasons
from .files import DatabaseLoader
from .j1939 import frame_keys
from .model import CAN_CARRIERS, Key, Kind, Message, Unreadable
from .someip.description import Services

OTHERS = "*"
UNKNOWN_CHANNEL = 1 << 20
"""Added to the number of a FlexRay frame whose channel is unknown: above every slot and cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The messages of one bus, from one database or several."""

    messages: Mapping[Key, Message]

    @classmethod
    def from_messages(cls, messages: Iterable[Message], where: str) -> Network:
        """Raises `DatabaseError` if two different messages have one id."""
        messages_by_key: dict[Key, Message] = {}
        for message in messages:
            for key in message.keys:
                other = messages_by_key.setdefault(key, message)
                if other.definition_hash != message.definition_hash:
                    raise DatabaseError(
                        f"{where}: {other.name} ({other.database}) and {message.name} ({message.database}) have the same id "
                        f"0x{message.id:x}: name one network or cluster of the file (`file.arxml#cluster`, or "
                        "`file.arxml#/path/of/cluster` if several have one name), or assign them to different buses"
                    )
        return cls(messages=messages_by_key)

    def find_message(self, kind: Kind, number: int, extended: bool) -> Message | None:
        """The message of frames with this key; of J1939, by the parameter group if no message has the whole identifier.

        On an unknown channel of FlexRay: that of channel A, or else of B.
        """
        if kind == "flexray" and number >= UNKNOWN_CHANNEL:
            number -= UNKNOWN_CHANNEL
            return self.messages.get((kind, number, False)) or self.messages.get((kind, number, True))
        found = self.messages.get((kind, number, extended))
        if found is None and extended and kind in CAN_CARRIERS:
            kind = "can"
            own, any_source = frame_keys(number)
            found = self.messages.get((kind, own, True)) or self.messages.get((kind, any_source, True))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Networks by bus; OTHERS applies to every bus that is not named, and to frames without a bus.

    `skipped`: reason -> number of messages that are left out. `lost`: unreadable lines and messages of the files -> why.
    `services`: of SOME/IP, which has no buses.
    """

    networks: Mapping[str, Network]
    skipped: Mapping[str, int]
    lost: Mapping[str, str] = field(default_factory=dict)
    services: Services = field(default_factory=Services)

    @classmethod
    def from_file(cls, path: str | Path) -> Databases:
        """Read a YAML file as above, or one database file for all buses. Raises `DatabaseError` with what to do."""
        path = Path(path)
        if path.suffix.lower() not in (".yaml", ".yml"):
            return cls.from_database_files([str(path)])
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DatabaseError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise DatabaseError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
        return cls.from_mapping(content, str(path), path.parent)

    @classmethod
    def from_database_files(cls, files: Sequence[str]) -> Databases:
        """Databases with all these files for every bus."""
        return cls.from_mapping({"databases": {"all": list(files)}, "buses": {OTHERS: "all"}}, ", ".join(files), Path())

    @classmethod
    def from_mapping(cls, content: Any, where: str, folder: Path) -> Databases:
        sections = _require_mapping(content, where)
        for name in sections.keys() - {"databases", "buses"}:
            raise DatabaseError(f"{where} has no key {name!r}; {suggest_name(str(name), ('databases', 'buses'))}")
        skipped: Counter[str] = Counter()
        lost: dict[str, str] = {}
        databases: dict[str, list[Message]] = {}
        services: list[Services] = []
        loader = DatabaseLoader()
        for name, files in _require_mapping(sections.get("databases"), f"{where}: databases").items():
            databases[name] = []
            for reference in _require_name_list(files, f"{where}: databases.{name}"):
                file, mark, network = reference.partition("#")
                if mark and not network:
                    raise DatabaseError(
                        f"{where}: `{reference}` names no network: write its name after `#`, or remove `#`"
                    )
                loaded = loader.load(folder / file, network or None)
                databases[name] += loaded.messages
                services.append(loaded.services)
                skipped.update(loaded.skipped)
                add_reasons(lost, loaded.lost)
        if not databases:
            raise DatabaseError(f"{where} names no database; write `databases: {{name: file.dbc}}`")
        networks = {}
        buses = _require_mapping(sections.get("buses"), f"{where}: buses") or {OTHERS: list(databases)}
        for bus, names in buses.items():
            for name in _require_name_list(names, f"{where}: buses.{bus}"):
                if name not in databases:
                    raise DatabaseError(
                        f"{where}: bus {bus} has no database {name!r}; {suggest_name(name, list(databases))}"
                    )
            messages = [message for name in _require_name_list(names, "") for message in databases[name]]
            networks[str(bus)] = Network.from_messages(messages, f"{where}: bus {bus}")
        return cls(networks=networks, skipped=dict(skipped), lost=lost, services=Services.join(services))

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of frames that they describe."""
        return frozenset(kind for _, message in self for kind in message.carriers)

    @property
    def named_buses(self) -> tuple[str, ...]:
        """Buses with a network of their own."""
        return tuple(sorted(bus for bus in self.networks if bus != OTHERS))

    def network_of_bus(self, bus: str | None) -> Network | None:
        """The network that describes the frames of a bus."""
        return self.networks.get(OTHERS if bus is None else bus) or self.networks.get(OTHERS)

    def unreadable_signals(self) -> Iterator[tuple[str, Unreadable]]:
        """The name of its message, and each signal that cannot be decoded."""
        return ((part.name, each) for _, message in self for part in message.parts for each in part.unreadable)

    @property
    def unreadable_declarations(self) -> dict[str, str]:
        """`Message.Signal`, or the place in its file, of everything that cannot be decoded -> why."""
        reasons: dict[str, str] = {}
        for message, each in self.unreadable_signals():
            add_reason(reasons, f"{message}.{each.signal.name}", each.reason)
        add_reasons(reasons, self.lost)
        return reasons

    def __iter__(self) -> Iterator[tuple[str, Message]]:
        """(bus or OTHERS, message), in a stable order."""
        for bus in sorted(self.networks):
            for key, message in sorted(self.networks[bus].messages.items(), key=lambda item: item[0]):
                if key == message.keys[0]:
                    yield bus, message

    def hash_of_database(self, database: str) -> str:
        """A hash (16 hex digits) of all messages of one file."""
        hashes = sorted({message.definition_hash for _, message in self if message.database == database})
        return hashlib.blake2b("".join(hashes).encode(), digest_size=8).hexdigest()


def _require_mapping(content: Any, where: str) -> dict[Any, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise DatabaseError(f"{where} must be a map of `name: value` lines")
    return content


def _require_name_list(content: Any, where: str) -> list[str]:
    names = content if isinstance(content, list) else [content]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DatabaseError(f"{where} must be a name or a list of names")
    return names
