"""`bertsmith bench pretrain-step`: a training step, ours against transformers."""
