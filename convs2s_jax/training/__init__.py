"""Floor 4: training."""
