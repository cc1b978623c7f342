"""A C++ file compiled on the user's machine, where there is a compiler, and loaded by `ctypes`.

Nothing is built at install. What is compiled stays in the user's cache folder under a name that says what it was made
of, so a changed source, compiler or processor makes another.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bertsmith.base.versions import read_cpuinfo

ARCHITECTURE = "BERTSMITH_ARCHITECTURE"
"""The environment variable that names the processor to compile for, as the compiler's -march: x86-64-v3 for one with
AVX2. Without it, it is the one that compiles."""

# The pragma `omp simd` needs no library; see the kernels' threads.h for what else of OpenMP they use.
_FLAGS = ("-std=c++17", "-O3", "-fopenmp-simd", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# Without it compilers use half of a vector of AVX-512.
_X86_FLAGS = ("-mprefer-vector-width=512",)
_COMPILERS = ("g++", "clang++")
_SECONDS = 120
_SEAL_BYTES = 32


class NotCompiledError(Exception):
    """Why a file could not be compiled or loaded here, for a reader."""


def load_cpp(source: Path) -> ctypes.CDLL:
    """A C++ file as a library, with the headers in its folder.

    `CXX` names the compiler; without it, it is g++ or clang++, whichever is there. `BERTSMITH_ARCHITECTURE` names the
    processor. What the file uses of OpenMP's library is found in PyTorch's, so import torch before.
    Raises NotCompiledError.
    """
    path = _compiled(source)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        with suppress(OSError):
            path.unlink()  # so that the next run makes it anew
        raise NotCompiledError(f"{path} cannot be loaded: {error}") from error


def _compiled(source: Path) -> Path:
    if platform.system() != "Linux":
        raise NotCompiledError("C++ is compiled on Linux only")
    command = [*_compiler(), *_flags()]
    path = _cache_folder() / f"{source.stem}-{_digest(source, command)}.so"
    try:
        if _is_whole(path):
            return path
        with tempfile.TemporaryDirectory(dir=path.parent) as aside:
            made = Path(aside, "made.so")
            _run([*command, "-shared", str(source), "-o", str(made)])
            _seal(made)
            os.replace(made, path)
    except OSError as error:
        raise NotCompiledError(f"{path} cannot be made: {error}") from error
    return path


def _compiler() -> list[str]:
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NotCompiledError(f"CXX cannot be read: {error}") from error
    candidates = [named] if named else [[name] for name in _COMPILERS]
    found = next((each for each in candidates if shutil.which(each[0])), None)
    if found is None:
        raise NotCompiledError(f"no C++ compiler was found, no {' or '.join(each[0] for each in candidates)}")
    return found


def _flags() -> list[str]:
    is_x86 = platform.machine() == "x86_64"
    # Compilers for ARM tune for the processor at hand by the second name only.
    here = "-march=native" if is_x86 else "-mcpu=native"
    named = os.environ.get(ARCHITECTURE)
    return [*_FLAGS, f"-march={named}" if named else here, *(_X86_FLAGS if is_x86 else ())]


def _seal(path: Path) -> None:
    """Puts a checksum behind the library, where loaders do not look."""
    made = path.read_bytes()
    path.write_bytes(made + hashlib.sha256(made).digest())
    path.chmod(0o700)


def _is_whole(path: Path) -> bool:
    """Whether there is a library as it was written. One cut short, by a power cut, ends the process that loads it."""
    if not path.exists():
        return False
    found = path.read_bytes()
    return hashlib.sha256(found[:-_SEAL_BYTES]).digest() == found[-_SEAL_BYTES:]


def _cache_folder() -> Path:
    """A folder of the user's own: what others can write is not loaded."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertsmith"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except (OSError, RuntimeError) as error:
        raise NotCompiledError(f"the cache folder cannot be made: {error}") from error
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NotCompiledError(f"{folder} can be written by others")
    return folder


def _digest(source: Path, command: Sequence[str]) -> str:
    """Of all that decides what comes out: source and headers, compiler, flags, processor."""
    told = ("model name", "flags", "Features", "CPU part")
    kind = sorted({line for line in read_cpuinfo().splitlines() if line.startswith(told)})
    try:
        texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h")))]
    except OSError as error:
        raise NotCompiledError(f"{source} cannot be read: {error}") from error
    parts = [*texts, _run([*command, "--version"]), *command, platform.machine(), *kind]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},  # in other languages an error is no "error"
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error:" in line] or [f"status {error.returncode}"]
        raise NotCompiledError(f"{command[0]} failed: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiledError(f"{command[0]} failed: {error}") from error
    return done.stdout
