"""Checkpoints: written, kept, chosen, verified and read."""
