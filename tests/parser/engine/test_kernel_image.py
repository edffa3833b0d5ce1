"""Kernels in an image are called without numba, and do what numba's dispatcher does. An image that may be wrong is not used."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding
from numba.core.errors import TypingError

from pcaplake.parser.engine import kernel_image
from pcaplake.parser.engine.kernel import Kernel
from pcaplake.parser.engine.kernel_linker import save_image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="kernels have images on x86_64"),
]

NUMBERS = "STEP = 10\n"
KERNELS = """
import numpy as np
from pcaplake.parser.engine.kernels import helper, kernel
from pcaplake.parser.engine.kernels.raw_memory import get, put
from .numbers import STEP

@helper
def _scale(value):
    return value * STEP

@kernel
def scale(values, add, negative, out):
    total = np.int64(0)
    for i in range(values.size):
        scaled = _scale(get(values, i)) + add
        put(out, i, -scaled if negative else scaled)
        total += scaled
    return out.size, total

@kernel
def trace(table):
    total = np.int64(0)
    for i in range(table.shape[0]):
        total += table[i, i]
    return total

@kernel
def is_rising(values):
    for i in range(1, values.size):
        if values[i] < values[i - 1]:
            return False
    return True

@kernel
def fill(out, value):
    for i in range(out.size):
        put(out, i, value)

@kernel
def divide(a, b):
    return a // b
"""
CALLS = """
import numpy as np
from {name} import kernels as k
values, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int64)
rows = np.arange(12, dtype=np.int64).reshape(3, 4)
frozen = np.arange(5, dtype=np.uint8)
frozen.flags.writeable = False
def run():
    print(k.scale(values, 5, False, out), out.tolist(), k.scale(values, np.int64(-1), np.True_, out), out.tolist())
    print(k.trace(rows), k.is_rising(frozen), k.fill(values, 7), values)
    print(k.divide(-7, 2))
    for call in (lambda: k.divide(1, 0), lambda: k.divide(1 << 70, 1)):
        try:
            print(call())
        except Exception as error:
            print(type(error).__name__, error)
