"""The entry point of `pcaplake`, also as `python -m pcaplake.worker`. It handles Ctrl-C from the first import on."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from pcaplake.common.supported_system import describe_unsupported_system
from pcaplake.worker.config.environment import limit_numpy_threads

FATAL, INTERRUPTED = 3, 130

# pyarrow imports pandas with its first array, and its own clients of object stores with `pyarrow.parquet`
HIDDEN = frozenset({"pandas", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs"})
# dpkt imports all of its protocols, 60 modules, with the first of them. These have the headers that the parser uses, or what
# they need.
USED_OF_DPKT = frozenset(
    (
        "arp",
        "compat",
        "dhcp",
        "dns",
        "dpkt",
        "ethernet",
        "icmp",
        "igmp",
        "ip",
        "llc",
        "sll",
        "stp",
        "tcp",
        "udp",
        "utils",
    )
)
PLUGINS = "pydantic.plugin._loader"  # imports what reads the metadata of all installed packages, in which it looks for plugins


class HiddenPackages:
    """An import hook that hides installed packages which pcaplake does not use. Protocols of dpkt are empty modules then, and
    pydantic finds no plugins.
    """

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden, because pcaplake does not use it", name=name)
        package, _dot, module = name.partition(".")
        unused = package == "dpkt" and module and module not in USED_OF_DPKT
        return ModuleSpec(name, self) if unused or name == PLUGINS else None  # type: ignore[arg-type]  # needs no base

    def create_module(self, spec: ModuleSpec) -> None:
        """A loader has it. The import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module that stands for a hidden one."""
        if module.__name__ == PLUGINS:
            module.get_plugins = tuple  # type: ignore[attr-defined]


def main() -> NoReturn:
    """Run the command line. Skipping packages, plugins and garbage collection saves most of the time of a short command."""
    if (refusal := describe_unsupported_system()) is not None:  # before imports of modules that only Linux has
        print(f"pcaplake: {refusal}", file=sys.stderr)
        sys.exit(FATAL)
    sys.meta_path.insert(0, HiddenPackages())
    limit_numpy_threads()
    gc.disable()  # until the command starts: `PlainCommand.invoke`
    try:
        from pcaplake.worker.cli.app import run_command_line

        code = run_command_line()
        _flush()
    except KeyboardInterrupt:  # during the imports, or after the command had finished
        code = INTERRUPTED
    # deltalake's datasets read through Python file systems. A thread of Arrow that drops such a file while Python shuts
    # down waits for its lock, is ended inside C++ and aborts the process (3 of 48 short scripts on a busy machine).
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it
            stream.flush()


if __name__ == "__main__":
    main()
