"""Typed configuration, command lines, user errors, special tokens."""
