"""Models behind HTTP: requests are tokenised, queued, computed together without padding, and answered."""