run()
"""


class Package:
    """A package of kernels in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "numbers.py").write_text(NUMBERS)
        (folder / name / "kernels.py").write_text(KERNELS)

    def run(self, code: str, **environment: str) -> list[str]:
        """What the code prints in a process of its own, and at last whether numba was imported."""
        code = code.format(name=self.name) + "\nimport sys; print('numba' in sys.modules)"
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def save(self) -> str:
        """Compile the kernels for the types in CALLS, and save the image in a process of its own."""
        code = (
            "from pcaplake.parser.engine.kernel import Kernel\n"
            "from pcaplake.parser.engine.kernel_linker import save_image\n"
            "import {name}.kernels\n"
            "every = [one for one in vars({name}.kernels).values() if isinstance(one, Kernel)]\n"
            "for one in every: one.use_numba()\n"
            f"{CALLS}\n"
            "print(save_image('{name}', every))"
        )
        return self.run(code)[-2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package(tmp_path_factory.mktemp("kernels"), "of_image")


@pytest.fixture(scope="module")
def image(package: Package) -> Path:
    return Path(package.save())


@pytest.fixture
def loaded(package: Package, image: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the kernels, in this process."""
    monkeypatch.syspath_prepend(package.folder)
    kernel_image.load.cache_clear()
    yield importlib.import_module(f"{package.name}.kernels")
    sys.modules.pop(f"{package.name}.kernels")


def test_an_image_gives_what_numba_gives_and_does_not_import_it(package: Package, image: Path) -> None:
    *with_image, imported = package.run(CALLS)
    name = "{name}"
    compiled = f"from {name} import kernels\nfrom pcaplake.parser.engine.kernel import Kernel\n"
    compiled += "for one in vars(kernels).values():\n    if isinstance(one, Kernel): one.use_numba()\n"
    *with_numba, _ = package.run(compiled + CALLS)
    assert with_image[:-2] == with_numba[:-2]
    assert with_image[-2] == "RuntimeError the kernel kernels.divide failed"
    assert [line.partition(" ")[0] for line in with_numba[-2:]] == ["ZeroDivisionError", "OverflowError"]
    assert with_image[-1].startswith("OverflowError")
    assert imported == "False"


def test_an_entry_takes_only_the_types_that_were_compiled(loaded: Any) -> None:
    (entry,) = loaded.scale.entries
    values, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int64)
    assert entry(values, 1, True, out) == (4, 64)
    frozen = out.copy()
    frozen.flags.writeable = False
    for arguments in (
        (),
        (values, 1, True),
        (values, 1, True, out, out),
        (values.astype(np.int64), 1, True, out),
        (values.astype(np.uint32), 1, True, out),
        (values.astype(np.float32), 1, True, out),
        (values.astype(">i4"), 1, True, out),
        (np.arange(8, dtype=np.int32)[::2], 1, True, out),
        (values.reshape(2, 2), 1, True, out),
        (np.frombuffer(bytes(17), np.int32, 4, 1), 1, True, out),
        (values.view(type("Other", (np.ndarray,), {})), 1, True, out),
        (values, 1.0, True, out),
        (values, True, True, out),
        (values, np.int32(1), True, out),
        (values, 1, 1, out),
        (values, 1, None, out),
        (values, 1, True, frozen),
        (values, 1, True, None),
        ([1, 2], 1, True, out),
    ):
        assert entry(*arguments) is NotImplemented, arguments
    assert out.tolist() == [-1, -11, -21, -31], "nothing was written"


def test_a_kernel_is_called_through_numba_for_other_types(loaded: Any) -> None:
    values, out = np.arange(4, dtype=np.int16), np.zeros(4, np.int64)
    assert loaded.scale(values, 1, False, out) == (4, 64)
    assert out.tolist() == [1, 11, 21, 31]


def test_references_are_counted(loaded: Any) -> None:
    values, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int64)
    before = [sys.getrefcount(one) for one in (values, out, NotImplemented, None, True)]
    for _ in range(1000):
        loaded.scale(values, 1, False, out)
        loaded.scale.entries[0](values)
        loaded.fill(values, 1 << 40)
        loaded.is_rising(values.view(np.uint8))
    after = [sys.getrefcount(one) for one in (values, out, NotImplemented, None, True)]
    assert all(abs(x - y) < 100 for x, y in zip(before, after, strict=True))


def test_an_image_for_something_else_is_not_used(tmp_path: Path, package: Package, image: Path) -> None:
    other = Package(tmp_path, package.name)
    copy = other.folder / other.name / "__pycache__" / image.name
    copy.parent.mkdir()
    code = "import {name}.kernels as k; print(len(k.scale.entries))"

    def entries(**environment: str) -> int:
        return int(other.run(code, **environment)[0])

    assert entries() == 0
    copy.write_bytes(image.read_bytes())
    assert entries() == 1
    assert entries(NUMBA_OPT="1") == 0, "another setting of numba"
    assert entries(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == 0, "another processor"
    (other.folder / other.name / "numbers.py").write_text("STEP = 11\n")
    assert entries() == 0, "another constant, in a neighbor"
    (other.folder / other.name / "numbers.py").write_text(NUMBERS)
    assert entries() == 1


@pytest.mark.parametrize("damage", ["torn", "bit", "head", "empty"])
def test_a_damaged_image_is_not_used(tmp_path: Path, package: Package, image: Path, damage: str) -> None:
    other = Package(tmp_path, package.name)
    copy = other.folder / other.name / "__pycache__" / image.name
    copy.parent.mkdir()
    whole = image.read_bytes()
    bit = bytearray(whole)
    bit[-len(bit) // 3] ^= 4
    head = json.dumps([1]).encode() + b"\n" + whole.partition(b"\n")[2]
    copy.write_bytes({"torn": whole[:-1000], "bit": bytes(bit), "head": head, "empty": b""}[damage])
    assert other.run("import {name}.kernels as k; print(k.scale.entries)")[0] == "()"


def test_without_a_folder_there_is_no_image(tmp_path: Path, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(kernel_image, "folders", lambda package: [blocked, blocked / "below"])
    loaded.divide.use_numba()
    assert loaded.divide(7, 2) == 3
    assert save_image(loaded.divide.package, [loaded.divide]) is None
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(kernel_image, "folders", lambda package: [blocked, tmp_path / "kept"])
    saved = save_image(loaded.divide.package, [loaded.divide])
    assert saved is not None
    assert [*saved.parent.iterdir()] == [saved], "no temporary file"


def test_an_image_that_needs_what_the_process_lacks_is_not_used(image: Path) -> None:
    _, header, code = image.read_bytes().split(b"\n", 2)
    _, imports, pointers = json.loads(header)
    assert {"pcaplake_ndarray", "PyLong_Type"} <= set(imports)
    assert kernel_image.map_code(imports, pointers, code) is not None
    assert kernel_image.map_code([*imports[:-1], "Py_NoSuchFunction"], pointers, code) is None


def test_an_image_is_not_used_where_memory_may_not_run(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, header, code = image.read_bytes().split(b"\n", 2)
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(lambda *given: -1)
    monkeypatch.setattr(ctypes.pythonapi, "mprotect", refuse)
    assert kernel_image.map_code(*json.loads(header)[1:], code) is None


def test_processors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    find = kernel_image.target_processor.__wrapped__
    for name in (kernel_image.CPU_NAME, kernel_image.CPU_FEATURES):
        monkeypatch.delenv(name, raising=False)
    here = find()
    assert any(line.startswith("flags") and "sse2" in line for line in here)
    with monkeypatch.context() as without:
        without.setattr(kernel_image, "_PROCESSORS", Path("/nonexistent"))
        assert find()[2:] == [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    monkeypatch.setenv(kernel_image.CPU_NAME, "generic")
    assert find() != here
    monkeypatch.setenv(kernel_image.CPU_FEATURES, "")
    assert find() == ["generic", ""], "the same on all machines, as in a container image"


def test_users_without_a_home_use_the_image_of_a_read_only_installation(package: Package, image: Path) -> None:
    """In the container images, no folder can be written and the user has no home."""
    installed = [package.folder / package.name, image.parent]
    before = {*package.folder.rglob("*")}
    for folder in installed:
        folder.chmod(0o555)
    try:
        *_, imported = package.run(CALLS, HOME="/nonexistent", PYTHONDONTWRITEBYTECODE="1")
    finally:
        for folder in installed:
            folder.chmod(0o755)
    assert imported == "False"
    assert {*package.folder.rglob("*")} == before


def test_threads_call_a_kernel_at_the_same_time(loaded: Any) -> None:
    values = np.arange(50_000, dtype=np.int32)
    expected = int(values.sum()) * 10 + 50_000

    def call(_: int) -> list[tuple[int, int]]:
        out = np.zeros(values.size, np.int64)
        return [loaded.scale.entries[0](values, 1, False, out) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        results = [result for results in pool.map(call, range(16)) for result in results]
    assert set(results) == {(50_000, expected)}


def test_a_kernel_reads_nothing_but_contiguous_arrays(loaded: Any) -> None:
    """Also numba refuses them: addresses are computed from the start, so a reversed array would be read beyond its end."""
    values, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int64)
    for strange in (values[::-1], values[::2], np.asfortranarray(np.ones((2, 2), np.int32)), 3.5, None):
        with pytest.raises(TypingError):
            loaded.scale(strange, 1, False, out)
    assert not out.any()


def test_a_kernel_that_entries_do_not_know_makes_no_image(tmp_path: Path, loaded: Any) -> None:
    def half(value: float) -> float:
        return value / 2

    half.__module__ = loaded.__name__
    kernel = Kernel(half)
    kernel.use_numba()
    assert kernel(3.0) == 1.5
    assert save_image(kernel.package, [kernel]) is None
