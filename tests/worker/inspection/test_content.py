"""Files that are hashed while they are read, and standard input."""

from __future__ import annotations

import hashlib
import io
import os
import threading

import pytest
from blake3 import blake3

from pcaplake.worker.inspection.content import HashedFile, StandardInput, Stopped


def test_hashes_and_progress_are_those_of_all_bytes() -> None:
    """However they are read: a decompressor reads with `read`, the rest is read at the end."""
    data, steps = os.urandom(3_000_000), list[int]()
    file = HashedFile(io.BytesIO(data), threading.Event(), steps.append)
    assert file.read(1000) == data[:1000]
    buffer = bytearray(500)
    assert file.readinto(memoryview(buffer)[100:]) == 400
    assert buffer[100:] == data[1000:1400]
    file.read_rest()
    assert (file.size, sum(steps)) == (len(data), len(data))
    assert file.hashes == {
        "blake3": blake3(data).hexdigest(length=16),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def test_a_stop_ends_reading() -> None:
    stop = threading.Event()
    file = HashedFile(io.BytesIO(b"12345678"), stop, lambda count: None)
    assert file.read(4) == b"1234"
    stop.set()
    with pytest.raises(Stopped):
        file.read(4)


def test_a_stop_ends_waiting_for_standard_input() -> None:
    """Nobody writes to the pipe, and nobody closes it."""
    reading, writing = os.pipe()
    stop = threading.Event()
    try:
        os.write(writing, b"123")
        stdin, buffer = StandardInput(reading, stop), bytearray(10)
        assert (stdin.readinto(buffer), buffer[:3]) == (3, b"123")
        stop.set()
        with pytest.raises(Stopped):
            stdin.readinto(buffer)
    finally:
        os.close(reading)
        os.close(writing)
