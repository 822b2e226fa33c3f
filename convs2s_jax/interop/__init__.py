"""Floor 5: other formats in and out."""
