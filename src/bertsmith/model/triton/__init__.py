"""Triton kernels of our own, for a GPU: attention, dropout, GELU, and what ends half a block."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
