"""How well predictions agree with the truth, in numpy and plain Python."""
