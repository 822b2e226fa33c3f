"""How a search chooses the candidates that continue its hypotheses; each strategy in a file of its own."""
