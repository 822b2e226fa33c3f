"""Corpora, vocabularies, batch plan and loader."""
