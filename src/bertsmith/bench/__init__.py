"""Benchmarks: ours against other libraries, every case in a process of its own, over the same text."""
