"""What database files say, the same for all formats: their messages, by network if a file has several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import DatabaseError, add_reason, add_reasons
from .model import Message
from .someip.description import Key, PayloadMessage, Services


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDatabase:
    """The messages of a file. `skipped`: reason -> number of messages left out. `lost`: name or line of what cannot be read
    -> why. `services`: of SOME/IP."""

    messages: tuple[Message, ...]
    skipped: Mapping[str, int]
    lost: Mapping[str, str] = field(default_factory=dict)
    services: Services = field(default_factory=Services)


def drop_conflicting(messages: Sequence[tuple[Message, str]], lose: Callable[[str, str], None]) -> tuple[Message, ...]:
    """The messages of one network, each with its place in the file, without those that have one id and differ.

    Nothing says which of them is on the bus. `lose(place, reason)` lists them.
    """
    by_key: dict[object, list[int]] = {}
    for number, (message, _) in enumerate(messages):
        for key in message.keys:
            by_key.setdefault(key, []).append(number)
    conflicting = set[int]()
    for numbers in by_key.values():
        same = [messages[number] for number in numbers]
        if len({message.definition_hash for message, _ in same}) > 1:
            conflicting.update(numbers)
            names = " and ".join(dict.fromkeys(message.name for message, _ in same))
            lose(
                " and ".join(dict.fromkeys(place for _, place in same)),
                f"{names} have the same id {same[0][0].id:#x}, and none of them is read: remove all but one",
            )
    return tuple(message for number, (message, _) in enumerate(messages) if number not in conflicting)


def name_of_network(key: str) -> str:
    """The name of a network, which may be known by its AUTOSAR path."""
    return key.rpartition("/")[2] if key.startswith("/") else key


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseNetworks:
    """What the file `source` says of each network by its name or AUTOSAR path; None: of no network. `lost`: of the whole file."""

    source: str
    networks: Mapping[str | None, LoadedDatabase]
    lost: Mapping[str, str] = field(default_factory=dict)

    def select(self, name: str | None) -> LoadedDatabase:
        """The network with this path, or all networks with this name; None: all of them. Raises `DatabaseError` without one."""
        if name is None:
            return self._join(self.networks.values())
        names = {key: name_of_network(key) for key in self.networks if key is not None}
        found = [self.networks[name]] if name in names else [self.networks[key] for key in names if names[key] == name]
        if not found:
            raise DatabaseError(
                f"{self.source} has no network {name!r}; it has {', '.join(sorted({*names.values()})) or 'no names'}"
            )
        return self._join(found)

    def _join(self, parts: Collection[LoadedDatabase]) -> LoadedDatabase:
        """Of PDUs and SOME/IP messages, which have no bus, the first one with an id."""
        lost = dict(self.lost)
        for part in parts:
            add_reasons(lost, part.lost)
        pdus: dict[int, Message] = {}
        messages = []
        for message in (one for part in parts for one in part.messages):
            other = pdus.setdefault(message.id, message) if message.kind == "pdu" else message
            if other is message:
                messages.append(message)
            elif other.definition_hash != message.definition_hash:
                same = f"{other.name} of another network has the same id {message.id:#x}, and is read instead"
                add_reason(lost, f"{message.name} ({self.source})", same)
        return LoadedDatabase(
            messages=tuple(messages),
            skipped=sum((Counter(part.skipped) for part in parts), Counter()),
            lost=lost,
            services=self._join_services([part.services for part in parts], lost),
        )

    def _join_services(self, parts: Iterable[Services], lost: dict[str, str]) -> Services:
        payloads: dict[Key, PayloadMessage] = {}
        names: dict[int, str] = {}
        methods: dict[tuple[int, int], str] = {}
        for part in parts:
            names = {**part.service_names, **names}
            methods = {**part.method_names, **methods}
            for message in part:
                other = payloads.setdefault(message.key, message)
                if other.definition_hash != message.definition_hash:
                    same = f"{other.name} of another network has the same service, method and type, and is read instead"
                    add_reason(lost, f"{message.name} ({self.source})", same)
        return Services.from_messages(payloads.values(), names, methods)
