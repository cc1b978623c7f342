"""What predictions are worth, in numpy: metrics, their intervals, calibration, thresholds, and doubtful labels."""
