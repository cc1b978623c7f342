"""Public corpora and benchmark data: verified, resumable, laid out as `finetune` reads them."""
