"""Metrics for translations and labels."""
