"""What a process runs with: versions of packages, the name of the processor and the state of the code, told without
importing torch, which would cost seconds."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

# Packages that are installed by another name than they are imported by.
_INSTALLED_AS = {"sklearn": "scikit-learn"}
_CPUINFO = Path("/proc/cpuinfo")
_GIT_SECONDS = 10.0
_CODE = ("*.py", "*.yaml", "*.cpp", "*.h")


@cache
def version_of(package: str) -> str | None:
    """The version, or None where the package is not installed. package: the name that it is imported by."""
    try:
        return importlib.metadata.version(_INSTALLED_AS.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """The name of the processor, such as "AMD EPYC 9554 64-Core Processor"; its architecture where it has none."""
    return first_core(read_cpuinfo(), "model name") or platform.processor() or platform.machine()


def read_cpuinfo() -> str:
    """The text of /proc/cpuinfo, or ""."""
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system, or a sandbox without /proc
        return ""


def first_core(text: str, name: str) -> str:
    """The value of a field in the entry of the first core, or "". text: that of /proc/cpuinfo."""
    fields = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for found, _, value in fields if found.strip() == name), "")


def core_flags(text: str) -> list[str]:
    """The flags of the first core. text: that of /proc/cpuinfo."""
    return (first_core(text, "flags") or first_core(text, "Features")).split()  # the name on Arm


@cache
def git_state(folder: Path, file: str = "") -> str:
    """The commit of the working tree that a folder is in, followed by ", changed" where files of it are not as they are
    there; "" where there is no such tree, or no git. file: of the folder, which must belong to the tree: the folder is
    then one of code, and code in it that does not belong to the tree is a change too."""
    if file and _git(folder, "ls-files", "--error-unmatch", file) is None:
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if file:
        changes = changes or _git(folder, "ls-files", "--others", "--exclude-standard", *_CODE)
    return f"{commit}, changed" if commit and changes else commit or ""


def code_state() -> str:
    """`git_state` of the working tree that this package is run from."""
    return git_state(Path(__file__).parents[1], "__init__.py")


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None where it fails."""
    # Without a lock: another process may be at work in the tree.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()
