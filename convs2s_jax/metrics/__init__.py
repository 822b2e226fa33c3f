"""Floor 3: how good texts and labels are."""
