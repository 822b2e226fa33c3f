"""Workdirs in object stores: local copies, and what is written back."""
