"""The benchmark modes of NVIDIA's BERT: steps of training and calls of inference, every sequence of one length."""
