"""Beam search, sampling, and translation of sentences."""
