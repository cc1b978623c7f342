"""Weights in and out, strictly: every tensor of a model folder is accounted for, in both languages of names."""
