"""Compiles the kernels: the modules of `pcaplake.core` (tools/kernels). All else is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # the sources that are built, not those that are installed

from tools.kernels.build import extensions, needs_a_compiler, target_platform  # noqa: E402
from tools.kernels.modules import write_modules  # noqa: E402

os.chdir(ROOT)
APART = os.environ.get("KERNELS") == "none"  # `make setup` compiles what has changed, pip would compile all of it
COMPILER = (
    ["ziglang>=0.17"] if needs_a_compiler() and not APART else []
)  # `extensions` chooses it, and then none is needed
setup(
    ext_modules=[] if APART else extensions(write_modules(Path("build", "kernels")), "pcaplake.core"),
    setup_requires=COMPILER,  # pip adds it to the requirements of the build
    options={"bdist_wheel": {"py_limited_api": "cp311", "plat_name": target_platform()}},
)
