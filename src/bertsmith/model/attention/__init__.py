"""Attention over packed sequences: one front door, `attend`, and its back-ends."""
