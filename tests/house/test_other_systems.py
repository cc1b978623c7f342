"""Nothing that only Linux has is needed to import Bertsmith, so that it starts on macOS and Windows."""

from __future__ import annotations

import subprocess
import sys

SYSTEMS = ("Darwin", "Windows")
CODE = """
import importlib, os, pkgutil, signal, sys, types
# What others import has to be imported as on Linux, since it is installed for Linux.
import multiprocessing.shared_memory, subprocess, tempfile, asyncio, tarfile, shutil, pathlib, zipfile, logging
import numpy, torch, torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.utils.checkpoint
import tokenizers, safetensors.torch
import sentencex, mwparserfromhell, yaml, tyro, tqdm, torch.profiler
import fastapi, onnx, prometheus_client, uvicorn.protocols.http.httptools_impl
import bertsmith

# The imports above take longer than all that follows, so each system goes on with them in a process of its own.
for system in sys.argv[1:]:
    child = os.fork()
    if not child:
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(f"as on {system}")
else:
    sys.exit()
sys.platform = {"Windows": "win32", "Darwin": "darwin"}[system]
missing = {"Windows": ["resource", "fcntl", "pwd", "grp", "termios", "pty", "tty"], "Darwin": []}[system]
for name in missing:
    sys.modules[name] = None  # importing it raises ImportError
if system == "Windows":
    sys.modules["msvcrt"] = types.ModuleType("msvcrt")
gone = {
    "Windows": ["sched_getaffinity", "sched_setaffinity", "getuid", "geteuid", "sysconf", "fork", "killpg", "uname",
                "statvfs", "posix_fadvise", "setsid", "getpgid", "O_DIRECTORY"],
    "Darwin": ["sched_getaffinity", "sched_setaffinity", "posix_fadvise"],
}[system]
for name in gone:
    if hasattr(os, name):
        delattr(os, name)
if system == "Windows":
    for name in ("SIGUSR1", "SIGKILL", "SIGHUP", "SIGALRM"):
        delattr(signal, name)
import platform
platform.system = lambda: system
import ctypes
real = ctypes.CDLL
def library(name, *given, **options):
    if name is None and system == "Windows":
        raise TypeError("a library needs a name on Windows")
    return real(name, *given, **options)
ctypes.CDLL = library

failed = []
for each in pkgutil.walk_packages(bertsmith.__path__, "bertsmith.", onerror=lambda name: None):
    if each.name.startswith(("bertsmith.__main__", "bertsmith.model.triton.kernels")):  # ends; needs Triton
        continue
    try:
        importlib.import_module(each.name)
    except Exception as error:
        failed.append(f"{system}: {each.name}: {type(error).__name__}: {error}")
print("\\n".join(failed))

from bertsmith.model.cpu.prepare import OPERATORS, prepare_training
assert prepare_training(torch.float32) == prepare_training(torch.bfloat16) == OPERATORS
"""


def test_every_module_can_be_imported_and_training_uses_pytorchs_operators() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *SYSTEMS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip(), done.stdout
