"""Rows of files and of Python as records: columns, labels, splits."""
