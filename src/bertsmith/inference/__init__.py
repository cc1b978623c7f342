"""Finished models put to use: predictions for rows of text. Needs no training code."""
