"""What predictions are worth, in numpy alone: metrics, intervals, calibration, thresholds, and doubtful labels."""
