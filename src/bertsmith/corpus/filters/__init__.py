"""Which documents are dropped: copies, evaluation text, near-duplicates."""
