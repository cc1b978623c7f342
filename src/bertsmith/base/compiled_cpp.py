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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# Without it the compiler uses half of a vector.
_X86_FLAGS = ("-mprefer-vector-width=512",)
_SECONDS = 120
_SEAL_BYTES = 32


class NotCompiledError(Exception):
    """Why a file could not be compiled or loaded here, for a reader."""


def load_cpp(source: Path, signatures: Mapping[str, Sequence[Any]]) -> ctypes.CDLL:
    """The functions of a C++ file, which return nothing. signatures: ctypes of their parameters, by name.

    `CXX` names the compiler; g++ without it. Its OpenMP is PyTorch's, with the same threads, so import torch before.
    Raises NotCompiledError.
    """
    path = _compiled(source)
    try:
        library = ctypes.CDLL(str(path))
        for name, signature in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = signature, None
    except (OSError, AttributeError) as error:
        with suppress(OSError):
            path.unlink()  # so that the next run makes it anew
        raise NotCompiledError(f"{path} cannot be loaded: {error}") from error
    return library


def _compiled(source: Path) -> Path:
    if platform.system() != "Linux":
        raise NotCompiledError("C++ is compiled on Linux only")
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    except ValueError as error:
        raise NotCompiledError(f"CXX cannot be read: {error}") from error
    if shutil.which(compiler[0]) is None:
        raise NotCompiledError(f"no C++ compiler was found, no {compiler[0]}")
    compile_ = [*compiler, *_FLAGS, *(_X86_FLAGS if platform.machine() == "x86_64" else ())]
    path = _cache_folder() / f"{source.stem}-{_digest(source, compile_)}.so"
    try:
        if _is_whole(path):
            return path
        with tempfile.TemporaryDirectory(dir=path.parent) as aside:
            half, whole = f"{aside}/half.o", f"{aside}/whole.so"
            _run([*compile_, "-c", str(source), "-o", half])
            # Not linked to an OpenMP of its own, which would have threads of its own.
            _run([*compiler, "-shared", half, "-o", whole])
            _seal(Path(whole))
            os.replace(whole, path)
    except OSError as error:
        raise NotCompiledError(f"{path} cannot be made: {error}") from error
    return path


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


def _digest(source: Path, compile_: Sequence[str]) -> str:
    """Of all that decides what comes out: source, compiler, flags, processor."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines() if cpu.exists() else []
    kind = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise NotCompiledError(f"{source} cannot be read: {error}") from error
    parts = [text, _run([*compile_, "--version"]), *compile_, platform.machine(), *kind]
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
