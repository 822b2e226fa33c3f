"""Decode whole files, or lines as they are typed, and write the results."""
