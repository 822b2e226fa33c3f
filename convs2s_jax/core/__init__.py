"""Floor 0: typed configuration, user errors, the special tokens."""
