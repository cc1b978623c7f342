"""Pre-training on masked words and next sentences: what the loop needs to know of it."""
