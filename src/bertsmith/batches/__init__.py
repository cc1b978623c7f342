"""Token shards to packed batches: pairs, masking, packing, epochs, order, steps, loader. Knows numpy only."""
