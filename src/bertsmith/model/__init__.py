"""BERT on packed sequences: config, attention, layers, encoder, heads, losses."""

import os

# MKL sums in another order for another number of rows, so that in fp32 a sequence's neighbours would change its last
# bits. Asked to before its first product, it does not, at 2% of its speed. Whoever has set the variable is obeyed.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
