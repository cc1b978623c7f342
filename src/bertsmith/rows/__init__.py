"""Rows of files, compressed or not, in whatever encoding they say: csv, tsv, JSON lines, parquet, CoNLL, SQuAD."""
