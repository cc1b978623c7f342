"""An encoder put to a task: rows of text with labels, task models, metrics, fine-tuning."""
