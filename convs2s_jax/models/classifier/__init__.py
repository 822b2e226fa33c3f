"""Text classification (Kim 2014)."""
