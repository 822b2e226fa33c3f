"""How a search chooses the candidates that continue its hypotheses. Each strategy has its own file."""
