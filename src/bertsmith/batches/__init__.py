"""Token shards to packed batches: draws, pairs, masking, packing, epochs, order, steps, loader. Knows numpy only."""
