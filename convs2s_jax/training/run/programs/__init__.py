"""The compiled programs of a run: which exist, who shares them, and when they are compiled."""
