"""Floor 1: the layers."""
