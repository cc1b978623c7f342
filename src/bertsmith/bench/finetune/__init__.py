"""Steps of fine-tuning against transformers' Trainer."""
