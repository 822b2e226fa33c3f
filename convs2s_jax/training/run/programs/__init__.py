"""The compiled programs of a run: which there are, who shares them, and when they are compiled."""
