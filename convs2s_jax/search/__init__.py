"""Floor 3: search and translation."""
