"""Trained models as compiled-anywhere programs (StableHLO), with parameters, vocabularies and a small runtime."""
