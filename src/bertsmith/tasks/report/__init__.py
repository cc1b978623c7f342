"""What a fine-tuned model does well and badly, as JSON and PNG beside it."""
