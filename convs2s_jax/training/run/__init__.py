"""A training run: data, devices, checkpoints, validation and reports around the update."""
