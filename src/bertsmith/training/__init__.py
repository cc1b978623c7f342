"""Pre-training: one step, the loop around it, evaluation, meters, checkpoints; `pretrain` puts them together."""
