"""WordPiece: the tokenizer and its files, ids of bulk text, trained and extended vocabularies."""
