"""BERT on packed sequences: config, attention, layers, encoder, heads, losses."""
