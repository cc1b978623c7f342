"""Metrics in numpy: what a model's scores are worth beside the truth."""
