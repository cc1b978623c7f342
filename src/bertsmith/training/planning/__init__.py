"""What a run will cost: its work, the memory of a rank, the time of a step, and the tables of these."""
