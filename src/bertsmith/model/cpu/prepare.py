"""What training on a CPU begins with: memory, and whether the C++ kernels or PyTorch's operators are used."""

from __future__ import annotations

import torch

from bertsmith.base.log import log_choice, warn
from bertsmith.model.cpu import library
from bertsmith.model.cpu.allocator import keep_freed_memory
from bertsmith.model.cpu.compiled_cpp import NotCompiledError
from bertsmith.model.cpu.self_check import are_right

KERNELS, OPERATORS = "C++ kernels", "PyTorch's operators"
"""What a run is recorded to have started with. Runs of versions that had other products recorded "kernels", "kernels
and matrix units" or "operators" in bf16, and nothing in fp32, where they had no kernels."""

_WHAT = "between matrix products"
# The kernels of this process that were found right.
_right: object = None


def prepare_training(compute: torch.dtype, may_compile: bool = True, started_with: str | None = None) -> str:
    """Keeps freed memory, and has this thread use the kernels or not, saying which and why.

    compute: the dtype of matrix products. may_compile: whether a compiler may be run. started_with: None for a new run,
    else what this returned when the run started, "" if nothing was recorded; it is kept if it can be, with a warning
    where not. Returns what the last bits of a run depend on, to be recorded: `KERNELS`, `OPERATORS`, or "" for a dtype
    that has no kernels.
    """
    keep_freed_memory()
    if compute not in library.SUFFIXES:
        return ""
    if started_with == "" and compute == torch.float32:
        started_with = OPERATORS
    if not may_compile:
        found, reason = OPERATORS, "nothing is to be compiled"
    elif started_with in (OPERATORS, "operators"):
        found, reason = OPERATORS, "this run was started with them"
    else:
        found, reason = _load()
    if found == OPERATORS:
        library.unload()
    log_choice(_WHAT, found, reason)
    if started_with is not None and started_with != found:
        before = f"{started_with} of an earlier version" if started_with not in (KERNELS, OPERATORS) else started_with
        warn(
            f"this run was started with {before or 'unknown operators'} between matrix products and is resumed with "
            f"{found}; its figures will be close to those of an unbroken run, and not equal"
        )
    return found


def end_training() -> None:
    """Returns to PyTorch's operators, so that what is computed next is the same whether or not a run came before."""
    library.unload()


def load() -> bool:
    """Loads the kernels for whatever this thread computes from here on; whether they are there."""
    return _load()[0] == KERNELS


def _load() -> tuple[str, str]:
    """What is used from here on, and why."""
    global _right
    if not library.is_loaded():
        try:
            library.load()
        except NotCompiledError as why:
            return OPERATORS, str(why)
        if library.kernels() is not _right and not are_right():
            library.unload()
            warn("the C++ kernels compute something else here than PyTorch does; they are not used")
            return OPERATORS, "the C++ kernels failed their check"
        _right = library.kernels()
    return KERNELS, "compiled here, one visit to memory instead of several"
