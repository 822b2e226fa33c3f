"""Training: the update, and in `run` all that a run needs around it."""
