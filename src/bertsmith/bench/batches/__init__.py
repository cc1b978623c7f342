"""`bertsmith bench batches`: a prepared corpus read back as batches."""
