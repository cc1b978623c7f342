"""Public benchmarks as data: where their files are found, what their columns mean, and how their scores are made."""
