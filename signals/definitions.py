"""The definitions that frames were decoded with, as hashes: what must be decoded again when the databases change."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .database import OTHERS, Databases
from .j1939 import GROUP_KEYS, masked_group, masked_identifier
from .model import BUSLESS, FLEXRAY_CYCLES, FRAME_BYTES, Kind
from .someip.wide import payloads_named

PENDING: Final = "pending"
Ids: TypeAlias = Mapping[tuple[Kind, int], str]
"""(kind, id) -> hash of all definitions of that id on one bus. Of FlexRay, the id is the slot, which rows of `signals` have."""
Method: TypeAlias = tuple[int, int]
"""Service id and method id of SOME/IP."""


def hash_wide_table(databases: Databases, name: str) -> str:
    """A hash (16 hex digits) of the definitions of a message on each bus: it changes when the rows of its table change."""
    payloads = sorted(message.definition_hash for message in payloads_named(databases.services, name))
    by_bus = {}
    for bus in {*databases.named_buses, OTHERS}:
        network = databases.network_of_bus(None if bus == OTHERS else bus)
        messages = [part for message in network.messages.values() for part in message.parts] if network else []
        by_bus[bus] = sorted(
            # a table of other frames has other rows
            message.definition_hash + ("" if message.wide_carrier == message.kind else message.wide_carrier)
            for message in messages
            if message.name == name
        )
    differing = {bus: hashes for bus, hashes in by_bus.items() if bus == OTHERS or hashes != by_bus[OTHERS]}
    definitions = {"someip": payloads} if payloads else differing
    return hashlib.blake2b(json.dumps(definitions, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionState:
    """`buses`: named buses and OTHERS -> hashes by id. `wide`: message -> hash of the definitions of its table. `methods`: hash
    of all definitions of a method."""

    buses: Mapping[str, Ids] = field(default_factory=dict)
    wide: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[Method, str] = field(default_factory=dict)

    @classmethod
    def from_databases(cls, databases: Databases, wide: Iterable[str] = ()) -> DefinitionState:
        """The state when all frames are decoded with these databases."""
        buses: dict[str, Ids] = {}
        for bus in {*databases.named_buses, OTHERS}:
            network = databases.network_of_bus(None if bus == OTHERS else bus)
            hashes: dict[tuple[Kind, int], set[str]] = defaultdict(set)
            for (kind, number, extended), message in network.messages.items() if network else ():
                # rule: the rows of a slot are replaced together, because they do not say their cycle
                slot = number // FLEXRAY_CYCLES if kind == "flexray" else number
                hashes[kind, slot].add(f"{extended:d}{message.definition_hash}")
            buses[bus] = {key: "".join(sorted(texts)) for key, texts in hashes.items()}
        methods: dict[Method, str] = {}
        for payload in databases.services:
            method = payload.service_id, payload.method_id
            version = "*" if payload.interface_version is None else payload.interface_version
            methods[method] = f"{methods.get(method, '')}{payload.message_type}.{version}.{payload.definition_hash} "
        return cls(buses=buses, wide={name: hash_wide_table(databases, name) for name in wide}, methods=methods)

    def hashes_of_bus(self, bus: str) -> Ids:
        return self.buses.get(bus, self.buses.get(OTHERS, {}))

    def find_changes(self, new: DefinitionState) -> DefinitionChanges:
        """The definitions whose older frames must be decoded again to reach the state `new`."""
        named = sorted({*self.buses, *new.buses} - {OTHERS})
        ids = {}
        for bus in (*named, OTHERS):
            before, after = self.hashes_of_bus(bus), new.hashes_of_bus(bus)
            ids[bus] = frozenset(
                key
                for key in {*before, *after}
                if before.get(key) != after.get(key) and (bus == OTHERS or key[0] not in BUSLESS)
            )
        return DefinitionChanges(
            named=tuple(named),
            ids={bus: keys for bus, keys in ids.items() if keys},
            wide=tuple(sorted(name for name, text in new.wide.items() if self.wide.get(name) != text)),
            methods=frozenset(
                method
                for method in {*self.methods, *new.methods}
                if self.methods.get(method) != new.methods.get(method)
            ),
        )

    def with_pending_changes(self, changes: DefinitionChanges) -> DefinitionState:
        """The state with all changed definitions marked as pending."""
        buses = {bus: dict(self.hashes_of_bus(bus)) for bus in {*self.buses, *changes.ids, OTHERS}}
        for bus, keys in changes.ids.items():
            buses[bus] |= dict.fromkeys(keys, PENDING)
        return DefinitionState(
            buses=buses,
            wide={**self.wide, **dict.fromkeys(changes.wide, PENDING)},
            methods={**self.methods, **dict.fromkeys(changes.methods, PENDING)},
        )

    def to_json(self) -> bytes:
        buses = {
            bus: {f"{kind}:{number}": text for (kind, number), text in ids.items()} for bus, ids in self.buses.items()
        }
        content: dict[str, Any] = {"format": 1, "buses": buses, "wide": dict(self.wide)}
        if self.methods:
            content["methods"] = {f"{service}:{method}": text for (service, method), text in self.methods.items()}
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> DefinitionState:
        """Raises `ValueError` for anything that `to_json` did not write."""
        try:
            content = json.loads(data)
            if content["format"] != 1:
                raise ValueError(f"format {content['format']}")
            return cls(
                buses={bus: dict(map(_parse_definition_key, ids.items())) for bus, ids in content["buses"].items()},
                wide=content["wide"],
                methods=dict(map(_parse_method, content.get("methods", {}).items())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(repr(error)) from error


def group_by_service(methods: Iterable[Method]) -> dict[int, list[int]]:
    """Service id -> its method ids, sorted."""
    services: dict[int, list[int]] = {}
    for service, method in sorted(set(methods)):
        services.setdefault(service, []).append(method)
    return services


def _parse_method(item: tuple[str, str]) -> tuple[Method, str]:
    service, _, method = item[0].partition(":")
    return (int(service), int(method)), item[1]


def _parse_definition_key(item: tuple[str, str]) -> tuple[tuple[Kind, int], str]:
    name, _, number = item[0].partition(":")
    for kind in FRAME_BYTES:
        if name == kind:
            return (kind, int(number)), item[1]
    raise ValueError(item[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChanges:
    """`named`: buses in the old or new definitions. `ids`: ids to decode again, by bus. `wide`: tables to write again.
    `methods`: of SOME/IP, to decode again."""

    named: tuple[str, ...]
    ids: Mapping[str, Collection[tuple[Kind, int]]]
    wide: tuple[str, ...]
    methods: frozenset[Method] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.ids or self.wide or self.methods)

    @property
    def message_count(self) -> int:
        return sum(len(keys) for keys in self.ids.values()) + len(self.methods)

    def methods_by_service(self) -> dict[int, list[int]]:
        """Service id -> the ids of its changed methods."""
        return group_by_service(self.methods)

    def numbers_by_bus(self, kind: Kind) -> dict[str, list[int]]:
        """Bus or OTHERS -> the changed ids of a kind; without messages that are found by their parameter group."""
        numbers = {
            bus: sorted(number for key_kind, number in keys if key_kind == kind and number < GROUP_KEYS)
            for bus, keys in sorted(self.ids.items())
        }
        return {bus: changed for bus, changed in numbers.items() if changed}

    def groups_by_bus(self, column: str = "can_id") -> dict[str, dict[int, list[int]]]:
        """Bus or OTHERS -> mask -> the bits under it of CAN identifiers whose parameter groups of J1939 changed.

        `column`: "can_id", or "pgn" for masks and bits of the number of the group.
        """
        masked = masked_group if column == "pgn" else masked_identifier
        groups: dict[str, dict[int, set[int]]] = {}
        for bus, keys in self.ids.items():
            for kind, number in keys:
                if kind == "can" and number >= GROUP_KEYS:
                    mask, bits = masked(number)
                    groups.setdefault(bus, {}).setdefault(mask, set()).add(bits)
        return {bus: {mask: sorted(bits) for mask, bits in sorted(one.items())} for bus, one in sorted(groups.items())}
