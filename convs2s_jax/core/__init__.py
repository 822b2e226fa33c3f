"""Typed configuration, command lines, user errors and special tokens."""
