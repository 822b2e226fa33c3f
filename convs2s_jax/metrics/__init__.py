"""Scores of texts and labels."""
