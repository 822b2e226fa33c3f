"""Export of trained models as portable StableHLO programs, with parameters, vocabularies and a small runtime."""
