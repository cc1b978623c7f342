"""Triton's interpreter, several times as fast as it comes."""

from __future__ import annotations

from types import SimpleNamespace

import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

LANGUAGES = (tl, core)


def replace_once() -> None:
    """Has the interpreter replace Triton's language by its own once for the process. By itself it looks through all of
    it at every call of a function of a kernel, which takes most of its time."""
    if hasattr(interpreter, "_patch_lang"):  # else it is slow, and no more
        interpreter._patch_lang(replace_once)  # in all modules that this one has imported
        interpreter._patch_lang = lambda function: SimpleNamespace(restore=lambda: None)
