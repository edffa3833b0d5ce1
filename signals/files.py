"""Reads database files: DBC with dbc.py, KCD and SYM with cantools, LDF with ldf.py, FIBEX with fibex, and ARXML with arxml, or
with cantools if it is of AUTOSAR 3 or has only the configuration of a control unit.

Messages without signals are counted and left out. A signal or message that cannot be decoded is listed with its reason, and
does not affect others. Secured messages of AUTOSAR are authenticated but not encrypted, so their signals are read like all
others.
"""

from __future__ import annotations

from pathlib import Path

from . import dbc
from .cantools_reader import describe_error, read_with_cantools
from .database_cache import load_once
from .database_text import decode_text
from .errors import DatabaseError
from .loaded import DatabaseNetworks, LoadedDatabase
from .someip.wireshark import load_wireshark_tables
from .xml_elements import read_root

DBC, LDF, ARXML = ".dbc", ".ldf", ".arxml"
CANTOOLS = (".kcd", ".sym")
FIBEX = (".xml", ".fibex")
SUFFIXES = (DBC, *CANTOOLS, ARXML, LDF, *FIBEX)
_AUTOSAR_4 = "http://autosar.org/schema/r4"
_EXPORT = "export it again from the program that wrote it, correct it, or remove it from the databases"


def load_database(path: str | Path, network: str | None = None) -> LoadedDatabase:
    """Read a file, or a folder of Wireshark's tables; `network` selects one of its buses (KCD, ARXML).

    Raises `DatabaseError` with what to do.
    """
    return DatabaseLoader().load(path, network)


class DatabaseLoader:
    """Reads files; one with several networks only once."""

    def __init__(self) -> None:
        self._networks: dict[Path, DatabaseNetworks] = {}

    def load(self, path: str | Path, network: str | None = None) -> LoadedDatabase:
        """As `load_database`."""
        path = Path(path)
        if path.is_dir():
            services = load_wireshark_tables(path)
            return LoadedDatabase(messages=(), skipped={}, lost=services.lost, services=services)
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise DatabaseError(f"{path} is not a signal database: give a file that ends in {', '.join(SUFFIXES)}")
        if not path.is_file():
            raise DatabaseError(f"the signal database {path} does not exist: give the path of a file")
        try:
            if suffix == DBC:
                return _load_dbc(path, network)
            if suffix == LDF:
                return _load_ldf(path, network)
            if suffix in FIBEX:
                return load_once(path, lambda file: _load_fibex(file, network), f"FIBEX {network}")
            if path not in self._networks:
                self._networks[path] = _read_networks(path)
            return self._networks[path].select(network)
        except DatabaseError:
            raise
        except ModuleNotFoundError as error:
            raise DatabaseError(
                f"a database of the format {suffix[1:].upper()} needs the extra `signals`: pip install 'pcaplake[signals]' "
                f"({error})"
            ) from error
        except Exception as error:  # each parser raises its own exceptions
            raise DatabaseError(
                f"cannot read the signal database {path}: {describe_error(error)}; {_EXPORT}"
            ) from error


def _load_dbc(path: Path, network: str | None) -> LoadedDatabase:
    content = dbc.parse_dbc(decode_text(path.read_bytes(), xml=False), path.name)
    if not content.messages and content.lost:
        (name, reason), *others = content.lost.items()
        more = f", and {len(others):,} more" if others else ""
        raise DatabaseError(
            f"cannot read the signal database {path}: no message of it is readable ({name}: {reason}{more}); {_EXPORT}"
        )
    if not content.messages:
        raise DatabaseError(f"{path} has no message with a signal: give a complete DBC file")
    if network not in (None, content.bus):
        raise DatabaseError(
            f"{path.name} has no messages of the network {network!r}; it has {content.bus or 'no names'}"
        )
    return LoadedDatabase(messages=content.messages, skipped=content.skipped, lost=content.lost)


def _load_ldf(path: Path, network: str | None) -> LoadedDatabase:
    from .ldf import parse_ldf

    if network is not None:
        raise DatabaseError(f"{path} describes one LIN network: remove `#{network}`")
    return parse_ldf(decode_text(path.read_bytes(), xml=False), path.name)


def _load_fibex(path: Path, network: str | None) -> LoadedDatabase:
    from .fibex.frames import messages_of
    from .fibex.reader import read_fibex
    from .fibex.services import services_of

    if network is not None:
        raise DatabaseError(f"{path}: networks of FIBEX files have no names here: remove `#{network}`")
    if read_root(path)[0] != "FIBEX":
        raise DatabaseError(f"{path} is not a FIBEX file: its outermost element must be FIBEX")
    file = read_fibex(path)
    messages = tuple(messages_of(file))
    services = services_of(file)
    return LoadedDatabase(messages=messages, skipped={}, lost=services.lost, services=services)


def _read_networks(path: Path) -> DatabaseNetworks:
    return load_once(path, _read_arxml, "ARXML") if path.suffix.lower() == ARXML else read_with_cantools(path)


def _read_arxml(path: Path) -> DatabaseNetworks:
    from .arxml.networks import read_networks

    _, namespace = read_root(path)
    if namespace is not None and not namespace.startswith(_AUTOSAR_4):
        return read_with_cantools(path)  # AUTOSAR 3
    if (networks := read_networks(path)) is not None:
        return networks
    try:
        return read_with_cantools(path)
    except (DatabaseError, ImportError):
        raise
    except Exception as error:
        raise DatabaseError(
            f"{path} has only the configuration of a control unit, and the containers of its modules Com and CanIf are not as "
            f"cantools expects them ({describe_error(error)}): export both, or give the system description"
        ) from error
