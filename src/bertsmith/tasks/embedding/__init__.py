"""What embeddings of texts need: pooling, the ranking of pairs, and folders as sentence-transformers has them."""
