"""The clusters of an ARXML file of AUTOSAR 4, from one pass over it: CAN, TTCAN, J1939, LIN, FlexRay, Ethernet (PDU transport,
SOME/IP)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.loaded import DatabaseNetworks, LoadedDatabase, name_of_network
from pcaplake.signals.model import Message

from .document import ArxmlDocument, path_of
from .element import ArxmlElement
from .frames import CLUSTERS, messages_of
from .frames import KINDS as FRAMES
from .services import KINDS as SERVICES
from .services import payloads_of

_NOT_READ: Final = ("J-1939-TP-CONFIG",)
_CONTROL_UNIT: Final = "ECUC-VALUE-COLLECTION"


def read_networks(path: Path) -> DatabaseNetworks | None:
    """What a file says by cluster; None if it has no cluster and no service, but the configuration of a control unit.

    Services of the adaptive platform are in no cluster. Raises `DatabaseError` for a file that is not ARXML, or has only the
    configuration of a control unit without messages.
    """
    document = ArxmlDocument(path, {*FRAMES, *SERVICES, *_NOT_READ, _CONTROL_UNIT})
    clusters = [path_of(cluster) for kind in CLUSTERS for cluster in document.all_of(kind)]
    for name, number in Counter(map(name_of_network, clusters)).items():
        if number > 1:
            paths = " or ".join(f"`{path.name}#{one}`" for one in clusters if name_of_network(one) == name)
            document.lose(
                name, f"{number} clusters have this name: `{path.name}#{name}` selects all of them, {paths} one"
            )
    for kind in _NOT_READ:
        for other in document.all_of(kind):
            document.lose(path_of(other), f"it is a {kind}, which is not read")
    payloads = payloads_of(document)
    if not clusters and not payloads.messages and (units := list(document.all_of(_CONTROL_UNIT))):
        _require_com(path, units[0])
        return None
    if not clusters:
        for unit in document.all_of(_CONTROL_UNIT):
            document.lose(path_of(unit), "the file describes services too: messages are read from a file of its own")
    messages: dict[str | None, list[Message]] = {cluster: [] for cluster in (*clusters, None)}
    empty: Counter[str | None] = Counter()
    for cluster, message in messages_of(document):
        if message is None:
            empty[cluster] += 1
        else:
            messages[cluster].append(message)
    networks = {
        cluster: LoadedDatabase(
            messages=tuple(found),
            skipped={"no signals": empty[cluster]} if empty[cluster] else {},
            services=payloads.services_of(cluster),
        )
        for cluster, found in messages.items()
    }
    return DatabaseNetworks(source=path.name, networks=networks, lost=document.lost)


def _require_com(path: Path, unit: ArxmlElement) -> None:
    """The module that has the messages must be there once."""
    number = sum(each.text.endswith("/Com") for each in unit.descendants("ECUC-MODULE-CONFIGURATION-VALUES-REF"))
    if number != 1:
        raise DatabaseError(
            f"{path} has no cluster and no service, but the configuration of a control unit: its messages are those of the "
            f"module Com, and {path_of(unit)} names {number} of them; export it with one, or give the system description"
        )
