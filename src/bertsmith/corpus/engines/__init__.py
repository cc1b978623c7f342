"""Who does the work: worker processes, a Ray cluster or the tasks of an array job; and parts that are made once."""
