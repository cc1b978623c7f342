"""A small model that learns from a large one: which layers learn from which, what is compared, and by what losses."""
