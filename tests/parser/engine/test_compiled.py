"""What the build makes of kernels does what their Python functions do, or is refused; and stale modules are refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from setuptools import Distribution

from pcaplake.parser.engine import kernel as engine_kernel
from pcaplake.parser.engine.kernel import Kernel, compiled_module, digest_sources, helper, kernel
from pcaplake.parser.engine.kernel_types import Bytes, Int32s, Int64Matrix, Int64s, Uint64s, Values
from pcaplake.parser.engine.kernels.raw_memory import get, put, store16
from pcaplake.parser.errors import KernelsNotBuilt
from tests.fuzz import sanitized
from tools.kernels.build import extensions
from tools.kernels.entries import write_module
from tools.kernels.types import NotTranslated

ROOT = Path(__file__).parents[3]
KNOWN = (3, 5, 1 << 40)
LEAST = -(1 << 63)


# -- kernels of every kind of statement and expression ----------------------------------------------------------------
@helper
def divided(a, b):
    return a // b, a % b


@helper
def total_of(numbers):
    total = 0
    for i in range(numbers.size):
        total += numbers[i]
    return total


@kernel
def divide(a: int, b: int) -> tuple[int, int]:
    quotient, rest = divided(a, b)
    return quotient, rest


@kernel
def divide_unsigned(numbers: Uint64s, by: Uint64s) -> None:
    for i in range(numbers.size):
        numbers[i] = numbers[i] // by[0] + numbers[i] % by[0]


@kernel
def compare(a: int, b: int) -> int:
    if a < b < 10 or a in KNOWN or a in (7, 8):
        found = 1
    elif not a and b:
        found = 2
    else:
        found = 3 if a == b else 4
    within = 0 <= a <= b
    return found * 100 + within * 10 + min(a, 3) - max(b, -3)


@kernel
def mix(a: int, b: int) -> int:
    word = (np.uint64(a) << np.uint64(3)) ^ (np.uint64(b) >> np.uint64(60)) | np.uint64(0xF000000000000000)
    return np.int64(word) + ((a >> 3) & 0xFFFFFFFF) + ~b + np.int64(np.int32(a)) - (1 << 40)


@kernel
def loops(n: int, step: int, out: Int64s) -> int:
    count = 0
    for i in range(0, n, step):
        put(out, count, i)
        count += 1
    for half in (32, 0):
        for i in range(n):
            if i == 3:
                continue
            if i > half:
                break
            count += i
    while True:
        count += 1
        if count & 1:
            break
    return count


@kernel
def parts(rows: Int64Matrix, out: Int32s) -> int:
    first, rest = out[:2], out[2:]
    rest[:1] = 0
    first[0], first[1] = rows.shape[0], rows.shape[1]
    for i in range(rows.shape[0]):
        rows[i, 0] *= 2
    return total_of(out[1:3]) + get(rows, rows.size - 1)


@kernel
def greatest(values: Values, out: Bytes) -> bool:
    most = values[0]
    for i in range(values.size):
        most = max(most, get(values, i))
    store16(out, 0, most)
    return most > 300


class Pair(NamedTuple):
    numbers: Int64s
    out: Int32s


@kernel
def add_up(pair: Pair, n: int) -> int:
    out, numbers = pair.out, pair.numbers
    out[0] = total_of(numbers) + n
    return pair.numbers.size


KERNELS: tuple[Kernel[..., Any], ...] = (divide, divide_unsigned, compare, mix, loops, parts, greatest, add_up)


def build(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.pyx").write_text(text)
    distribution = Distribution(
        {"name": name, "ext_modules": extensions([folder / f"{name}.pyx"], "compiled_for_a_test")}
    )
    command: Any = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    (path,) = (folder / "compiled_for_a_test").glob(f"{name}.*")
    spec = importlib.util.spec_from_file_location(f"compiled_for_a_test.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return build(tmp_path_factory.mktemp("kernels"), "sample", write_module(KERNELS, SOURCES="x"))


def wrap(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


@pytest.mark.slow
def test_numbers_are_those_of_python(compiled: ModuleType) -> None:
    r = Random(1)
    numbers = [0, 1, -1, 2, 7, 3, 10, 1 << 40, (1 << 63) - 1, LEAST, *(r.randrange(-50, 50) for _ in range(30))]
    for a in numbers:
        for b in numbers:
            if b:
                assert compiled.divide(a, b) == (wrap(a // b), a % b), (a, b)
            within, low, high = int(0 <= a <= b), min(a, 3), max(b, -3)
            found = 1 if a < b < 10 or a in (*KNOWN, 7, 8) else 2 if not a and b else 3 if a == b else 4
            assert compiled.compare(a, b) == wrap(found * 100 + within * 10 + low - high), (a, b)
            word = ((a % 2**64) << 3 & (2**64 - 1)) ^ ((b % 2**64) >> 60) | 0xF000000000000000
            narrow = (a + 2**31) % 2**32 - 2**31
            assert compiled.mix(a, b) == wrap(word + ((a >> 3) & 0xFFFFFFFF) + ~b + narrow - (1 << 40)), (a, b)


@pytest.mark.slow
def test_a_division_by_zero_is_an_error_and_no_signal(compiled: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError):
        compiled.divide(1, 0)
    with pytest.raises(ZeroDivisionError):
        compiled.divide_unsigned(np.ones(1, np.uint64), np.zeros(1, np.uint64))
    assert compiled.divide(1, 1) == (1, 0), "the next call knows nothing of it"
    numbers = np.array([7, 2**64 - 1], np.uint64)
    compiled.divide_unsigned(numbers, np.array([4], np.uint64))
    assert numbers.tolist() == [1 + 3, (2**64 - 1) // 4 + 3]


@pytest.mark.slow
def test_loops_arrays_and_their_parts(compiled: ModuleType) -> None:
    for n, step in ((0, 1), (1, 1), (10, 3), (40, 7)):
        out, same = np.zeros(60, np.int64), np.zeros(60, np.int64)
        count = len(range(0, n, step))
        same[:count] = range(0, n, step)
        for half in (32, 0):
            count += sum(i for i in range(n) if i != 3 and i <= half)
        count += 1 if count % 2 == 0 else 2
        assert compiled.loops(n, step, out) == count
        assert (out == same).all()
    rows, narrow = np.arange(6, dtype=np.int64).reshape(3, 2), np.full(4, 9, np.int32)
    assert compiled.parts(rows, narrow) == 2 + 0 + 5
    assert rows.tolist() == [[0, 1], [4, 3], [8, 5]]
    assert narrow.tolist() == [3, 2, 0, 9]


@pytest.mark.slow
def test_a_type_variable_has_a_copy_for_each_type(compiled: ModuleType) -> None:
    for kind in (np.int32, np.int64):
        out = np.zeros(2, np.uint8)
        assert compiled.greatest(np.array([5, 299, -1], kind), out) is False
        assert out.tolist() == [299 & 255, 1]
        assert compiled.greatest(np.array([301], kind), out) is True
    with pytest.raises(TypeError, match="values: no kernel for int16"):
        compiled.greatest(np.array([5], np.int16), np.zeros(2, np.uint8))


@pytest.mark.slow
def test_arrays_that_are_passed_together(compiled: ModuleType) -> None:
    numbers, out = np.arange(4), np.zeros(1, np.int32)
    assert compiled.add_up(Pair(numbers, out), 10) == 4
    assert out.tolist() == [16]
    read_only = np.frombuffer(bytes(4), np.int32)
    for bad in (
        (out, numbers),
        (numbers, read_only),
        (numbers, None),
        (numbers,),
        (numbers, out, out),
        [numbers, out],
        None,
    ):
        with pytest.raises(TypeError):
            compiled.add_up(bad, 10)


@pytest.mark.slow
def test_other_arguments_are_refused(compiled: ModuleType) -> None:
    """What is no array of that type, or in another order, would be read beyond its end."""
    good, matrix = np.zeros(60, np.int64), np.ones((2, 2), np.int64)
    read_only = np.frombuffer(bytes(480), np.int64)
    for bad in (good.astype(np.int32), good[::2], matrix, read_only, None, [0] * 60, "x"):
        with pytest.raises(TypeError):
            compiled.loops(3, 1, bad)
    with pytest.raises(TypeError):
        compiled.parts(np.asfortranarray(np.ones((2, 3), np.int64)), np.zeros(4, np.int32))
    for few in ((1,), (1, 2, 3), (1.5, 2), ("1", 2)):
        with pytest.raises(TypeError):
            compiled.divide(*few)
    with pytest.raises(OverflowError):
        compiled.divide(1 << 64, 1)
    compiled.greatest(np.frombuffer(bytes(8), np.int32), np.zeros(2, np.uint8))  # it only reads the first


# -- what is no kernel ------------------------------------------------------------------------------------------------
@kernel
def with_a_list(n: int) -> int:
    found = [n]
    return found[0]


@kernel
def with_mixed_signs(n: int, numbers: Uint64s) -> int:
    return n + numbers[0]


@kernel
def with_a_call(n: int) -> int:
    return abs(n)


@kernel
def with_an_unknown_name(n: int) -> int:
    return n + missing  # noqa: F821


@kernel
def with_two_results(n: int) -> Any:
    if n:
        return n, 1
    return n


@kernel
def with_another_shape(rows: Int64Matrix) -> int:
    return rows[0]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (with_a_list, r"with_a_list, line 3: \[n\]: this is not a part of Python"),
        (with_mixed_signs, "one side is int64_t, the other uint64_t"),
        (with_a_call, "not a function that kernels may call"),
        (with_an_unknown_name, "nothing of this name is assigned before"),
        (with_two_results, "elsewhere"),
        (with_another_shape, "the array has 2 dimensions"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_not_translated_is_named(bad: Kernel[..., Any], why: str) -> None:
    with pytest.raises(NotTranslated, match=why):
        write_module([bad])


# -- modules that are missing or of other sources ---------------------------------------------------------------------
PACKAGE = "pcaplake.parser.engine.kernels"


def test_kernels_of_other_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert digest_sources(PACKAGE) == compiled_module("engine", PACKAGE).SOURCES
    compiled_module.cache_clear()
    monkeypatch.setattr(engine_kernel, "digest_sources", lambda package: "edited")
    with pytest.raises(
        KernelsNotBuilt, match=r"pcaplake.core.engine was compiled from other sources .*run `make setup`"
    ):
        compiled_module("engine", PACKAGE)
    with pytest.raises(
        KernelsNotBuilt, match=r"pcaplake.core.nothing cannot be loaded .* from a wheel for this platform"
    ):
        compiled_module("nothing", PACKAGE)


def test_every_source_of_a_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kernels_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    digest: Callable[[str], str] = digest_sources.__wrapped__
    monkeypatch.syspath_prepend(tmp_path)
    found = [digest(package.name)]
    for name, text in (("a.py", "A = 1"), ("a.py", "A = 2"), ("b.py", ""), ("b.txt", "not a source")):
        (package / name).write_text(text)
        found.append(digest(package.name))
    assert len(set(found)) == 4
    assert found[-1] == found[-2]


@pytest.mark.slow
def test_what_checks_every_access_finds_nothing(tmp_path: Path) -> None:
    """The fuzzer on kernels that were compiled with AddressSanitizer and UndefinedBehaviorSanitizer; they guide it as well."""
    environment = sanitized.build(tmp_path)
    for options, code in (("-runs=1000",), 0), (("-runs=1000", "--planted"), 1):
        command = [sys.executable, "-m", "tests.fuzz", f"-artifact_prefix={tmp_path}/", *options]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == code, done.stderr[-3000:]
        assert ("AddressSanitizer: heap-buffer-overflow" in done.stderr) == code, done.stderr[-3000:]
        assert "NEW" in done.stderr, "coverage did not guide it anywhere"
