"""The parts of a fine-tuning run, which `tasks/finetune.py` puts together."""
