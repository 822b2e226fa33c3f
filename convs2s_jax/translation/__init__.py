"""Decoding for users: files, formats, alignments and interactive use."""
