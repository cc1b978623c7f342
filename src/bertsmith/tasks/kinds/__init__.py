"""What an encoder can be fine-tuned for, and what it answers without; a file each."""
