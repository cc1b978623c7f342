"""Rows of files and of Python: what they hold, how they are divided, and which of them are the same."""
