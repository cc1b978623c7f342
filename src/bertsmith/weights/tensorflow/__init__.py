"""Checkpoints that TensorFlow wrote, read without it."""
