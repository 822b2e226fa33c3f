"""Floor 5: between the search and the user."""
