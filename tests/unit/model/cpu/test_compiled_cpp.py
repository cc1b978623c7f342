"""A C++ file is compiled once, kept in the user's cache, made anew when it is broken; each reason not to is told."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.model.cpu import compiled_cpp
from bertsmith.model.cpu.compiled_cpp import NotCompiledError, load_cpp

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="C++ is compiled on Linux only"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine"),
]

SUM = """
#include <cstdint>
extern "C" void add(const int64_t *a, const int64_t *b, int64_t *out) { *out = *a + *b; }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the libraries of a test lie."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bertsmith"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sum.cpp"
    path.write_text(SUM, encoding="utf-8")
    return path


def added(library: ctypes.CDLL, a: int, b: int) -> int:
    numbers = [ctypes.c_int64(each) for each in (a, b, 0)]
    library.add(*map(ctypes.byref, numbers))
    return numbers[2].value


def reason(source: Path) -> str:
    with pytest.raises(NotCompiledError) as caught:
        load_cpp(source)
    return str(caught.value)


def wrapper(folder: Path) -> tuple[Path, Path]:
    """A compiler that notes what it is asked for, one line a call; and its notes."""
    program, notes = folder / "noting-g++", folder / "calls.txt"
    program.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nexec g++ "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program, notes


def test_a_file_is_compiled_once_into_the_cache(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, notes = wrapper(tmp_path)
    monkeypatch.setenv("CXX", f"{program} -DWITH_A_FLAG")
    assert added(load_cpp(source), 2, 40) == 42
    first = [line for line in notes.read_text().splitlines() if "--version" not in line]
    assert len(first) == 1
    assert "-DWITH_A_FLAG" in first[0]
    (made,) = cache.iterdir()
    assert made.name.startswith("sum-")
    assert made.stat().st_mode & 0o777 == cache.stat().st_mode & 0o777 == 0o700
    assert added(load_cpp(source), 5, 6) == 11
    assert [line for line in notes.read_text().splitlines() if "--version" not in line] == first


def test_another_source_or_another_flag_makes_another_library(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_cpp(source)
    source.write_text(SUM.replace("*a + *b", "*a - *b"), encoding="utf-8")
    assert added(load_cpp(source), 5, 3) == 2
    monkeypatch.setenv("CXX", "g++ -DOTHER")
    load_cpp(source)
    (source.parent / "numbers.h").write_text("// another header", encoding="utf-8")
    load_cpp(source)
    assert len(list(cache.iterdir())) == 4


def test_another_compiler_or_processor_makes_another_library(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home may be shared by machines: what one of them compiled could end the process of another."""
    program, version = tmp_path / "some-g++", tmp_path / "version"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--version) cat {version};; *) exec g++ "$@";; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    for number in ("12", "13", "13"):
        version.write_text(number)
        load_cpp(source)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(compiled_cpp, "read_cpuinfo", lambda: "flags : another")
    load_cpp(source)
    assert len(list(cache.iterdir())) == 3


def test_a_processor_may_be_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("names of x86-64")
    program, notes = wrapper(tmp_path)
    monkeypatch.setenv("CXX", str(program))
    for name, flag in (("", "-march=native"), ("x86-64-v3", "-march=x86-64-v3")):
        notes.unlink(missing_ok=True)
        monkeypatch.setenv("BERTSMITH_ARCHITECTURE", name)
        assert added(load_cpp(source), 2, 40) == 42
        lines = notes.read_text().splitlines()
        assert len(lines) == 2, "its version, and once to compile"
        assert all([word for word in line.split() if word.startswith("-march")] == [flag] for line in lines)
    monkeypatch.setenv("BERTSMITH_ARCHITECTURE", "no-such-processor")
    assert "no-such-processor" in reason(source)


@pytest.mark.parametrize("there", ["g++", "clang++"])
def test_either_compiler_is_found(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    """Found by its name alone: a link to whichever is here stands in for the other."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / there).symlink_to(shutil.which("g++"))
    for name in ("as", "ld"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    assert added(load_cpp(source), 2, 40) == 42
    (folder / there).unlink()
    assert "no g++ or clang++" in reason(source)


def test_without_a_cache_folder_of_its_own_it_is_the_homes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_cpp(source)
    assert len(list((tmp_path / "home" / ".cache" / "bertsmith").iterdir())) == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("no-such-compiler -O1", "no C++ compiler was found, no no-such-compiler"),
        ("g++ 'open", "CXX cannot be read: No closing quotation"),
        ("g++ --no-such-option", "g++ failed"),
        ("false", "false failed: status 1"),
        ("true", "cannot be made"),
    ],
)
def test_a_compiler_that_cannot_be_used(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, command: str, told: str
) -> None:
    monkeypatch.setenv("CXX", command)
    assert told in reason(source)
    assert not cache.exists() or not list(cache.iterdir()), "nothing half made is left"


def test_a_file_with_an_error_is_told_with_the_compilers_words(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    source.write_text(SUM.replace("*out =", "*outt ="), encoding="utf-8")
    told = reason(source)
    assert "sum.cpp:3" in told
    assert "error" in told
    assert "outt" in told
    assert not list(cache.iterdir())


def test_a_file_that_is_missing(source: Path, tmp_path: Path) -> None:
    assert "cannot be read" in reason(tmp_path / "gone.cpp")


def test_a_library_that_lacks_what_it_calls_is_made_anew_next_time(source: Path, cache: Path) -> None:
    source.write_text('extern "C" int gone(); extern "C" int call() { return gone(); }', encoding="utf-8")
    told = reason(source)
    assert "cannot be loaded" in told
    assert "gone" in told
    assert not list(cache.iterdir())


LOAD = """
import ctypes, sys
from pathlib import Path
from bertsmith.model.cpu.compiled_cpp import load_cpp
library = load_cpp(Path(sys.argv[1]))
numbers = [ctypes.c_int64(each) for each in (20, 3, 0)]
library.add(*map(ctypes.byref, numbers))
print(numbers[2].value)
"""


@pytest.mark.parametrize("harm", ["cut short", "empty", "not a library", "one bit"])
def test_a_library_that_is_broken_is_made_anew(source: Path, cache: Path, harm: str) -> None:
    """In a process of its own, which a library that is cut short would end: it is mapped past the end of its file."""
    load_cpp(source)
    (made,) = cache.iterdir()
    whole = made.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    made.unlink()  # this process has it mapped
    made.write_bytes({"cut short": whole[:-4096], "empty": b"", "not a library": b"?" * 99, "one bit": flipped}[harm])
    done = subprocess.run([sys.executable, "-c", LOAD, str(source)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "23"), done.stderr
    assert [each.name for each in cache.iterdir()] == [made.name]
    assert made.read_bytes() == whole


def test_a_folder_that_others_can_write_is_not_trusted(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_cpp(source)
    for mode in (0o770, 0o702):
        cache.chmod(mode)
        assert f"{cache} can be written by others" in reason(source)
    cache.chmod(0o755)
    load_cpp(source)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert f"{cache} can be written by others" in reason(source), "by the one that it belongs to"


def test_a_library_is_the_users_own_whatever_new_files_are(source: Path, cache: Path) -> None:
    before = os.umask(0)
    try:
        load_cpp(source)
    finally:
        os.umask(before)
    (made,) = cache.iterdir()
    assert (made.stat().st_mode | cache.stat().st_mode) & 0o022 == 0


def test_a_folder_that_cannot_be_made(source: Path, cache: Path) -> None:
    cache.parent.write_text("a file in its place", encoding="utf-8")
    assert "the cache folder cannot be made" in reason(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_that_may_not_be_entered_or_written(source: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    for mode in (0o000, 0o500):
        cache.chmod(mode)
        try:
            assert "cannot be made" in reason(source)
        finally:
            cache.chmod(0o700)
