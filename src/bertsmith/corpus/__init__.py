"""Raw text to token shards: sources, cleaning, sentences, tokenizer, shard format, and `prepare` that runs them."""
