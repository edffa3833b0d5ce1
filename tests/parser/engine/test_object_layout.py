"""Object files that LLVM writes, laid out and called in this process."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable

import pytest
from llvmlite import binding

from pcaplake.parser.engine import kernel_image
from pcaplake.parser.engine.object_layout import CannotLayOut, Code, lay_out

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="kernels have images on x86_64")

# a table of constants, a pointer to it, a jump table, calls of a function of the file and of the C library, and the address of
# an object of Python
SOURCE = """
@primes = private constant [8 x i64] [i64 2, i64 3, i64 5, i64 7, i64 11, i64 13, i64 17, i64 19]
@table = private constant ptr @primes
@PyLong_Type = external global i8
declare ptr @memcpy(ptr, ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)

define internal i64 @choose(i64 %n) noinline {
  switch i64 %n, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a: ret i64 100
b: %b1 = call i64 @square(i64 %n)
  ret i64 %b1
c: ret i64 -7
d: %d1 = mul i64 %n, 31
  ret i64 %d1
e: %e1 = xor i64 %n, 12345
  ret i64 %e1
other: ret i64 %n
}
define internal i64 @square(i64 %n) noinline {
  %s = mul i64 %n, %n
  ret i64 %s
}
define i64 @numbers(i64 %n) {
  %chosen = call i64 @choose(i64 %n)
  %squared = call i64 @square(i64 %n)
  %i = and i64 %n, 7
  %from = load volatile ptr, ptr @table
  %at = getelementptr i64, ptr %from, i64 %i
  %prime = load i64, ptr %at
  %x = add i64 %chosen, %squared
  %y = add i64 %x, %prime
  ret i64 %y
}
define double @halves(i64 %n) {
  %f = sitofp i64 %n to double
  %h = fmul double %f, 0x3FE5555555555555
  ret double %h
}
define ptr @copies(ptr %to, ptr %from) {
  %copy = call ptr @memcpy(ptr %to, ptr %from, i64 32)
  ret ptr %copy
}
define i1 @is_int_type(ptr %object) {
  %same = icmp eq ptr %object, @PyLong_Type
  ret i1 %same
}
"""


def emit(source: str, *, reloc: str = "pic", codemodel: str = "small") -> bytes:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=3, reloc=reloc, codemodel=codemodel)
    module = binding.parse_assembly(source)
    module.triple = binding.get_process_triple()
    content: bytes = machine.emit_object(module)
    return content


@pytest.fixture(scope="module")
def code() -> Code:
    return lay_out(emit(SOURCE))


@pytest.fixture(scope="module")
def function(code: Code) -> Callable[..., Callable[..., object]]:
    """A function of the code by its name, for these types of its result and arguments."""
    start = kernel_image.map_code(code.imports, code.pointers, code.content)
    assert start is not None

    def find(name: str, *types: object) -> Callable[..., object]:
        return ctypes.CFUNCTYPE(*types)(start + code.symbols[name])

    return find


def test_what_a_file_says_of_itself_is_resolved(function: Callable[..., Callable[..., object]]) -> None:
    numbers = function("numbers", ctypes.c_int64, ctypes.c_int64)
    chosen = {0: 100, 1: 1, 2: -7, 3: 93, 4: 4 ^ 12345}
    primes = [2, 3, 5, 7, 11, 13, 17, 19]
    for n in (*range(12), -1, 1 << 30):
        assert numbers(n) == chosen.get(n, n) + n * n + primes[n & 7], n
    halves = function("halves", ctypes.c_double, ctypes.c_int64)
    assert halves(3) == 3 * float.fromhex("0x1.5555555555555p-1")


def test_what_the_process_provides_is_found(code: Code, function: Callable[..., Callable[..., object]]) -> None:
    assert set(code.imports) == {"memcpy", "PyLong_Type"}, "what nothing uses is not asked for"
    is_int = function("is_int_type", ctypes.c_bool, ctypes.c_void_p)
    assert is_int(id(int))
    assert not is_int(id(str))
    source, copy = (ctypes.c_int64 * 4)(1, 2, 3, 1 << 40), (ctypes.c_int64 * 4)()
    function("copies", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(copy, source)
    assert list(copy) == [1, 2, 3, 1 << 40]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an ELF file"),
        (b"MZ" + bytes(100), "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(100), "not an ELF file"),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(CannotLayOut, match=says):
        lay_out(content)


@pytest.mark.parametrize("given", [{"reloc": "static"}, {"codemodel": "large"}])
def test_code_for_one_place_in_memory_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(CannotLayOut, match="relocation"):
        lay_out(emit(SOURCE, **given))


@pytest.mark.parametrize("data", ["zeroinitializer", "[i64 1, i64 2]"])
def test_data_that_changes_is_refused(data: str) -> None:
    kept = f"@kept = global [2 x i64] {data}\n"
    with pytest.raises(CannotLayOut, match="is writable"):
        lay_out(emit(kept + "define void @set(i64 %n) {\n store i64 %n, ptr @kept\n ret void\n}"))


def test_the_layout_does_not_depend_on_the_place(code: Code) -> None:
    """The same bytes run at several places at once."""
    starts = [kernel_image.map_code(code.imports, code.pointers, code.content) for _ in range(3)]
    assert None not in starts
    assert len(set(starts)) == 3
    calls = [ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(s + code.symbols["numbers"]) for s in starts if s]
    for n in random.Random(1).sample(range(1 << 20), 20):
        assert len({call(n) for call in calls}) == 1
