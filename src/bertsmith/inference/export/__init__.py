"""A model folder as a graph that other engines run: written, checked against PyTorch, quantised."""
