"""Decoding whole files, or lines as they are typed: options in, results in an output out."""
