"""Learning from a teacher on a task: the objective, and rows made by replacing words."""
