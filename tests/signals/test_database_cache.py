"""Large files are read once; an entry that is damaged, old or not the user's own is read again."""

from __future__ import annotations

import pickle
from pathlib import Path

import blake3
import pytest

from pcaplake.signals import database_cache
from pcaplake.signals.database_cache import load_once


class Reader:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, path: Path) -> dict[str, int]:
        self.count += 1
        return {path.name: path.stat().st_size}


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(database_cache, "WORTH_KEEPING", 10)
    path = tmp_path / "car.arxml"
    path.write_text("x" * 10)
    return path


def test_a_file_is_read_once(large: Path, tmp_path: Path) -> None:
    reader, folder = Reader(), tmp_path / "kept"
    for _ in range(3):
        assert load_once(large, reader, "services", folder) == {"car.arxml": 10}
    assert reader.count == 1
    load_once(large, reader, "frames", folder)  # something else of the same file
    assert reader.count == 2
    large.write_text("y" * 10)
    load_once(large, reader, "services", folder)
    assert reader.count == 3


def test_small_files_are_not_kept(large: Path, tmp_path: Path) -> None:
    large.write_text("x" * 9)
    reader = Reader()
    load_once(large, reader, "services", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("damage", ["cut off", "changed", "empty", "raises", "other reader"])
def test_a_damaged_entry_is_read_again(
    large: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, folder = Reader(), tmp_path / "kept"
    load_once(large, reader, "services", folder)
    (entry,) = folder.iterdir()
    data = entry.read_bytes()
    content = b"cos\nno_such_thing\n."
    if damage == "other reader":
        monkeypatch.setattr(database_cache, "_readers_hash", lambda: "newer")
    else:
        entry.write_bytes(
            {
                "cut off": data[:-1],
                "changed": data[:-1] + bytes([data[-1] ^ 1]),
                "empty": b"",
                "raises": blake3.blake3(content).digest() + content,
            }[damage]
        )
    assert load_once(large, reader, "services", folder) == {"car.arxml": 10}
    assert reader.count == 2
    load_once(large, reader, "services", folder)
    assert reader.count == 2


def test_entries_of_others_are_not_opened(large: Path, tmp_path: Path) -> None:
    reader, folder = Reader(), tmp_path / "kept"
    load_once(large, reader, "services", folder)
    folder.chmod(0o777)
    load_once(large, reader, "services", folder)
    assert reader.count == 2


def test_without_a_place_files_are_read_each_time(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    reader = Reader()
    monkeypatch.setattr(Path, "home", no_home)
    load_once(large, reader, "services")
    monkeypatch.setattr(Path, "home", lambda: Path("~"))
    load_once(large, reader, "services")
    (tmp_path / "file").write_text("")
    load_once(large, reader, "services", tmp_path / "file" / "kept")
    assert reader.count == 3
    assert not Path("~").exists()


def test_the_oldest_entries_go(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_cache, "_MOST_ENTRIES", 2)
    for content in ("a", "b", "c"):
        large.write_text(content * 10)
        load_once(large, Reader(), "services", tmp_path / "kept")
    entries = list((tmp_path / "kept").iterdir())
    assert len(entries) == 2
    assert all(pickle.loads(entry.read_bytes()[32:]) == {"car.arxml": 10} for entry in entries)


def test_what_a_reader_refuses_is_not_kept(large: Path, tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise ValueError(path.name)

    with pytest.raises(ValueError, match=r"car\.arxml"):
        load_once(large, refuse, "services", tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_another_version_of_a_parser_reads_again(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    load_once(large, reader, "services", tmp_path / "kept")
    database_cache._readers_hash.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda library: "999")
    load_once(large, reader, "services", tmp_path / "kept")
    database_cache._readers_hash.cache_clear()
    assert reader.count == 2


def test_a_file_that_changes_while_it_is_read_is_not_kept(large: Path, tmp_path: Path) -> None:
    def read(path: Path) -> str:
        path.write_text("y" * 11)
        return path.read_text()

    assert load_once(large, read, "services", tmp_path / "kept") == "y" * 11
    large.write_text("x" * 10)
    assert load_once(large, Path.read_text, "services", tmp_path / "kept") == "x" * 10
