"""`bertsmith bench pretrain-step`: a training step, ours beside that of others."""
