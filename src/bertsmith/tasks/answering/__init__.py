"""Answers that are spans of a context, as in SQuAD: words and pieces, windows, and the best spans.

After Google's run_squad.py, whose rules these are. Legend: N records, S sequences (windows), L pieces of a context,
W of its words.
"""
