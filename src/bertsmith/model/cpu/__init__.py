"""What the model runs on a CPU: C++ kernels compiled where they run, matrix products, dropout."""
