"""Floor 3: corpora, vocabularies, batch plan and loader."""
