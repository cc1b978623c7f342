"""What runs a model: PyTorch on its folder, or another engine on the graph that `bertsmith export` wrote."""
