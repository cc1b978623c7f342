"""From gradients to an update: LAMB and AdamW over fp32 masters, parameter groups, learning-rate schedules."""
