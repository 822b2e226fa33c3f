"""What a kind of model is trained to do: its loss, its predictions and their scores."""
