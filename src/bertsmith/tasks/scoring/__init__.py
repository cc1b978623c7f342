"""Figures from predictions and truths, in numpy alone."""
