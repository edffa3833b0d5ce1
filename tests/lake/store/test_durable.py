"""Local files are on disk before anything says they are: the order of the system calls, and what is left of failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pcaplake.common.errors import OutcomeUnknown
from pcaplake.lake.store import durable

PROGRAM = """
import asyncio, os, sys
from pcaplake.lake.store.store import Store
store = Store.open(sys.argv[1])
async def main():
    {before}
    os.access("/begin", 0)
    {what}
    os.access("/end", 0)
asyncio.run(main())
"""
FIRST = 'await store.put_if_absent("t/first", b"its folder is made here")'
CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
WATCHED = "openat,write,pwrite64,fsync,fdatasync,link,linkat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat"


def trace(folder: Path, what: str, *, before: str = FIRST) -> list[str]:
    """The calls that touch the store, as `name file`, in order; the temporary name is `TMP`, a folder ends in `/`."""
    log = folder.parent / "strace"
    program = PROGRAM.format(what=what, before=before)
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-e", f"trace={WATCHED},access,faccessat2,faccessat"]
    subprocess.run([*command, sys.executable, "-c", program, str(folder)], check=True, cwd=os.getcwd())
    seen: list[str] = []
    inside = False
    for line in joined(log.read_text().splitlines()):
        inside = (inside or '"/begin"' in line) and '"/end"' not in line
        match = CALL.search(line)
        if not (inside and match and str(folder) in line) or int(match[3]) < 0:
            continue
        names = [short(folder, name) for name in re.findall(re.escape(str(folder)) + r'[^">]*', match[2])]
        if match[1] != "openat":
            seen.append(" ".join([match[1].removesuffix("at"), *dict.fromkeys(names)]))
    return seen


def joined(lines: list[str]) -> list[str]:
    """Calls that another thread interrupted are two lines of a trace: put together where they end."""
    begun: dict[str, str] = {}
    whole = []
    for line in lines:
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix(" <unfinished ...>")
        elif match := re.search(r"<\.\.\. \w+ resumed>", line):
            whole.append(begun.pop(thread) + line[match.end() :])
        else:
            whole.append(line)
    return whole


def short(folder: Path, name: str) -> str:
    relative = os.path.relpath(name, folder)
    if relative.endswith(".tmp"):
        return "TMP"
    return relative + "/" if (folder / relative).is_dir() else relative


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.mark.slow
def test_put_if_absent_writes_syncs_links_and_syncs_the_folder(folder: Path) -> None:
    calls = trace(folder, 'assert await store.put_if_absent("t/x", b"data")')
    assert calls == ["write TMP", "fsync TMP", "link TMP t/x", "unlink TMP", "fsync t/"]


@pytest.mark.slow
def test_replace_renames_only_what_is_synced(folder: Path) -> None:
    calls = trace(folder, 'await store.put("t/x", b"data")')
    assert calls == ["write TMP", "fsync TMP", "rename TMP t/x", "fsync t/"]


@pytest.mark.slow
def test_an_upload_is_synced_before_it_has_its_name(folder: Path) -> None:
    calls = trace(folder, 'u = store.upload("t/x"); u.write(b"one"); u.write(b"two"); u.finish()')
    assert calls == ["write TMP", "write TMP", "fsync TMP", "link TMP t/x", "unlink TMP", "fsync t/"]


@pytest.mark.slow
def test_every_new_folder_is_synced_into_its_parent_before_a_file_is(folder: Path) -> None:
    calls = trace(folder, 'assert await store.put_if_absent("a/b/x", b"data")', before="pass")
    made = ["mkdir ./", "mkdir a/", "fsync ./", "mkdir a/b/", "fsync a/"]
    assert calls == [*made, "write TMP", "fsync TMP", "link TMP a/b/x", "unlink TMP", "fsync a/b/"]


@pytest.mark.slow
def test_who_loses_a_name_knows_that_the_winner_is_on_disk(folder: Path) -> None:
    calls = trace(folder, 'assert not await store.put_if_absent("t/first", b"data")')
    assert calls == ["write TMP", "fsync TMP", "unlink TMP", "fsync t/"]


@pytest.mark.slow
def test_what_is_read_whole_is_on_disk(folder: Path) -> None:
    """Its writer may have died between link and fsync: who acts on it must not be the only one to remember it."""
    assert trace(folder, 'assert await store.get("t/first")') == ["fsync t/"]


def test_of_many_that_create_one_file_one_wins_and_nothing_is_left(tmp_path: Path) -> None:
    made: list[int] = []

    def create(number: int) -> None:
        if durable.create_file(tmp_path / "x", tmp_path, b"%d" % number * 5000):
            made.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (tmp_path / "x").read_bytes() == b"%d" % made[0] * 5000
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.create_file(tmp_path / "first", tmp_path, b"")

    def broken(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(durable, "sync_folder", broken)
    with pytest.raises(OutcomeUnknown, match="could not be synced"):
        durable.create_file(tmp_path / "x", tmp_path, b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_a_folder_made_again_is_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = durable.sync_folder
    monkeypatch.setattr(durable, "sync_folder", lambda folder: (synced.append(folder), real(folder))[1])
    durable.create_file(tmp_path / "t/x", tmp_path, b"")
    assert tmp_path in synced
    synced.clear()
    durable.create_file(tmp_path / "t/y", tmp_path, b"")
    assert synced == [tmp_path / "t"]
    for file in (tmp_path / "t").iterdir():
        file.unlink()
    (tmp_path / "t").rename(tmp_path / "old")
    synced.clear()
    durable.create_file(tmp_path / "t/x", tmp_path, b"")
    assert synced[-1] == tmp_path / "t"
    assert tmp_path in synced


def test_replace_compares_the_version(tmp_path: Path) -> None:
    durable.create_file(tmp_path / "x", tmp_path, b"1")
    seen = durable.file_etag((tmp_path / "x").stat())
    assert durable.replace_file(tmp_path / "x", tmp_path, b"2", seen)
    assert not durable.replace_file(tmp_path / "x", tmp_path, b"3", seen)
    assert not durable.replace_file(tmp_path / "absent", tmp_path, b"3", seen)
    assert (tmp_path / "x").read_bytes() == b"2"
    durable.delete_file(tmp_path / "x")
    durable.delete_file(tmp_path / "x")
    durable.delete_file(tmp_path / "no/such/folder/x")
    assert list(tmp_path.iterdir()) == []
