"""Conversion from and to other formats and libraries."""
