"""Attention in Triton kernels of our own, for a GPU."""
