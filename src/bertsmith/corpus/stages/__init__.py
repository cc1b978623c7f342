"""What a preparation does to its documents: clean, split into sentences, tokenise, assemble shards, publish."""
